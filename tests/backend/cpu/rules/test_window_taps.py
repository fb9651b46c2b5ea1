"""Taps of a block of rows: how many there are, what they share, and windows whose taps are not written one by one."""

from __future__ import annotations

from typing import Any

import pytest

from relaxpy.backend.cpu.rules.window_taps import BLOCKS, Block
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.op import te
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Stage
from relaxpy.tir.recognise.windows import Walk, read_walks

Size = int | Dim


def maxima(height: Size, kernel: Size, stride: Size = 1) -> tuple[Stage, list[tuple[Walk, ...]]]:
    """A pooling without padding of images with so many rows of results."""
    width = SymVar("w").dim
    x = te.placeholder((SymVar("h").dim, width + 8), "float32", "x")
    k = [te.reduce_axis(kernel, f"k{n}") for n in range(2)]

    step = te.dim(stride)

    def largest(i: Any, j: Any) -> Any:
        return te.max(te.element(x(i * step + k[0], j + k[1])), k)

    y = te.compute((height, width), largest, "y")
    found = s.stages_of(PrimFunc.from_te([x], [y]).func)
    assert found is not None
    (stage,) = found
    axes = (*stage.axes, *stage.reduce_axes)
    extents: dict[Any, Any] = dict(zip(axes, (*stage.extents, *stage.reduce_extents), strict=True))
    walks = read_walks(stage.loads[0], (), extents)
    assert walks is not None
    return stage, [walks]


@pytest.mark.parametrize(
    ("height", "rows"),
    [(56, 4), (14, 7), (7, 7), (25, 5), (13, 4), (2, 2), (SymVar("n").dim, BLOCKS[0])],
)
def test_rows(height: Size, rows: int) -> None:
    """Blocks divide the rows where they are known and a block of a usual size does."""
    assert Block.of(*maxima(height, 3)).rows == rows


def test_neighbours_share_lines() -> None:
    """Four rows of windows of three read six lines, with a step of two nine."""
    for stride, lines in ((1, 6), (2, 9)):
        block = Block.of(*maxima(8, 3, stride))
        assert (block.axes, len(block.taps)) == (2, 4 * 9)
        assert sorted({tap.lines[0] for tap in block.taps}) == [(n,) for n in range(lines)]
        assert {tap.lasts[0] for tap in block.taps} == {0, 1, 2}


def test_the_order_of_a_row_is_that_of_its_window() -> None:
    block = Block.of(*maxima(8, 3, 2))
    for row in range(block.rows):
        places = [tap.place for tap in block.taps if tap.row == row]
        assert places == sorted(places)
        assert all(
            tap.lines[0][0] == 2 * row + tap.place[0] for tap in block.taps if tap.row == row
        )


def test_long_windows_are_loops() -> None:
    """Of a window of 15 the last axis alone has few enough taps; of an unknown one, or with none allowed, no axis."""
    assert Block.of(*maxima(8, 15)).axes == 1
    for block in (Block.of(*maxima(8, SymVar("k").dim)), Block.of(*maxima(8, 3), 0)):
        assert (block.rows, block.axes, len(block.taps)) == (1, 0, 1)


def test_unknown_steps_are_loops() -> None:
    assert Block.of(*maxima(8, 3, SymVar("s").dim)).axes == 0
