"""The Python that a function of an executable became."""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.runtime.devices.lines import DeviceLines
from relaxpy.runtime.frame import FramePlan
from relaxpy.runtime.nesting import Arm


@dataclass(slots=True)
class Listing:
    """The Python source of a function, and what its names mean."""

    name: str
    lines: list[str]
    origin: list[int]
    """Line (from 0) → instruction, -1 for the frame around them."""
    plan: FramePlan
    devices: tuple[DeviceLines, ...]
    """What wrote the lines of its slots."""
    generator: bool
    arms: list[Arm]
    """Branches at every 80th level, inner ones first: what is compiled in pieces."""
    comments: dict[int, str]
    """Line (from 0) → the binding that it is of."""
    texts: list[str]
    """The texts that the names `q<i>` are bound to."""

    @property
    def text(self) -> str:
        """The lines with their comments, for people."""
        lines = list(self.lines)
        for line, comment in self.comments.items():
            lines[line] += f"  # {printable(comment)}"
        return "\n".join(lines) + "\n"


def printable(text: str) -> str:
    """A text on one line, with escapes for what is no visible character."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
