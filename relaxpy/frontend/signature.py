"""What goes into a program of torch and comes out of it, as plain data.

A `Signature` says how the nested arguments of a call become the parameters of `main`, and how its results become the
nested results. The structure of arguments and results is torch's own text of it (JSON).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Input:
    """A leaf of the arguments, the seed of random numbers, or a buffer that a call changes."""

    kind: Literal["tensor", "int", "constant", "seed", "buffer"]
    name: str
    """The parameter of `main`; for a constant, what it is in the arguments."""
    value: Any = None
    """The value of a constant, which must be given at every call; the path of a buffer."""


@dataclass(frozen=True)
class Output:
    """A leaf of the results, or the new value of an input."""

    kind: Literal["tensor", "number", "constant", "input", "update"]
    index: int = -1
    """Which result of `main`; for an argument that is returned itself, which input."""
    value: Any = None
    """The value of a constant; the name of the input that is updated."""


@dataclass(frozen=True)
class Signature:
    """How arguments become parameters of `main`, and results of `main` those of the call."""

    inputs: tuple[Input, ...]
    """Leaves of the arguments in order, a seed if random numbers are drawn, then the buffers that a call changes."""
    outputs: tuple[Output, ...]
    """Leaves of the results in order, and the updates."""
    arguments: str
    """The structure of `(args, kwargs)`, as torch writes it."""
    results: str
    names: tuple[str, ...] = ()
    """The names of the positional parameters."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Signature:
        return Signature(
            tuple(Input(**each) for each in data["inputs"]),
            tuple(Output(**each) for each in data["outputs"]),
            data["arguments"],
            data["results"],
            tuple(data["names"]),
        )
