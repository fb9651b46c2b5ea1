"""Sorting along an axis, by the tensor program of `relaxpy.tir.programs.sort`. The sort is stable. NaN is the greatest
value (last in ascending order, first in descending); bools sort as 0 and 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import widened
from relaxpy.op.rule import INTEGERS, Cotangent, Rule

_NAN = np.nan


@define_op
class Sort(Op):
    """Sort along `axis`. A NaN is the greatest value: last, or first if `descending`."""

    name = "sort"
    mixed = "follow"
    axis: int = -1
    descending: bool = False

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        d.axis(self.axis, x.ndim)
        return TensorType(x.shape, x.dtype)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        (found,) = sorted_along(x, self.axis, self.descending, values=True)
        return found

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.take_along_axis(x, order_of(x, self.axis, self.descending), self.axis)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (x,) = args
        order = b.argsort(x, self.axis, self.descending, "int64")
        return [b.scatter_elements(b.zeros_like(x), order, ct, self.axis, "add")]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), dims="n m")
        yield sample(cls(descending=True), rand(2, 6, dtype="int32", low=-3, high=3), dims="n m")
        yield sample(cls(axis=0), rand(4, 3), dims="n m")
        yield sample(cls(axis=1), rand(2, 5, 3, dtype="float16"), dims="n m 3")
        yield sample(cls(), np.array([1, _NAN, -np.inf, -0.0, 0, _NAN, np.inf, -1]), dims="n")
        yield sample(cls(0, True), np.array([1, _NAN, -np.inf, 3, _NAN, np.inf, 2]), dims="n")
        yield sample(cls(), rand(7, dtype="bool"), dims="n")
        yield sample(cls(axis=0), rand(0, 3), dims="n 3")
        yield sample(cls(), rand(2, 1), dims="n m")
        yield wrong(cls(axis=2), rand(3, 5), code="op-axis", match="2")
        yield wrong(cls(), rand(), code="op-axis", match="0 dimensions")


@define_op
class Argsort(Op):
    """The indices that sort x along `axis`: taking x at them gives `sort(x)`. The sort is stable in both orders."""

    name = "argsort"
    no_vjp = INTEGERS
    mixed = "follow"
    axis: int = -1
    descending: bool = False
    dtype: DType = DType("int32")
    """Dtype of the indices."""

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        d.axis(self.axis, data.ndim)
        _require_places(d, self.dtype)
        return TensorType(data.shape, self.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, self.dtype, _ndim(args))

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        (places,) = sorted_along(data, self.axis, self.descending, order=self.dtype, values=False)
        return places

    def reference(self, data: np.ndarray) -> np.ndarray:
        return order_of(data, self.axis, self.descending).astype(self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        few = rand(3, 9, dtype="int32", low=-2, high=2)
        yield sample(cls(), few, dims="n m")
        yield sample(cls(descending=True), few, dims="n m")
        yield sample(cls(axis=0, dtype=DType("int64")), few.astype(np.float16), dims="n m")
        yield sample(cls(axis=1), rand(2, 5, 3), dims="n m 3")
        yield sample(cls(), np.array([_NAN, 1, -0.0, 0, _NAN, 1], np.float32), dims="n")
        yield sample(cls(0, True), np.array([2, _NAN, -0.0, 0, _NAN, 2], np.float32), dims="n")
        yield sample(cls(), rand(0), dims="n")
        yield sample(cls(), rand(2, 1), dims="n m")
        yield wrong(cls(axis=-3), rand(3, 5), code="op-axis", match="-3")
        yield wrong(cls(dtype=DType("float32")), rand(3), code="op-dtype", match="float32")


@define_op
class Topk(Op):
    """The `k` greatest elements along `axis` in descending order, and their indices; with `largest=False` the smallest,
    in ascending order. Of equal elements the first come first. A NaN is the greatest value. `ret_type` selects the
    result: "both" (a tuple), "values" or "indices". A k below 1 means all elements; a k above the size is refused."""

    name = "topk"
    mixed = "follow"
    k: int = 1
    axis: int = -1
    ret_type: str = "both"
    largest: bool = True
    dtype: DType = DType("int32")
    """Dtype of the indices."""

    def deduce(self, d: Deduction, data: KnownTensor) -> Annotation:
        axis = d.axis(self.axis, data.ndim)
        d.require(
            self.ret_type in ("both", "values", "indices"),
            f'ret_type must be "both", "values" or "indices", got {self.ret_type!r}',
            arg="ret_type",
        )
        _require_places(d, self.dtype)
        shape = list(data.dims)
        if self.k >= 1:
            size = data.dims[axis]
            fits = dim_op("le", self.k, size)
            d.ensure(fits, f"k is {self.k}, but the axis has size {size}", arg="k")
            shape[axis] = Dim.of(self.k)
        return self._result(TensorType(shape, data.dtype), TensorType(shape, self.dtype))

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (data,) = args
        data = expect(TensorType, data)
        ndim = data.ndim
        return self._result(TensorType(None, data.dtype, ndim), TensorType(None, self.dtype, ndim))

    def legalize(self, out: Annotation, data: te.Tensor) -> list[te.Tensor]:
        values, indices = self.ret_type != "indices", self.ret_type != "values"
        order = self.dtype if indices else None
        count = None if self.k < 1 else Dim.of(self.k)
        return sorted_along(data, self.axis, self.largest, order=order, values=values, first=count)

    def reference(self, data: np.ndarray) -> Any:
        order = order_of(data, self.axis, self.largest)
        if self.k >= 1:
            order = np.take(order, np.arange(self.k), self.axis)
        values = np.take_along_axis(data, order, self.axis)
        return self._result(values, order.astype(self.dtype.numpy), tuple)

    def _result(self, values: Any, indices: Any, both: Any = TupleType) -> Any:
        if self.ret_type == "both":
            return both((values, indices))
        return values if self.ret_type == "values" else indices

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (data,) = args
        if self.ret_type == "indices":
            return [None]
        if self.ret_type == "both":
            (_, order), ct = out, ct[0]
        else:
            order = b.topk(data, self.k, self.axis, "indices", self.largest, self.dtype)
        return [b.scatter_elements(b.zeros_like(data), order, ct, self.axis, "add")]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        few = rand(3, 9, dtype="int32", low=-2, high=2)
        yield sample(cls(3), rand(4, 7), dims="n m")
        yield sample(cls(2, axis=0, largest=False), few, dims="n m")
        yield sample(cls(4, ret_type="values"), few.astype(np.float16), dims="n m")
        yield sample(cls(2, 1, "indices", dtype=DType("int64")), rand(2, 5, 3), dims="n m 3")
        yield sample(cls(0), rand(2, 3), dims="n m")
        yield sample(cls(2), np.array([1, _NAN, -0.0, 0, _NAN, 1], np.float32), dims="n")
        yield sample(cls(2), rand(0, 4), dims="n 4")
        yield sample(cls(-1), rand(2, 0), dims="2 n")
        yield wrong(cls(6), rand(3, 5), code="shape-mismatch", match="k is 6")
        yield wrong(cls(1, axis=2), rand(3, 5), code="op-axis", match="2")
        yield wrong(cls(1, ret_type="all"), rand(3, 5), code="op-arguments", match="all")
        yield wrong(cls(1, dtype=DType("bool")), rand(3, 5), code="op-dtype", match="bool")


def order_of(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """The indices of a stable sort along `axis`; a NaN is the greatest value."""
    wide = widened(x)
    if not descending:
        return np.argsort(wide, axis, kind="stable")
    backwards = np.argsort(np.flip(wide, axis), axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(backwards, axis)


def _require_places(d: Deduction, dtype: DType) -> None:
    d.require(
        dtype.is_int and not dtype.is_bool,
        f"indices must be integers, got {dtype}",
        arg="dtype",
        code="op-dtype",
    )


def _ndim(args: Sequence[Annotation | None]) -> int:
    (x,) = args
    return x.ndim if isinstance(x, TensorType) else -1


_IN_PARTS = ContextVar("in parts", default=False)


@contextmanager
def sorting_in_parts(value: bool) -> Iterator[None]:
    """Whether tensor programs that are written inside sort a row by many threads, as devices do."""
    token = _IN_PARTS.set(value)
    try:
        yield
    finally:
        _IN_PARTS.reset(token)


def sorted_along(
    x: te.Tensor,
    axis: int,
    descending: bool,
    *,
    values: bool = True,
    order: DType | None = None,
    first: Dim | None = None,
) -> list[te.Tensor]:
    """`x` sorted along `axis` (with `values`), and the sorting indices (with `order`, a dtype); the `first` elements of
    each row, or all."""
    from relaxpy.tir.programs.sort import sort_rows

    shape = te.dims(x)
    places = None if order is None else str(order)
    return sort_rows(
        x,
        shape,
        axis % len(shape),
        descending=descending,
        order=places,
        values=values,
        first=first,
        in_parts=_IN_PARTS.get(),
    )
