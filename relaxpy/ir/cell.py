"""What the step of a recurrent network computes, as plain data: its gates, its activations, its options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

GATES = {"lstm": "ifgo", "gru": "rzn", "rnn": "h"}
"""Cell → its gates, in the order of torch: input, forget, cell and output; reset, update and new."""
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Direction → for each one, whether it goes from the end of a sequence to its start."""
DEFAULTS = {
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "rnn": ("tanh",),
}
"""Cell → the activations of its gates; of an LSTM: of its gates, of the cell's gate, and of the cell's state."""
ACTIVATIONS: dict[str, tuple[float, ...]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0,),
    "hard_sigmoid": (0.2, 0.5),
    "leaky_relu": (0.01,),
    "relu": (),
    "scaled_tanh": (1.0, 1.0),
    "sigmoid": (),
    "softplus": (),
    "softsign": (),
    "tanh": (),
    "thresholded_relu": (1.0,),
}
"""The activations, with the defaults of their numbers (alpha, beta), which are ONNX's."""
PANEL = 16
"""Units that are side by side in a packed weight: a vector of the widest registers."""
_WRITTEN = re.compile(r"([a-z_]+)(?:\(([^()]*)\))?")


@dataclass(frozen=True)
class Activation:
    """A function of an element, with its numbers."""

    name: str
    numbers: tuple[float, ...] = ()

    @classmethod
    def read(cls, text: str) -> Activation:
        """The activation of a text: `tanh`, `leaky_relu(0.2)`. Raises: ValueError, which says what is wrong."""
        found = _WRITTEN.fullmatch(text.replace(" ", ""))
        if found is None or found[1] not in ACTIVATIONS:
            raise ValueError(f"{text!r} is none of {', '.join(sorted(ACTIVATIONS))}")
        default = ACTIVATIONS[found[1]]
        given = found[2].split(",") if found[2] else []
        if len(given) > len(default):
            raise ValueError(f"{text!r} has {len(given)} numbers, {found[1]} takes {len(default)}")
        try:
            numbers = tuple(map(float, given))
        except ValueError:
            raise ValueError(f"{text!r}: {found[2]!r} is not a number") from None
        return cls(found[1], numbers + default[len(numbers) :])


@dataclass(frozen=True)
class Cell:
    """The step of a recurrent network, in one direction or both."""

    kind: str
    """`lstm`, `gru` or `rnn`."""
    direction: str = "forward"
    activations: tuple[str, ...] = ()
    """As they are written: those of a direction, or of both one after the other; none: the defaults."""
    clip: float | None = None
    """Bound of the absolute values that the gates' activations take, but not that of the cell's state; None: none."""
    input_forget: bool = False
    """Of an LSTM: is the forget gate 1 minus the input gate?"""
    reset_after: bool = True
    """Of a GRU: is the reset gate multiplied with the product of state and weight, not with the state before?"""

    @property
    def gates(self) -> int:
        """The number of vectors of the hidden size that a step computes."""
        return len(GATES[self.kind])

    @property
    def backward(self) -> tuple[bool, ...]:
        """For each direction, whether it goes from the end of a sequence to its start."""
        return DIRECTIONS[self.direction]

    def functions(self, direction: int) -> Sequence[Activation]:
        """The activations of a direction."""
        count = len(DEFAULTS[self.kind])
        written = self.activations or DEFAULTS[self.kind]
        own = written[direction * count :][:count] if len(written) > count else written
        return [Activation.read(text) for text in own]
