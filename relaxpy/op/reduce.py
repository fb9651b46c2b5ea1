"""Reductions along axes. float16 and bfloat16 are accumulated in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, product
from relaxpy.ir.dtype import DType
from relaxpy.op import te
from relaxpy.op.base import Deduction, Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.precision import narrowed, widened


@dataclass(frozen=True)
class Reduction(Op):
    """A reduction of x over some axes, or all of them."""

    axis: tuple[int, ...] | int | None = None
    """Axes to reduce, counted from the end where negative; None: all."""
    keepdims: bool = False
    """The reduced axes stay, with size 1."""

    def deduce(self, d: Deduction, x: TensorType) -> TensorType:
        self.check(d, x)
        assert x.dims is not None
        gone = d.axes(self.axis, x.ndim)
        kept = [Dim.of(1) if i in gone else size for i, size in enumerate(x.dims)]
        if not self.keepdims:
            kept = [size for i, size in enumerate(kept) if i not in gone]
        return TensorType(tuple(kept), x.dtype)

    def check(self, d: Deduction, x: TensorType) -> None:
        """Refuse dtypes that the reduction is not defined on."""
        d.require(x.dtype != "bool", "x must be numbers, got bool", arg="x", code="op-dtype")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        assert isinstance(x, TensorType)
        return TensorType(None, x.dtype, 0 if self.axis is None and not self.keepdims else -1)

    def axes_of(self, ndim: int) -> tuple[int, ...]:
        """The reduced axes from the front."""
        axes = (
            range(ndim)
            if self.axis is None
            else self.axis
            if isinstance(self.axis, tuple)
            else (self.axis,)
        )
        return tuple(sorted(axis % ndim for axis in axes))

    def reduced(
        self,
        out: TensorType,
        x: te.Tensor,
        reduce: Any,
        value: Any = lambda v: v,
        name: str = "reduced",
    ) -> te.Tensor:
        """`reduce` of `value(element)` in wide precision, of the shape of the result."""
        sizes, gone = te.dims(x), self.axes_of(len(x.shape))
        loops = {a: te.reduce_axis(sizes[a], f"k{a}") for a in gone}

        def element(*i: Any) -> Any:
            outer = iter(i)
            index = []
            for a in range(len(sizes)):
                if a in gone:
                    index.append(loops[a])
                    if self.keepdims:
                        next(outer)
                else:
                    index.append(next(outer))
            read = te.widen(x(*index))
            return reduce(value(read), list(loops.values())) if loops else value(read)

        return te.compute(out.dims, element, name)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), dims="n m")
        yield sample(cls(axis=(1,)), rand(3, 5), dims="n m")
        yield sample(cls(axis=-1, keepdims=True), rand(2, 3, 4), dims="n 3 m")
        yield sample(cls(axis=(0, 2)), rand(2, 3, 4), dims="n m 4")
        yield sample(cls(keepdims=True), rand(2, 1), dims="n 1")
        yield sample(cls(axis=0), rand(0, 3), dims="n 3")
        yield sample(cls(axis=1), rand(0, 3), dims="n 3")
        yield sample(cls(axis=1), rand(1, 1), dims="n 1")
        yield sample(cls(axis=1), rand(3, 9, dtype="float16"), dims="n m", rtol=2e-3, atol=1e-3)
        yield sample(
            cls(axis=1), np.array([[1, np.nan], [-np.inf, -np.inf]], np.float32), dims="n m"
        )
        yield wrong(cls(axis=2), rand(3, 5), code="op-axis", match="2")
        yield wrong(cls(axis=(0, -2)), rand(3, 5), code="op-axis", match="twice")
        yield wrong(cls(), rand(3, dtype="bool"), code="op-dtype", match="bool")


@define_op
class Sum(Reduction):
    """The sum; integers modulo 2**bits, in the argument's dtype."""

    name = "sum"

    def legalize(self, out: TensorType, x: te.Tensor) -> te.Tensor:
        total = self.reduced(out, x, te.sum, name="sum")
        if out.dtype not in ("float16", "bfloat16"):
            return total
        return te.compute(out.dims, lambda *i: te.cast(total(*i), out.dtype), "narrowed")

    def reference(self, x: np.ndarray) -> np.ndarray:
        wide = widened(x)
        return narrowed(np.sum(wide, self.axis, dtype=wide.dtype, keepdims=self.keepdims), x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(axis=0), rand(3, 4, dtype="int32", high=9), dims="n 4")


@define_op
class Mean(Reduction):
    """The mean of floats; NaN of nothing."""

    name = "mean"

    def check(self, d: Deduction, x: TensorType) -> None:
        d.need_float(x, "x")

    def legalize(self, out: TensorType, x: te.Tensor) -> te.Tensor:
        sizes = te.dims(x)
        count = product(tuple(sizes[a] for a in self.axes_of(len(sizes))))
        total = self.reduced(out, x, te.sum, name="sum")

        return te.compute(
            out.dims, lambda *i: te.cast(te.per_count(total(*i), count), out.dtype), "mean"
        )

    def reference(self, x: np.ndarray) -> np.ndarray:
        wide = widened(x)
        total = np.sum(wide, self.axis, dtype=wide.dtype, keepdims=self.keepdims)
        count = (
            wide.size
            if self.axis is None
            else np.prod([wide.shape[a] for a in self.axes_of(wide.ndim)])
        )
        with np.errstate(all="ignore"):
            return narrowed(np.divide(total, wide.dtype.type(count)), x)


class Extreme(Reduction):
    """The greatest or smallest element; NaN if there is one."""

    def legalize(self, out: TensorType, x: te.Tensor) -> te.Tensor:
        found = self.reduced(out, x, self.reducer(), name=self.name)
        if out.dtype not in ("float16", "bfloat16"):
            return found
        return te.compute(out.dims, lambda *i: te.cast(found(*i), out.dtype), "narrowed")

    def reducer(self) -> Any:
        """The reduction as an expression."""
        raise NotImplementedError

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(axis=0), rand(3, 4, dtype="int64", high=9), dims="n 4")
        yield sample(cls(axis=0), rand(0, 2, dtype="int32"), dims="n 2")


@define_op
class Max(Extreme):
    """The greatest element; -infinity, or the smallest integer, of nothing."""

    name = "max"

    def reducer(self) -> Any:
        return te.reduce_max

    def reference(self, x: np.ndarray) -> np.ndarray:
        return narrowed(
            np.max(widened(x), self.axis, keepdims=self.keepdims, initial=_limits(x)[0]), x
        )


@define_op
class Min(Extreme):
    """The smallest element; infinity, or the greatest integer, of nothing."""

    name = "min"

    def reducer(self) -> Any:
        return te.reduce_min

    def reference(self, x: np.ndarray) -> np.ndarray:
        return narrowed(
            np.min(widened(x), self.axis, keepdims=self.keepdims, initial=_limits(x)[1]), x
        )


def _limits(x: np.ndarray) -> tuple[Any, Any]:
    """What the maximum and the minimum of nothing are."""
    if DType(x.dtype).is_float:
        return -np.inf, np.inf
    return np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
