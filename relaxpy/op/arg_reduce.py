"""Argmax, argmin and median along an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import Dim, dim_op, product
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import widened
from relaxpy.op.reduce import Reduction
from relaxpy.op.row_major import reindexed
from relaxpy.op.rule import INTEGERS, Cotangent, Rule
from relaxpy.op.sorting import order_of, sorted_along

_NAN = np.nan


@dataclass(frozen=True)
class ArgExtreme(Reduction):
    """The index of the first greatest or smallest element, int64."""

    no_vjp = INTEGERS

    axis: int | None = None
    """The axis; None: the flattened tensor, in row-major order."""

    numpy: ClassVar[Callable[..., Any]]
    """The numpy function."""

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        found = super().deduce(d, x)
        require_elements(d, x, self.axis)
        return TensorType(found.shape, "int64")

    def check(self, d: Deduction, x: KnownTensor) -> None:
        """Accept any dtype."""

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        found = expect(TensorType, super().deduce_unranked(d, args))
        return TensorType(None, "int64", found.ndim)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        sizes = te.dims(x)
        number = te.compute(sizes, lambda *i: _number(x(*i)), "number")
        best = self.reduced(out, number, self.reducer(), name="best")

        def place_if_best(element: Any, place: Sequence[Any], along: Sequence[Any]) -> Any:
            target = best(*place)
            hit = te.equal(element, target)
            if te.dtype_of(element).is_float:
                hit = te.logical_or(hit, te.logical_and(te.isnan(element), te.isnan(target)))
            offset: Any = te.dim(0)
            for a, i in zip(self.axes_of(len(sizes)), along, strict=True):
                offset = offset * te.dim(sizes[a]) + i
            return te.select(hit, offset, te.const(np.iinfo(np.int64).max, "int64"))

        return self.reduced(out, number, te.reduce_min, place_if_best, self.name)

    def reference(self, x: np.ndarray) -> np.ndarray:
        found = type(self).numpy(widened(x), self.axis, keepdims=self.keepdims)
        return np.asarray(found, np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        few = rand(3, 9, dtype="int32", low=-3, high=3)
        yield sample(cls(), few, dims="n m")
        yield sample(cls(axis=1), few, dims="n m")
        yield sample(cls(axis=0), few.astype(np.float16), dims="n m")
        yield sample(cls(axis=-2, keepdims=True), rand(2, 3, 4), dims="n 3 m")
        yield sample(cls(keepdims=True), rand(2, 3), dims="n m")
        yield sample(cls(axis=1), rand(2, 5, dtype="bool"), dims="n m")
        yield sample(cls(axis=1), rand(0, 3), dims="n m")
        yield sample(cls(), rand())
        specials = np.array([[1, _NAN, np.inf, _NAN], [-0.0, 0, -0.0, 0], [-np.inf] * 4])
        yield sample(cls(axis=1), specials, dims="n m")
        yield wrong(cls(axis=2), few, code="op-axis", match="2")
        yield wrong(
            cls(axis=0), rand(0, 3), code="shape-mismatch", match="at least one element is needed"
        )
        yield wrong(
            cls(), rand(0, 3), code="shape-mismatch", match="at least one element is needed"
        )


@define_op
class Argmax(ArgExtreme):
    """The index of the greatest element along `axis`, int64: the first of equal elements, or the first NaN if there is
    one. An axis of size 0 is refused."""

    name = "argmax"
    numpy = np.argmax

    def reducer(self) -> Callable[[Any, Any], Any]:
        return te.reduce_max


@define_op
class Argmin(ArgExtreme):
    """The index of the smallest element along `axis`, int64: the first of equal elements, or the first NaN if there is
    one. An axis of size 0 is refused."""

    name = "argmin"
    numpy = np.argmin

    def reducer(self) -> Callable[[Any, Any], Any]:
        return te.reduce_min


@define_op
class Median(Op):
    """The median along `axis`, as `torch.median`: the middle of the sorted elements, the lower of the two middle ones
    for an even number, or the first NaN if there is one. With one axis the result is a tuple of the median and its
    index (int64). The index is that of the median in a stable sort. An axis of size 0 is refused."""

    name = "median"
    axis: tuple[int, ...] | int | None = None
    """One or several axes; None: all."""
    keepdims: bool = False
    """Whether the axes are kept with size 1."""

    def deduce(self, d: Deduction, x: KnownTensor) -> Annotation:
        d.require(x.dtype != "bool", "x must be numbers, got bool", arg="x", code="op-dtype")
        gone = d.axes(self.axis, x.ndim)
        require_elements(d, x, self.axis)
        kept = [Dim.of(1) if i in gone else size for i, size in enumerate(x.dims)]
        if not self.keepdims:
            kept = [size for i, size in enumerate(kept) if i not in gone]
        values = TensorType(tuple(kept), x.dtype)
        return TupleType((values, TensorType(kept, "int64"))) if self._has_index else values

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        x = expect(TensorType, x)
        if self._has_index:
            return TupleType((TensorType(None, x.dtype), TensorType(None, "int64")))
        return TensorType(None, x.dtype, 0 if self.axis is None and not self.keepdims else -1)

    def legalize(self, out: Annotation, x: te.Tensor) -> list[te.Tensor]:
        values = expect(KnownTensor, out.fields[0] if isinstance(out, TupleType) else out)
        gone = self._axes(len(x.shape))
        wide = te.compute(te.dims(x), lambda *i: te.widen(x(*i)), "wide")
        axis = gone[0] if self._has_index else len(x.shape) - len(gone)
        if not self._has_index:
            order = (*(a for a in range(len(x.shape)) if a not in gone), *gone)
            dims = tuple(te.dims(x)[a] for a in order)
            last = te.compute(
                dims, lambda *i: wide(*(i[order.index(a)] for a in range(len(i)))), "t"
            )
            flat = KnownTensor((*dims[:axis], product(dims[axis:])), str(wide.dtype))
            wide = reindexed(flat, last, "flat")
        sizes = te.dims(wide)
        rows = sorted_along(wide, axis, False, order=DType("int64"))
        others = (*sizes[:axis], *sizes[axis + 1 :])
        count = te.dim(sizes[axis])
        k = te.reduce_axis(sizes[axis])

        def is_nan(*i: Any) -> Any:
            element = te.isnan(wide(*i[:axis], k, *i[axis:]))
            return te.sum(te.cast(element, DType("int64")), k)

        nans = te.compute(others, is_nan, "nans") if values.dtype.is_float else None

        def place(*i: Any) -> Any:
            middle = te.floor_divide(count - 1, te.dim(2))
            if nans is None:
                return middle
            # NaNs sort last, so the first one is at count - nans.
            some = te.greater(nans(*i), te.dim(0))
            return te.select(some, count - nans(*i), middle)

        places = te.compute(others, place, "place")

        def picked(row: te.Tensor, dtype: DType) -> te.Tensor:
            def element(*i: Any) -> Any:
                outer = tuple(j for a, j in enumerate(i) if a not in gone) if self.keepdims else i
                return te.cast(row(*outer[:axis], places(*outer), *outer[axis:]), dtype)

            return te.compute(values.dims, element, "median")

        dtypes = [values.dtype, DType("int64")]
        wanted = dtypes if isinstance(out, TupleType) else dtypes[:1]
        return [picked(row, dtype) for row, dtype in zip(rows, wanted, strict=False)]

    def reference(self, x: np.ndarray) -> Any:
        gone = self._axes(x.ndim)
        shape = [1 if a in gone else n for a, n in enumerate(x.shape)]
        if not self.keepdims:
            shape = [n for a, n in enumerate(x.shape) if a not in gone]
        kept = [n for a, n in enumerate(x.shape) if a not in gone]
        x = np.moveaxis(x, gone, range(-len(gone), 0)).reshape(*kept, -1 if x.size else 0)
        order = order_of(x, -1, descending=False)
        size = x.shape[-1]
        nans = np.sum(np.isnan(widened(x)), -1, keepdims=True)
        place = np.where(nans > 0, size - nans, (size - 1) // 2)
        index = np.take_along_axis(order, place, -1)
        values = np.take_along_axis(x, index, -1)
        return (
            (values.reshape(shape), index.reshape(shape))
            if self._has_index
            else values.reshape(shape)
        )

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (x,) = args
        axes = self._axes(b.rank(x))
        kept = [Dim.of(1) if a in axes else n for a, n in enumerate(b.dims(x))]
        if self._has_index:
            (_, index), (ct, _) = out, ct
            index, ct = b.reshape(index, kept), b.reshape(ct, kept)
            return [b.scatter_elements(b.zeros_like(x), index, ct, axes[0], "add")]
        middle = b.reshape(out, kept)
        same = b.logical_or(b.equal(x, middle), b.logical_and(b.isnan(x), b.isnan(middle)))
        chosen = b.astype(same, b.dtype(ct))
        return [
            b.multiply(chosen, b.divide(b.reshape(ct, kept), b.sum(chosen, axes, keepdims=True)))
        ]

    @property
    def _has_index(self) -> bool:
        """Has the result an index? That of one axis has."""
        return isinstance(self.axis, int) or (self.axis is not None and len(self.axis) == 1)

    def _axes(self, ndim: int) -> tuple[int, ...]:
        """The axes as non-negative numbers, in ascending order."""
        axes = (self.axis,) if isinstance(self.axis, int) else self.axis
        return tuple(range(ndim)) if axes is None else tuple(sorted(a % ndim for a in axes))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), dims="n m")
        yield sample(cls(axis=1), rand(3, 4), dims="n m")
        few = rand(5, 4, dtype="int32", low=-2, high=2)
        yield sample(cls(axis=(0,), keepdims=True), few, dims="n m")
        yield sample(cls(axis=-2), rand(2, 5, 3, dtype="float16"), dims="n m 3")
        yield sample(cls(keepdims=True), rand(2, 3), dims="n m")
        yield sample(cls(axis=0), rand(4, 0), dims="4 n")
        specials = np.array([[1, _NAN, np.inf, _NAN], [-np.inf, 2, np.inf, 1]])
        yield sample(cls(axis=1), specials, dims="n m")
        yield sample(cls(), specials[1], dims="n")
        yield sample(cls(), rand())
        yield wrong(cls(axis=2), few, code="op-axis", match="2")
        yield sample(cls(axis=(0, 2)), rand(3, 5, 2), dims="n m k")
        yield sample(
            cls(axis=(-1, 0), keepdims=True),
            rand(3, 4, 5, dtype="int8", low=-5, high=5),
            dims="n 4 m",
        )
        yield wrong(cls(axis=(0, 0)), few, code="op-axis", match="0")
        yield wrong(
            cls(axis=0), rand(0, 3), code="shape-mismatch", match="at least one element is needed"
        )
        yield wrong(cls(), rand(3, dtype="bool"), code="op-dtype", match="bool")


def require_elements(d: Deduction, x: KnownTensor, axis: tuple[int, ...] | int | None) -> None:
    """Refuse a reduction over an axis of size 0."""
    count = product(tuple(x.dims[a] for a in d.axes(axis, x.ndim)))
    message = f"at least one element is needed: the size is {count}"
    d.ensure(dim_op("le", 1, count), message, arg="x")


def _number(x: Any) -> Any:
    """An element in a dtype that a reduction can compare: bool as int8, narrow floats widened."""
    return te.cast(x, DType("int8")) if te.dtype_of(x).is_bool else te.widen(x)
