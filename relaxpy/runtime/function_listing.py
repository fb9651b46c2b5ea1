"""The generated Python code of a function of an executable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.runtime.devices.line_names import LineNames
from relaxpy.runtime.frame import FramePlan


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """A graph of a function, for its recordings."""

    slot: int
    kernels: tuple[int, ...]
    """The kernels that it launches, as indices of the executable's kernels."""
    launches: int
    inputs: int
    """How many of the movable tensors are only read; the others are results."""


@dataclass(slots=True)
class Listing:
    """The generated Python code of a function, and the values that its names refer to."""

    name: str
    lines: list[str]
    origin: list[int]
    """Line (from 0) → instruction; -1 for lines that belong to no instruction."""
    plan: FramePlan
    devices: tuple[LineNames, ...]
    """The names in the code of each slot."""
    generator: bool
    arms: list[tuple[int, int]]
    """Branches at every 80th nesting level, inner ones first. They are compiled separately."""
    comments: dict[int, str]
    """Line (from 0) → the binding that it belongs to."""
    texts: list[str]
    """The strings that the names `q<i>` are bound to."""
    graphs: tuple[GraphPlan, ...] = ()
    """Its graphs, in the order of `Frame.graphs`."""
    tests: tuple[str, ...] = ()
    """For each parameter a condition that is true if its argument has to be converted (`relaxpy.runtime.entry`)."""
    gives_new: bool = False
    """Whether its results contain no constants, which a caller must not get."""
    classes: Sequence[str] = ()
    """The constructors of data types whose classes the names `D<i>` are bound to."""

    @property
    def text(self) -> str:
        """The lines with their comments, for users."""
        lines = list(self.lines)
        for line, comment in self.comments.items():
            lines[line] += f"  # {printable(comment)}"
        return "\n".join(lines) + "\n"


def printable(text: str) -> str:
    """A text on one line, with escapes for non-printable characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
