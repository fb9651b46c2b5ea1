"""Recurrent layers while torch traces: torch unrolls them for the example's length; here each is one operator, of any
length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from relaxpy.frontend.torch.refused import REFUSED

_RESULTS = {"lstm": 3, "gru": 2, "rnn_tanh": 2, "rnn_relu": 2}


@cache
def _operators() -> dict[str, Any]:
    """Our operators in torch, by the names of torch's functions."""
    import torch

    library = torch.library.Library("relaxpy", "FRAGMENT")
    found: dict[str, Any] = {"": library}  # which lives as long as its operators
    for name, count in _RESULTS.items():
        state = "Tensor[] state" if name == "lstm" else "Tensor state"
        results = ", ".join(["Tensor"] * count)
        rest = (
            "Tensor[] weights, bool bias, int layers, float dropout, bool train, bool bidirectional"
        )
        library.define(f"{name}(Tensor x, {state}, {rest}, bool batch_first) -> ({results})")
        library.impl(name, getattr(torch._VF, name), "CompositeExplicitAutograd")
        # Only of programs: the padded sequences of a packed one.
        library.define(f"packed_{name}(Tensor x, {state}, {rest}, Tensor lengths) -> ({results})")
        for each in (name, f"packed_{name}"):
            torch.library.register_fake(f"relaxpy::{each}", _shapes(name), lib=library)
            found[each] = getattr(torch.ops.relaxpy, each)
    return found


def _shapes(name: str) -> Callable[..., Any]:
    def shapes(x: Any, state: Any, *rest: Any) -> Any:
        bidirectional = rest[5]
        states = list(state) if name == "lstm" else [state]
        width = states[0].shape[-1] * (2 if bidirectional else 1)
        return x.new_empty([*x.shape[:-1], width]), *(s.new_empty(s.shape) for s in states)

    return shapes


class Steps:
    """In place of the batch sizes of a packed sequence, while torch traces: how long each of the sequences is. Rows of
    packed sequences are those of padded ones, (length, batch, …), where `mask` is true: their number is of the run."""

    def __init__(self, length: Any, lengths: Any) -> None:
        import torch

        self.length, self.lengths = length, lengths
        self.device = torch.device("cpu")
        self.longest = lengths.max().item()
        torch._check(self.longest >= 0)
        torch._check(self.longest <= length)
        self.mask = torch.arange(length)[:, None] < lengths[None]
        self._padded: list[tuple[Any, Any]] = []

    def __getitem__(self, step: int) -> Any:
        """How many sequences have this step; all have the first."""
        if step != 0:
            raise NotImplementedError(REFUSED["aten._pack_padded_sequence"])
        return self.lengths.shape[0]

    def size(self, axis: int = 0) -> Steps:
        """How many steps the longest has: this itself, for `pad_packed_sequence` to compare."""
        return self

    def __gt__(self, length: Any) -> bool:
        import torch

        torch._check(self.longest <= length)
        return False

    def packed(self, padded: Any) -> Any:
        rows = padded[self.mask]
        self._padded.append((rows, padded))
        return rows

    def padded(self, rows: Any) -> Any:
        """What was packed; 0 where rows that the user made have none."""
        for packed, padded in self._padded:
            if packed is rows:
                return padded
        empty = rows.new_zeros((self.length, self.lengths.shape[0], *rows.shape[1:]))
        return empty.index_put((self.mask,), rows)


def _pack(x: Any, lengths: Any, batch_first: bool) -> tuple[Any, Any]:
    x = x.transpose(0, 1) if batch_first else x
    steps = Steps(x.shape[0], lengths)
    return steps.packed(x), steps


def _pad(rows: Any, steps: Steps, batch_first: bool, value: float, length: Any) -> tuple[Any, Any]:
    import torch

    x = steps.padded(rows)
    mask = steps.mask.reshape(*steps.mask.shape, *[1] * (x.ndim - 2))
    x = torch.where(mask, x, value)
    if length is steps:
        x = x[: steps.longest]
    else:
        x = torch.nn.functional.pad(
            x, (0, 0) * (x.ndim - 1) + (0, length - x.shape[0]), value=value
        )
    return x.transpose(0, 1) if batch_first else x, steps.lengths


@contextmanager
def whole_layers() -> Iterator[None]:
    """Let torch's recurrent modules call our operators while the block runs, with packed sequences, too."""
    from torch.nn.modules import rnn
    from torch.nn.utils import rnn as sequences

    own = rnn._VF
    operators = _operators()

    class Functions:
        _pack_padded_sequence = staticmethod(_pack)
        _pad_packed_sequence = staticmethod(_pad)

        def __getattr__(self, name: str) -> Any:
            function = getattr(own, name)
            if name not in operators:
                return function

            def call(*args: Any) -> Any:
                if not isinstance(args[1], Steps):
                    return operators[name](*args)
                rows, steps, *rest = args
                found = operators[f"packed_{name}"](steps.padded(rows), *rest, steps.lengths)
                return steps.packed(found[0]), *found[1:]

            return call

    rnn._VF = sequences._VF = Functions()
    setattr(rnn, "int", lambda size: size)  # noqa: B010  its `int` of the batch would fix it
    try:
        yield
    finally:
        rnn._VF = sequences._VF = own
        delattr(rnn, "int")
