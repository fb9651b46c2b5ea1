"""Text of a module: its tree, as torch prints it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxpy.nn.module import Module


def describe(module: Module) -> str:
    """The class of a module, what it says of itself, and its submodules by name; equal neighbours of a list are shown
    once."""
    name, extra = type(module).__name__, module.extra_repr()
    inner = [(name, describe(part)) for name, part in module.named_children()]
    if not inner:
        return f"{name}({extra})"
    lines = [f"({label}): {text}".replace("\n", "\n  ") for label, text in _grouped(inner)]
    return "\n  ".join([f"{name}({extra}", *lines]) + "\n)"


def _grouped(parts: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Numbered parts of equal text in a row as one: (0-3): 4 x Linear(…)."""
    for (text, numbered), group in groupby(parts, key=lambda part: (part[1], part[0].isdigit())):
        names = [name for name, _ in group]
        if numbered and len(names) > 1:
            yield f"{names[0]}-{names[-1]}", f"{len(names)} x {text}"
        else:
            yield from ((name, text) for name in names)


def options(**values: Any) -> str:
    """Options of a layer: `a=1, b=True`."""
    return ", ".join(f"{name}={value}" for name, value in values.items())
