"""The picture of a memory plan (SVG): time runs from left to right, addresses from top to bottom, and a tensor is a
rectangle."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING

from relaxpy.runtime.function_listing import printable
from relaxpy.runtime.inspect.units import shown

if TYPE_CHECKING:
    from relaxpy.runtime.inspect.memory_plan import FunctionPlan, MemoryPlan, PlannedTensor

NAMESPACE = "http://www.w3.org/2000/svg"
WIDTH, LEFT, RIGHT = 1100, 90, 20
BAND, CURVE, GAP = 300, 80, 70
"""Heights: of a function's storages together, of the curve below them, and of the gap between functions."""
LETTER = 6.2
"""The width of a letter of a label."""
COLOURS = (
    "#8dd3c7", "#ffed6f", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69", "#fccde5", "#bc80bd", "#ccebc5",
)  # fmt: skip


def timeline(plan: MemoryPlan) -> str:
    """The picture, with all functions below each other."""
    parts: list[str] = []
    top = 40
    for function in plan.functions:
        parts += _function(function, top)
        top += BAND + CURVE + GAP
    return "\n".join(
        [
            f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {WIDTH} {top}" font-size="11" font-family="sans-serif">',
            f'<rect width="{WIDTH}" height="{top}" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _function(function: FunctionPlan, top: int) -> Iterator[str]:
    at = ", ".join(f"{name} = {size}" for name, size in function.sizes.items())
    title = f"{function.name}({at}): {shown(function.planned)}, {shown(function.least)} in use at the busiest moment"
    yield f'<text x="{LEFT}" y="{top - 8}" font-size="14" font-weight="bold">{_escaped(title)}</text>'
    planned = [t for t in function.tensors if t.storage >= 0]
    starts = _starts(function.storages)
    for storage, (size, start) in enumerate(zip(function.storages, starts, strict=True)):
        y, height = _y(function, top, start), _height(function, size)
        yield _rect(LEFT, y, WIDTH - LEFT - RIGHT, height, "#f4f4f4", "#999")
        if height > 12:
            name = "" if len(starts) == 1 else f"storage {storage}"
            yield _text(LEFT - 6, y + 12, shown(size), "end")
            yield _text(LEFT - 6, y + 24, name, "end") if height > 26 else ""
    for tensor in planned:
        yield from _tensor(function, tensor, top, starts[tensor.storage])
    yield from _curve(function, planned, top + BAND + 14)


def _tensor(function: FunctionPlan, tensor: PlannedTensor, top: int, start: int) -> Iterator[str]:
    x, right = _x(function, tensor.begin), _x(function, tensor.end + 1)
    y, height = _y(function, top, start + tensor.offset), _height(function, tensor.nbytes)
    # Only the file's name, since a picture may be viewed on other machines.
    where = f" {PurePath(tensor.place.file).name}:{tensor.place.line}" if tensor.place.file else ""
    time = f"instructions {tensor.begin} to {tensor.end}"
    about = f"{tensor.name}: {shown(tensor.nbytes)} at {tensor.offset}, {time}{where}"
    colour = COLOURS[zlib.crc32(printable(tensor.name).encode()) % len(COLOURS)]
    yield f"<g><title>{_escaped(about)}</title>"
    yield _rect(x, y, right - x, height, colour, "#555")
    if height > 12 and right - x > LETTER * len(tensor.name) + 6:
        yield _text(x + 3, y + min(height / 2 + 4, 14), tensor.name)
    yield "</g>"


def _curve(function: FunctionPlan, tensors: Sequence[PlannedTensor], top: int) -> Iterator[str]:
    """The memory in use at each instruction, below the planned memory."""
    if not function.planned:
        yield _text(LEFT, top + 12, "nothing is planned")
        return
    points: list[str] = []
    for position, nbytes in enumerate(function.demand(tensors)):
        y = top + CURVE - 14 - (CURVE - 14) * nbytes / function.planned
        points += [f"{_x(function, p):.1f},{y:.1f}" for p in (position, position + 1)]
    bottom = top + CURVE - 14
    corners = f"{LEFT},{bottom} {' '.join(points)} {WIDTH - RIGHT},{bottom}"
    yield f'<polygon points="{corners}" fill="#9ecae1" stroke="#3182bd"/>'
    yield f'<line x1="{LEFT}" y1="{top}" x2="{WIDTH - RIGHT}" y2="{top}" stroke="#d62728" stroke-dasharray="4"/>'
    yield _text(LEFT - 6, top + 4, "taken", "end")
    yield _text(LEFT - 6, bottom, "in use", "end")


def _starts(storages: Sequence[int]) -> list[int]:
    """The start of each storage if they are stacked."""
    found, end = [], 0
    for size in storages:
        found.append(end)
        end += size
    return found


def _x(function: FunctionPlan, position: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * position / max(1, function.length)


def _y(function: FunctionPlan, top: int, nbytes: int) -> float:
    return top + _height(function, nbytes)


def _height(function: FunctionPlan, nbytes: int) -> float:
    return BAND * nbytes / max(1, function.planned)


def _rect(x: float, y: float, width: float, height: float, fill: str, stroke: str) -> str:
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{fill}" stroke="{stroke}" stroke-width="0.5"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    """Names come from files: characters that do not print, or cannot be encoded, are shown as escapes."""
    return escape(printable(text))
