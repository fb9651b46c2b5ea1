"""Reading at places: gather, slices, and choosing by a condition. No index, however wrong, reads
outside of its tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, ShapeType, TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum, minimum
from relaxpy.ir.dtype import DType
from relaxpy.op import te
from relaxpy.op.base import Deduction, Op, Sample, define_op, rand, sample, wrong
from relaxpy.shape.prove import prove


@define_op
class Take(Op):
    """Slices of x at `indices` along `axis`, as `numpy.take`. An index out of range reads the
    nearest place (mode "clip", also called "fast"), or counts around (mode "wrap"); a slice of an
    empty axis is 0."""

    name = "take"
    axis: int | None = None
    """Axis of x that is indexed; None where x has only one."""
    mode: str = "clip"

    def deduce(self, d: Deduction, x: TensorType, indices: TensorType) -> TensorType:
        d.need_int(indices, "indices")
        assert x.dims is not None
        assert indices.dims is not None
        d.require(
            self.mode in ("clip", "fast", "wrap"),
            f"mode {self.mode!r} is none of clip, fast, wrap",
            arg="mode",
        )
        if self.axis is None:
            d.require(
                x.ndim == 1,
                f"axis must be given for {x.ndim} dimensions",
                code="op-axis",
                arg="axis",
            )
        axis = d.axis(self.axis or 0, x.ndim)
        return TensorType((*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :]), x.dtype)

    def legalize(self, out: TensorType, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        size = te.dims(x)[axis := (self.axis or 0) % len(x.shape)]
        count, extent = len(indices.shape), te.dim(size)

        def element(*i: Any) -> Any:
            at = te.cast(indices(*i[axis : axis + count]), DType("int64"))
            if self.mode == "wrap":
                at = te.floor_mod(at, extent)
            else:
                at = te.maximum(te.minimum(at, extent - 1), te.dim(0))
            read = te.element(x(*i[:axis], at, *i[axis + count :]))
            if size.value:
                return read
            return te.if_then_else(extent > 0, read, te.literal(0, read))

        return te.compute(out.dims, element, "take")

    def reference(self, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        axis = (self.axis or 0) % x.ndim
        if x.shape[axis] == 0:
            return np.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
        mode = "wrap" if self.mode == "wrap" else "clip"
        return np.asarray(np.take(x, indices.astype(np.int64), axis=axis, mode=mode))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ids = np.array([[0, 3, 2], [1, -5, 99]], np.int64)
        yield sample(cls(0), rand(4, 5), ids, dims="4 5, n m")
        yield sample(cls(1), rand(2, 4, 3), ids.astype(np.int32), dims="n 4 3, m 3")
        yield sample(cls(-1, mode="wrap"), rand(2, 4), ids, dims="n m, 2 k")
        yield sample(cls(), rand(4), np.array(2, np.int64), dims="n,")
        yield sample(cls(0), rand(0, 3), ids[0], dims="n 3, k")
        yield sample(cls(0), rand(4, 3), ids[0, :0], dims="n 3, k")
        yield wrong(cls(0), rand(4, 5), rand(3), code="op-dtype", match="indices must be integers")
        yield wrong(cls(), rand(4, 5), ids, code="op-axis", match="axis must be given")
        yield wrong(cls(2), rand(4, 5), ids, code="op-axis", match="2")
        yield wrong(cls(0, mode="nearest"), rand(4, 5), ids, code="op-arguments", match="nearest")


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


@define_op
class Where(Op):
    """x1 where the condition is true, else x2; all three are broadcast."""

    name = "where"
    scalar_args = True

    def deduce(
        self, d: Deduction, condition: TensorType, x1: TensorType, x2: TensorType
    ) -> TensorType:
        d.require(
            condition.dtype == "bool",
            f"condition must be bool, got {condition.dtype}", arg="condition", code="op-dtype",
            help='cast it: R.astype(condition, "bool")',
        )  # fmt: skip
        dtype = d.same_dtype(x1, x2)
        assert condition.dims is not None
        assert x1.dims is not None
        assert x2.dims is not None
        shape = d.broadcast(condition.dims, x1.dims, x2.dims)
        return TensorType(shape, dtype, max(condition.ndim, x1.ndim, x2.ndim))

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        known = [a.dtype for a in args[1:] if isinstance(a, TensorType) and a.dtype is not None]
        return TensorType(None, known[0] if known else None)

    def legalize(
        self, out: TensorType, condition: te.Tensor, x1: te.Tensor, x2: te.Tensor
    ) -> te.Tensor:
        def element(*i: Any) -> Any:
            c, a, b = (te.element(te.broadcast(x, out.dims or (), i)) for x in (condition, x1, x2))
            return te.select(c, a, b)

        return te.compute(out.dims, element, "where")

    def reference(self, condition: np.ndarray, x1: np.ndarray, x2: np.ndarray) -> np.ndarray:
        return np.where(condition, x1, x2)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        flags = rand(3, 1, dtype="bool")
        yield sample(cls(), flags, rand(3, 5), rand(5), dims="n 1, n m, m")
        yield sample(
            cls(), rand(4, dtype="bool"), rand(4, dtype="int32"), rand(dtype="int32"), dims="n, n,"
        )
        yield sample(cls(), rand(0, dtype="bool"), rand(0), rand(1), dims="n, n, 1")
        yield wrong(
            cls(), rand(3), rand(3), rand(3), code="op-dtype", match="condition must be bool"
        )
        yield wrong(
            cls(), flags, rand(3, 2), rand(3, dtype="int32"), code="op-dtype", match="int32"
        )
        yield wrong(cls(), flags, rand(3, 2), rand(3), code="shape-mismatch", match="2 and 3")
