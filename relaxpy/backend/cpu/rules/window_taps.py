"""Taps: the positions of all windows of a block of rows, and the data that each of them reads.

A *tap* is one position of the window of one row. Windows of neighbouring rows overlap, so that several taps read the
same *line* of data: the same position along all dimensions but the last.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.backend.knobs import knob
from relaxpy.tir.programs import loops
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Stage
from relaxpy.tir.recognise.windows import Walk

BLOCKS = (4, 7, 5, 6, 3)
"""Rows of a block: the first of these that divides the rows of the output, or else the first. The sums of so many rows
are in registers, with the weights and what is read."""

MOST_TAPS = 200
"""The most taps of a block. More positions of a window are loops."""


@dataclass(frozen=True)
class Tap:
    """One position of the window of one row."""

    row: int
    """The number of the row in its block."""
    place: tuple[int, ...]
    """The positions along the last axes of the window."""
    lines: tuple[tuple[int, ...], ...]
    """For each read, how far its line is from the one of the block's first tap, along each dimension."""
    lasts: tuple[int, ...]
    """For each read, how far it is from there along the last dimension."""


@dataclass(frozen=True)
class Block:
    """The rows that are computed together."""

    rows: int
    axes: int
    """How many of the window's last axes the taps go through; the others are loops around them."""
    taps: tuple[Tap, ...]
    """In the order of the lines of the first read, then of rows; those of a row are in the order of its window."""

    @classmethod
    def of(cls, window: Stage, reads: Sequence[tuple[Walk, ...]], most: int = MOST_TAPS) -> Block:
        """The block, of at most so many taps, of a reduction over windows that reads data along these walks. A block of
        one tap goes through no axes: the whole window is loops around it."""
        extents = [loops.constant(extent) for extent in window.reduce_extents]
        rows, axes = _rows(window), len(extents)
        while (
            axes and math.prod(most + 1 if e is None else e for e in extents[-axes:]) * rows > most
        ):
            axes -= 1
        steps = [[_steps(walk, window, axes) for walk in walks] for walks in reads]
        if axes == 0 or any(step is None for walks in steps for step in walks):
            lines = tuple((0,) * (len(walks) - 1) for walks in reads)
            return cls(1, 0, (Tap(0, (), lines, (0,) * len(reads)),))
        taps: list[Tap] = []
        for place in itertools.product(*(range(extent or 0) for extent in extents[-axes:])):
            for row in range(rows):
                at = [tuple(_moved(step or (), (row, *place)) for step in each) for each in steps]
                lines, lasts = tuple(each[:-1] for each in at), tuple(each[-1] for each in at)
                taps.append(Tap(row, place, lines, lasts))
        return cls(
            rows, axes, tuple(sorted(taps, key=lambda tap: (tap.lines[0], tap.row, tap.place)))
        )


def _rows(window: Stage) -> int:
    """The rows of a block whose taps are written one by one."""
    if len(window.axes) < 2:
        return 1
    height = loops.constant(window.extents[-2])
    usual = knob("block", BLOCKS[0], (1, 2, 3, 5, 6, 7, 8))
    if height is None or usual != BLOCKS[0]:
        return usual
    return next((rows for rows in BLOCKS if height % rows == 0), max(1, min(height, usual)))


def _steps(walk: Walk, window: Stage, axes: int) -> tuple[int, ...] | None:
    """How far a read moves along a dimension with the row, and with each of the window's last axes. None if that is not
    known, or backwards."""
    variables = (*window.axes, *window.reduce_axes)
    first = len(variables) - axes
    row = len(window.axes) - 2
    found: list[int] = []
    for number in (row, *range(first, len(variables))):
        step = walk.steps[number] if number >= 0 else None
        known = 0 if step is None else loops.constant(step)
        if known is None or known < 0 or (number >= 0 and s.uses(walk.base, variables[number])):
            return None
        found.append(known)
    return tuple(found)


def _moved(steps: Sequence[int], places: Sequence[int]) -> int:
    return sum(step * place for step, place in zip(steps, places, strict=True))
