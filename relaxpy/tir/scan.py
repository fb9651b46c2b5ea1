"""Running totals as a tensor program: every row in order, rows in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relaxpy.ir.dim import Dim, product
from relaxpy.ir.dtype import DType
from relaxpy.tir import scalar, te
from relaxpy.tir._tvm import tirx
from relaxpy.tir.loops import Buffer, Expr
from relaxpy.tir.rows import cell, rows
from relaxpy.tir.serial import Serial, serial


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
    others = [] if axis is None else [*shape[:axis], *shape[axis + 1 :]]
    wide = DType("float32") if dtype in ("float16", "bfloat16") else dtype

    def fill(p: Serial, out: Buffer, source: Buffer) -> None:
        with rows(p, others) as outer:
            total = cell(p, "total", tirx.const(start, str(wide)))
            steps = shape if axis is None else [shape[axis]]
            with p.loops(list(map(te.dim, steps))) as along:
                if axis is None:
                    place, target = along, [_row_major(along, shape)]
                else:
                    place = target = [*outer[:axis], *along, *outer[axis:]]
                element = scalar.cast(scalar.cast(p.read(source, *place), dtype), wide)
                if exclusive:
                    p.write(out, *target, value=scalar.cast(total.get(), dtype))
                total.set(combine(total.get(), element))
                if not exclusive:
                    p.write(out, *target, value=scalar.cast(total.get(), dtype))

    out = [product(tuple(shape))] if axis is None else shape
    return serial((out, str(dtype)), [x], fill, "scanned")


def _row_major(place: Sequence[Expr], shape: Sequence[Dim]) -> Expr:
    """How many elements of a tensor of `shape` lie before `place`."""
    offset = te.dim(0)
    for i, size in zip(place, shape, strict=True):
        offset = offset * te.dim(size) + i
    return offset
