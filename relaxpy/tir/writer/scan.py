"""Running totals as a tensor program: every row in order, rows in parallel; along an axis that is not the last, many
neighbouring columns at a time, which LLVM makes vectors of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from relaxpy.ir.dim import Dim, product
from relaxpy.ir.dtype import DType
from relaxpy.tir import te
from relaxpy.tir.numerics import scalar
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer.loops import Buffer, Expr, minimum
from relaxpy.tir.writer.rows import Cell, cell, rows, scratch
from relaxpy.tir.writer.serial import Serial, serial

COLUMNS = 64
"""Columns whose totals one task holds, in registers or nearly so."""


def scan(
    x: te.Tensor,
    shape: Sequence[Dim],
    axis: int | None,
    dtype: DType,
    combine: Callable[[Any, Any], Any],
    start: float,
    exclusive: bool = False,
) -> te.Tensor:
    """The results of joining elements along `axis` one after the other, from the value `start`: at each place those
    up to it, or (with `exclusive`) those before it. Without an axis: over all elements in order, as one row.

    Elements are converted to `dtype` first; narrow floats are joined in float32 and every result is rounded.
    """
    wide = DType("float32") if DType(dtype).is_narrow else dtype
    neutral = tirx.const(start, str(wide))

    def step(total: Cell, value: Expr, write: Callable[[Expr], None]) -> None:
        """Join one more value to the total, and write a result."""
        if exclusive:
            write(scalar.cast(total.get(), dtype))
        total.set(combine(total.get(), scalar.cast(scalar.cast(value, dtype), wide)))
        if not exclusive:
            write(scalar.cast(total.get(), dtype))

    def along_rows(p: Serial, out: Buffer, source: Buffer) -> None:
        with rows(p, [] if axis is None else shape[:-1]) as outer:
            total = cell(p, "total", neutral)
            steps = shape if axis is None else shape[-1:]
            with p.loops(list(map(te.dim, steps))) as along:
                target = [_row_major(along, shape)] if axis is None else [*outer, *along]
                write = partial(_write, p, out, target)
                step(total, p.read(source, *outer, *along), write)

    def along_columns(p: Serial, out: Buffer, source: Buffer) -> None:
        assert axis is not None
        width = te.dim(shape[-1])
        groups = (shape[-1] + (COLUMNS - 1)) // COLUMNS
        with rows(p, [*shape[:axis], *shape[axis + 1 : -1], groups]) as outer:
            first = p.let("first", outer[-1] * te.dim(COLUMNS))
            count = p.let("count", minimum(COLUMNS, width - first))
            totals = scratch(p, "totals", COLUMNS, str(wide))
            with p.loop("j", COLUMNS) as j:
                p.write(totals, j, value=neutral)
            with p.loop("i", te.dim(shape[axis])) as i, p.loop("j", count) as j:
                place = [*outer[:axis], i, *outer[axis:-1], first + j]
                step(Cell(p, totals, j), p.read(source, *place), partial(_write, p, out, place))

    fill = along_rows if axis is None or axis == len(shape) - 1 else along_columns
    out = [product(tuple(shape))] if axis is None else shape
    return serial((out, str(dtype)), [x], fill, "scanned")


def _write(p: Serial, out: Buffer, place: Sequence[Expr], value: Expr) -> None:
    p.write(out, *place, value=value)


def _row_major(place: Sequence[Expr], shape: Sequence[Dim]) -> Expr:
    """How many elements of a tensor of `shape` lie before `place`."""
    offset = te.dim(0)
    for i, size in zip(place, shape, strict=True):
        offset = offset * te.dim(size) + i
    return offset
