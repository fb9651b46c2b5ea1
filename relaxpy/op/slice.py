"""Regular parts of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, ShapeType, TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum, minimum
from relaxpy.op import te
from relaxpy.op.base import Deduction, Op, Sample, define_op, rand, sample, wrong
from relaxpy.shape.prove import prove


@define_op
class StridedSlice(Op):
    """x[begin:end:stride] along `axes`, as numpy slices: negative places count from the end,
    places beyond the ends mean the ends. Strides are positive constants."""

    name = "strided_slice"

    def deduce(
        self, d: Deduction, x: TensorType, axes: ShapeType, begin: ShapeType, end: ShapeType,
        strides: ShapeType | None = None,
    ) -> TensorType:  # fmt: skip
        assert x.dims is not None
        steps = strides.dims if strides is not None else (Dim.of(1),) * axes.ndim
        for name, places in (("begin", begin), ("end", end)):
            d.require(
                places.ndim == axes.ndim,
                f"{name} has {places.ndim} places for {axes.ndim} axes",
                arg=name,
            )
        d.require(
            steps is not None and len(steps) == axes.ndim,
            "strides must be one for each axis",
            arg="strides",
        )
        assert axes.dims is not None
        assert begin.dims is not None
        assert end.dims is not None
        assert steps is not None
        d.require(all(a.value is not None for a in axes.dims), "axes must be constants", arg="axes")
        named = [d.axis(a.value or 0, x.ndim, "axes") for a in axes.dims]
        d.axes(named, x.ndim, "axes")
        dims = list(x.dims)
        for a, first, last, step in zip(named, begin.dims, end.dims, steps, strict=True):
            stride = step.value or 0
            d.require(
                stride > 0, f"a stride must be a positive constant, got {step}", arg="strides"
            )
            low, high = clipped(first, x.dims[a]), clipped(last, x.dims[a])
            span = _at_least(high - low, 0)
            dims[a] = span if stride == 1 else (span + stride - 1) // stride
        return TensorType(tuple(dims), x.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        x = args[0]
        assert isinstance(x, TensorType)
        return TensorType(None, x.dtype, x.ndim)

    def legalize(
        self, out: TensorType, x: te.Tensor, axes: Any, begin: Any, end: Any, strides: Any = None
    ) -> te.Tensor:
        sizes = te.dims(x)
        named = [(a.value or 0) % len(sizes) for a in te.dims(axes)]
        starts = dict(zip(named, te.dims(begin), strict=True))
        steps = dict(zip(named, te.dims(strides), strict=True)) if strides else {}

        def place(a: int, i: Any) -> Any:
            if a not in starts:
                return i
            return te.dim(clipped(starts[a], sizes[a])) + i * te.dim(steps.get(a, 1))

        return te.compute(
            out.dims, lambda *i: x(*(place(a, v) for a, v in enumerate(i))), "strided_slice"
        )

    def reference(
        self, x: np.ndarray, axes: tuple[int, ...], begin: tuple[int, ...], end: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
    ) -> np.ndarray:  # fmt: skip
        index = [slice(None)] * x.ndim
        for i, a in enumerate(axes):
            index[a] = slice(begin[i], end[i], strides[i] if strides is not None else 1)
        return np.ascontiguousarray(x[tuple(index)])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(6, 5), (0,), (1,), (4,), dims="n 5, 0, 1, 4")
        yield sample(
            cls(), rand(6, 5), (0, 1), (0, 1), (4, 5), (2, 2), dims="n 5, 0 1, 0 1, k 5, 2 2"
        )
        yield sample(cls(), rand(3, 8), (-1,), (-3,), (99,), dims="n m, -1, -3, 99")
        yield sample(cls(), rand(3, 8), (1,), (6,), (2,), dims="n 8, 1, 6, 2")
        yield sample(cls(), rand(6, 2), (0,), (2,), (6,), dims="n 2, 0, k, n")
        yield sample(cls(), rand(0, 2), (0,), (0,), (3,), dims="n 2, 0, 0, 3")
        yield wrong(cls(), rand(6, 5), (2,), (0,), (1,), code="op-axis", match="2")
        yield wrong(cls(), rand(6, 5), (0,), (0, 1), (1,), code="op-arguments", match="begin")
        yield wrong(
            cls(), rand(6, 5), (0,), (0,), (1,), (0,), code="op-arguments", match="positive"
        )


def clipped(place: Dim, size: Dim) -> Dim:
    """A place of a slice, counted from the front and brought into 0…size, simplified by what can
    be proved."""
    if not prove(dim_op("le", 0, place)):
        if prove(dim_op("lt", place, 0)):
            place = place + size
        else:
            place = dim_op("select", dim_op("lt", place, 0), place + size, place)
        place = _at_least(place, 0)
    return place if prove(dim_op("le", place, size)) else minimum(place, size)


def _at_least(value: Dim, low: int) -> Dim:
    return value if prove(dim_op("le", low, value)) else maximum(value, low)
