"""Slicing with begin, end and stride along some axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relaxpy.errors import RuntimeCheckError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum, minimum
from relaxpy.ir.expr import Expr, PrimValue
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.op.rule import Cotangent, Rule
from relaxpy.shape.prove import prove

FAR = (1 << 63) - 1
"""An index beyond the end of every axis; its negative is before the beginning. Used for an omitted end, as in
`x[::-1]`."""


@dataclass(frozen=True)
class Places:
    """The indices first, first + step, … along an axis: `count` of them, all in range."""

    first: Dim
    step: Dim
    count: Dim


def sign(stride: Dim) -> int | None:
    """The sign of a stride: 1 or -1, 0 for 0, or None if unknown. A symbol counts as positive: it is a size, and
    checked not to be 0 at run time."""
    if stride.value is not None:
        return (stride.value > 0) - (stride.value < 0)
    if prove(dim_op("le", 0, stride)):
        return 1
    return -1 if prove(dim_op("le", stride, 0)) else None


def places(begin: Dim, end: Dim, stride: Dim, size: Dim, inbound: bool = False) -> Places:
    """The indices of the slice begin:end:stride of an axis, with Python's rules, simplified by proofs. With `inbound`,
    begin and end are taken as they are."""
    up = sign(stride) != -1
    if not inbound:
        lowest = 0 if up else -1
        begin, end = clipped(begin, size, lowest), clipped(end, size, lowest)
    span, step = (end - begin, stride) if up else (begin - end, -stride)
    if not inbound:
        span = _at_least(span, 0)
    if step != 1:
        step = step if step.value is not None else maximum(step, 1)
        span = (span + step - 1) // step
    return Places(begin, stride, span)


def clipped(place: Dim, size: Dim, lowest: int = 0) -> Dim:
    """An end of a slice, counted from the front and clamped to lowest…size + lowest."""
    if place.value is not None and abs(place.value) >= FAR:
        return size + lowest if place.value > 0 else Dim.of(lowest)
    if not prove(dim_op("le", 0, place)):
        if prove(dim_op("lt", place, 0)):
            place = place + size
        else:
            place = dim_op("select", dim_op("lt", place, 0), place + size, place)
        place = _at_least(place, lowest)
    highest = size + lowest
    return place if prove(dim_op("le", place, highest)) else minimum(place, highest)


def _at_least(value: Dim, low: int) -> Dim:
    return value if prove(dim_op("le", low, value)) else maximum(value, low)


def check_stride(d: Deduction, stride: Dim, arg: str) -> None:
    """Refuse a stride that is 0, or whose sign is unknown."""
    direction = sign(stride)
    d.require(direction != 0, "a stride cannot be 0", arg=arg)
    d.require(direction is not None, f"the sign of the stride {stride} is unknown", arg=arg)
    if stride.value is None:
        d.ensure(dim_op("ne", stride, 0), "a stride cannot be 0", arg=arg, code="op-arguments")


@define_op
class StridedSlice(Op):
    """x[begin:end:stride] along `axes`, with numpy's rules: a negative index counts from the end, indices are clamped
    to the axis, and a negative stride goes down from `begin` to just above `end`. With `assume_inbound`, begin and end
    are indices inside x, which is checked at run time, and the sizes of the result are simpler."""

    name = "strided_slice"
    mixed = "follow"
    assume_inbound: bool = False

    def deduce(
        self, d: Deduction, x: KnownTensor, axes: KnownShape, begin: KnownShape, end: KnownShape,
        strides: KnownShape | None = None,
    ) -> TensorType:  # fmt: skip
        steps = strides.dims if strides is not None else (Dim.of(1),) * axes.ndim
        for name, given in (("begin", begin), ("end", end)):
            d.require(
                given.ndim == axes.ndim,
                f"{name} has {given.ndim} entries for {axes.ndim} axes",
                arg=name,
            )
        d.require(
            len(steps) == axes.ndim,
            "strides must have one entry for each axis",
            arg="strides",
        )
        d.require(all(a.value is not None for a in axes.dims), "axes must be constants", arg="axes")
        named = [d.axis(a.value or 0, x.ndim, "axes") for a in axes.dims]
        d.axes(named, x.ndim, "axes")
        dims = list(x.dims)
        for a, first, last, step in zip(named, begin.dims, end.dims, steps, strict=True):
            check_stride(d, step, "strides")
            if self.assume_inbound:
                self._check_inbound(d, first, last, step, x.dims[a])
            dims[a] = places(first, last, step, x.dims[a], self.assume_inbound).count
        return TensorType(tuple(dims), x.dtype)

    def _check_inbound(self, d: Deduction, first: Dim, last: Dim, step: Dim, size: Dim) -> None:
        low, high = (first, last) if sign(step) == 1 else (last + 1, first + 1)
        span = f"{first}:{last}"
        code = "op-arguments"
        d.ensure(dim_op("le", 0, low), f"{span} begins out of bounds", arg="begin", code=code)
        d.ensure(dim_op("le", low, high), f"{span} ends before it begins", arg="end", code=code)
        d.ensure(
            dim_op("le", high, size), f"{span} is out of bounds for size {size}", arg="end",
            code=code,
        )  # fmt: skip

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        x = expect(TensorType, args[0])
        return TensorType(None, x.dtype, x.ndim)

    def legalize(
        self, out: KnownTensor, x: te.Tensor, axes: Any, begin: Any, end: Any, strides: Any = None
    ) -> te.Tensor:
        sizes = te.dims(x)
        steps = te.dims(strides) if strides is not None else (Dim.of(1),) * len(axes)
        taken = {}
        for axis, *ends, step in zip(
            te.dims(axes), te.dims(begin), te.dims(end), steps, strict=True
        ):
            a = (axis.value or 0) % len(sizes)
            taken[a] = places(ends[0], ends[1], step, sizes[a], self.assume_inbound)

        def place(a: int, i: Any) -> Any:
            if a not in taken:
                return i
            return te.dim(taken[a].first) + i * te.dim(taken[a].step)

        return te.compute(
            out.dims, lambda *i: x(*(place(a, v) for a, v in enumerate(i))), "strided_slice"
        )

    def reference(
        self, x: np.ndarray, axes: tuple[int, ...], begin: tuple[int, ...], end: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
    ) -> np.ndarray:  # fmt: skip
        index = [slice(None)] * x.ndim
        for i, a in enumerate(axes):
            step = strides[i] if strides is not None else 1
            below = self.assume_inbound and end[i] == -1  # before the first, not the last
            index[a] = slice(begin[i], None if below else end[i], step)
        return np.ascontiguousarray(x[tuple(index)]).reshape(x[tuple(index)].shape)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        x, axes, begin, end, strides = args
        dims = list(b.dims(x))
        given = zip(sizes_of(axes), sizes_of(begin), sizes_of(end), strict=True)
        steps = sizes_of(strides) if strides is not None else (Dim.of(1),) * len(sizes_of(axes))
        sliced = []
        for (axis, first, last), step in zip(given, steps, strict=True):
            a = (axis.value or 0) % len(dims)
            sliced.append((a, places(first, last, step, dims[a], self.assume_inbound)))
            dims[a] = sliced[-1][1].count
        for a, taken in reversed(sliced):
            dims[a] = b.dims(x)[a]
            ct = written(b, ct, a, taken, dims)
        return [ct]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, y = rand(6, 5), rand(3, 8)
        yield sample(cls(), x, (0,), (1,), (4,), dims="n 5, 0, 1, 4")
        yield sample(cls(), x, (0, 1), (0, 1), (4, 5), (2, 2), dims="n 5, 0 1, 0 1, k 5, 2 2")
        yield sample(cls(), y, (-1,), (-3,), (99,), dims="n m, -1, -3, 99")
        yield sample(cls(), y, (1,), (6,), (2,), dims="n 8, 1, 6, 2")
        yield sample(cls(), rand(6, 2), (0,), (2,), (6,), dims="n 2, 0, k, n")
        yield sample(cls(), rand(0, 2), (0,), (0,), (3,), dims="n 2, 0, 0, 3")
        yield sample(cls(), y, (1,), (6,), (1,), (-2,), dims="n m, 1, 6, 1, -2")
        yield sample(cls(), y, (1,), (-1,), (-99,), (-1,), dims="n m, 1, -1, -99, -1")
        yield sample(
            cls(), y, (1, 0), (99, 2), (-99, 0), (-3, -1), dims="n m, 1 0, 99 2, -99 0, -3 -1"
        )
        yield sample(cls(), y, (1,), (1,), (8,), (3,), dims="n m, 1, 1, m, k")
        inside = cls(assume_inbound=True)
        yield sample(inside, y, (1,), (2,), (7,), (2,), dims="n m, 1, k, l, 2")
        yield sample(inside, y, (1,), (7,), (-1,), (-3,), dims="n m, 1, k, -1, -3")
        yield wrong(cls(), x, (2,), (0,), (1,), code="op-axis", match="2")
        yield wrong(cls(), x, (0, -2), (0, 0), (1, 1), code="op-axis", match="repeats an axis")
        yield wrong(cls(), x, (0,), (0, 1), (1,), code="op-arguments", match="begin")
        yield wrong(cls(), x, (0,), (0,), (1,), (0,), code="op-arguments", match="cannot be 0")
        yield wrong(inside, x, (0,), (-1,), (1,), code="op-arguments", match="begins out of bounds")
        yield wrong(inside, x, (0,), (3,), (2,), code="op-arguments", match="ends before")
        yield wrong(
            inside, x, (0,), (3,), (7,), code="op-arguments", match="out of bounds for size 6"
        )


@define_op
class DynamicStridedSlice(Op):
    """`strided_slice` along all axes with indices known only at run time: begin, end and strides are integer vectors
    with an element for each axis. A stride of 0 is an error at run time."""

    name = "dynamic_strided_slice"
    no_vjp = "where it reads is known only at run time: strided_slice has a rule"
    mixed = "follow"
    legalize = None
    packed: ClassVar[str] = "relaxpy.dynamic_strided_slice"
    """The runtime function."""

    def deduce(
        self,
        d: Deduction,
        x: KnownTensor,
        begin: KnownTensor,
        end: KnownTensor,
        strides: KnownTensor,
    ) -> TensorType:
        for name, given in (("begin", begin), ("end", end), ("strides", strides)):
            d.need_int(given, name)
            d.require(
                given.ndim == 1, f"{name} must have one dimension, got {given.ndim}", arg=name,
                code="op-rank",
            )  # fmt: skip
            d.same_dim(given.dims[0], Dim.of(x.ndim), f"{name} must have an element for each axis: "
                       "sizes", arg=name)  # fmt: skip
        return TensorType(None, x.dtype, x.ndim)

    def reference(
        self, x: np.ndarray, begin: np.ndarray, end: np.ndarray, strides: np.ndarray
    ) -> np.ndarray:
        if not strides.all():
            raise RuntimeCheckError("shape-value", f"a stride of {strides.tolist()} is 0")
        ends = zip(begin.tolist(), end.tolist(), strides.tolist(), strict=True)
        return np.array(x[tuple(slice(*place) for place in ends)], order="C")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def ints(*values: int) -> np.ndarray:
            return np.array(values, np.int64)

        yield sample(cls(), rand(4, 5), ints(1, 4), ints(99, 0), ints(2, -1), dims="n m, 2, 2, 2")
        yield sample(cls(), rand(0, 5), ints(0, -3), ints(3, -1), ints(1, 1), dims="n 5, 2, 2, 2")
        yield sample(cls(), rand(3), ints(-1), ints(-99), ints(-1), dims="n, k, k, k")
        yield wrong(cls(), rand(4), ints(1, 2), ints(3), ints(1), code="shape-mismatch",
                    match="begin")  # fmt: skip
        yield wrong(cls(), rand(4), ints(1), rand(1), ints(1), code="op-dtype", match="end")
        row = ints(1).reshape(1, 1)
        yield wrong(cls(), rand(4), ints(1), ints(3), row, code="op-rank", match="strides")


@define_op
class SliceScatter(Op):
    """A copy of input_tensor with src written to its slice start:end:step along `axis`. Indices have the rules of
    `strided_slice`; the step must be positive."""

    name = "slice_scatter"
    mixed = "follow"
    of_data = True
    updates = "input_tensor"
    axis: int = 0

    def deduce(
        self, d: Deduction, input_tensor: KnownTensor, src: KnownTensor, start: PrimType,
        end: PrimType, step: PrimType,
    ) -> TensorType:  # fmt: skip
        d.same_dtype(input_tensor, src)
        axis = d.axis(self.axis, input_tensor.ndim)
        d.require(
            src.ndim == input_tensor.ndim,
            f"ranks differ: {input_tensor.ndim} and {src.ndim}", arg="src", code="op-rank",
        )  # fmt: skip
        for name, given in (("start", start), ("end", end), ("step", step)):
            d.require(
                given.value is not None,
                f"{name} must be an integer or a symbolic size, got {given}", arg=name,
            )  # fmt: skip
        assert step.value is not None
        check_stride(d, step.value, "step")
        d.require(sign(step.value) == 1, f"step must be positive, got {step.value}", arg="step")
        for a, (size, given) in enumerate(zip(input_tensor.dims, src.dims, strict=True)):
            if a == axis:
                size = _places(start, end, step, size).count
            d.same_dim(size, given, f"axis {a} of the slice and of src differ", arg="src")
        return TensorType(input_tensor.shape, input_tensor.dtype)

    def legalize(
        self, out: KnownTensor, input_tensor: te.Tensor, src: te.Tensor, start: Any, end: Any,
        step: Any,
    ) -> te.Tensor:  # fmt: skip
        axis = self.axis % out.ndim
        size = te.dims(input_tensor)[axis]
        taken = places(Dim.of(start), Dim.of(end), Dim.of(step), size)
        by = te.dim(maximum(taken.step, 1))

        def element(*i: Any) -> Any:
            beyond = i[axis] - te.dim(taken.first)
            inside = te.logical_and(beyond >= 0, beyond // by < te.dim(taken.count))
            if taken.step != 1:
                inside = te.logical_and(inside, te.equal(beyond % by, te.dim(0)))
            new = te.element(src(*i[:axis], beyond // by, *i[axis + 1 :]))
            return te.if_then_else(inside, new, te.element(input_tensor(*i)))

        return te.compute(out.dims, element, "slice_scatter")

    def update(
        self, out: KnownTensor, input_tensor: te.Tensor, src: te.Tensor, start: Any, end: Any,
        step: Any,
    ) -> te.Tensor:  # fmt: skip
        axis = self.axis % out.ndim
        size = te.dims(input_tensor)[axis]
        taken = places(Dim.of(start), Dim.of(end), Dim.of(step), size)

        def fill(p: Any, result: Any, new: Any) -> None:
            with p.block("part", [te.dim(size) for size in te.dims(src)], apart=True) as at:
                place = te.dim(taken.first) + at[axis] * te.dim(maximum(taken.step, 1))
                p.write(result, *at[:axis], place, *at[axis + 1 :], value=p.read(new, *at))

        return te.serial((out.dims, out.dtype), [src], fill, "slice_scatter")

    def reference(
        self, input_tensor: np.ndarray, src: np.ndarray, start: int, end: int, step: int
    ) -> np.ndarray:
        found = input_tensor.copy()
        found[(slice(None),) * (self.axis % found.ndim) + (slice(start, end, step),)] = src
        return found

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        _, src, start, end, step = args
        axis = self.axis % b.rank(ct)
        first, last, by = (each.value for each in (deduce(start), deduce(end), deduce(step)))
        kept = b.slice_scatter(ct, b.zeros_like(src), start, end, step, self.axis)
        return [kept, b.strided_slice(ct, (axis,), (first,), (last,), (by,))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x = rand(6, 5)
        yield sample(cls(), x, rand(3, 5), 1, 4, 1, dims="6 m, 3 m, 1, 4, 1")
        yield sample(cls(1), x, rand(6, 2), 1, 5, 2, dims="n 5, n 2, 1, 5, 2")
        yield sample(cls(), x, rand(4, 5), 2, 6, 1, dims="n 5, m 5, k, n, 1")
        yield sample(cls(-1), x, rand(6, 2), -2, 99, 1, dims="n 5, n 2, -2, 99, 1")
        yield sample(cls(), rand(0, 2), rand(0, 2), 0, 3, 1, dims="n 2, n 2, 0, n, 1")
        yield wrong(cls(), x, rand(2, 5), 1, 4, 1, code="shape-mismatch", match="3 and 2")
        yield wrong(cls(), x, rand(3), 1, 4, 1, code="op-rank", match="2 and 1")
        yield wrong(
            cls(), x, rand(3, 5), 1, 4, -1, code="op-arguments", match="step must be positive"
        )
        yield wrong(cls(2), x, rand(3, 5), 1, 4, 1, code="op-axis", match="2")
        ints = rand(3, 5, dtype="int32")
        yield wrong(cls(), x, ints, 1, 4, 1, code="op-dtype", match="int32")


def _places(start: PrimType, end: PrimType, step: PrimType, size: Dim) -> Places:
    assert start.value is not None
    assert end.value is not None
    assert step.value is not None
    return places(start.value, end.value, step.value, size)


def sizes_of(shape: Expr) -> tuple[Dim, ...]:
    """The dimensions of a shape."""
    annotation = expect(ShapeType, deduce(shape))
    return annotation.dims or ()


def written(b: Rule, src: Expr, axis: int, taken: Places, dims: Sequence[Dim]) -> Expr:
    """Zeros of the shape `dims` with src at these places of an axis."""
    first, step, count = taken.first, taken.step, taken.count
    if sign(step) == -1:
        src, first, step = b.flip(src, axis), first + step * (count - 1), -step
    last = first + step * (count - 1) + 1
    zeros = b.zeros(tuple(dims), b.dtype(src))
    first, last = (maximum(each, 0) for each in (first, last))  # of no places
    return b.slice_scatter(zeros, src, PrimValue(first), PrimValue(last), PrimValue(step), axis)
