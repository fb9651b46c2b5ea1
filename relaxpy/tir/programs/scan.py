"""Scans (running totals) as a tensor program: every row in order, with one total."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from relaxpy.ir.dim import Dim, product
from relaxpy.ir.dtype import DType
from relaxpy.tir import te
from relaxpy.tir.numerics import scalar
from relaxpy.tir.programs.loops import Buffer, Expr
from relaxpy.tir.programs.rows import Cell, cell, rows
from relaxpy.tir.programs.serial import Serial, serial
from relaxpy.tir.tvm import tirx


def scan(
    x: te.Tensor,
    shape: Sequence[Dim],
    axis: int | None,
    dtype: DType,
    combine: Callable[[Any, Any], Any],
    start: float,
    exclusive: bool = False,
) -> te.Tensor:
    """Combine the elements along `axis` one after the other, from the value `start`. The result at each index includes
    the elements up to it, or (with `exclusive`) those before it. Without an axis: over all elements in order, as one
    row.

    Elements are converted to `dtype` first. Narrow floats are accumulated in float32, and every result is rounded.
    """
    wide = DType("float32") if DType(dtype).is_narrow else dtype
    neutral = tirx.const(start, str(wide))

    def step(total: Cell, value: Expr, write: Callable[[Expr], None]) -> None:
        """Add one more value to the total, and write a result."""
        if exclusive:
            write(scalar.cast(total.get(), dtype))
        total.set(combine(total.get(), scalar.cast(scalar.cast(value, dtype), wide)))
        if not exclusive:
            write(scalar.cast(total.get(), dtype))

    def fill(p: Serial, out: Buffer, source: Buffer) -> None:
        others = [] if axis is None else [*shape[:axis], *shape[axis + 1 :]]
        along = shape if axis is None else [shape[axis]]
        with rows(p, others) as row:
            total = cell(p, "total", neutral)
            with p.loops(list(map(te.dim, along))) as i:
                place = i if axis is None else [*row[:axis], *i, *row[axis:]]
                target = [_row_major(i, shape)] if axis is None else place
                step(total, p.read(source, *place), partial(_write, p, out, target))

    out = [product(tuple(shape))] if axis is None else shape
    return serial((out, str(dtype)), [x], fill, "scanned")


def _write(p: Serial, out: Buffer, place: Sequence[Expr], value: Expr) -> None:
    p.write(out, *place, value=value)


def _row_major(place: Sequence[Expr], shape: Sequence[Dim]) -> Expr:
    """The row-major flat index of `place` in a tensor of `shape`."""
    offset = te.dim(0)
    for i, size in zip(place, shape, strict=True):
        offset = offset * te.dim(size) + i
    return offset
