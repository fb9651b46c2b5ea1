"""Reductions along axes. float16 and bfloat16 are accumulated in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import converted, narrowed, quotient, sum_dtype, widened
from relaxpy.op.rule import BOOL, Cotangent, Rule, same_dims


@dataclass(frozen=True)
class Reduction(Op):
    """A reduction of x over some axes, or all of them."""

    axis: tuple[int, ...] | int | None = None
    """Axes to reduce, counted from the end where negative; None: all."""
    keepdims: bool = False
    """Whether the reduced axes are kept with size 1."""

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        self.check(d, x)
        gone = d.axes(self.axis, x.ndim)
        kept = [Dim.of(1) if i in gone else size for i, size in enumerate(x.dims)]
        if not self.keepdims:
            kept = [size for i, size in enumerate(kept) if i not in gone]
        return TensorType(tuple(kept), x.dtype)

    def check(self, d: Deduction, x: KnownTensor) -> None:
        """Refuse dtypes that the reduction is not defined on."""
        d.require(x.dtype != "bool", "x must be numbers, got bool", arg="x", code="op-dtype")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (x,) = args
        x = expect(TensorType, x)
        return TensorType(None, x.dtype, 0 if self.axis is None and not self.keepdims else -1)

    def axes_of(self, ndim: int) -> tuple[int, ...]:
        """The reduced axes as non-negative numbers."""
        axes = (
            range(ndim)
            if self.axis is None
            else self.axis
            if isinstance(self.axis, tuple)
            else (self.axis,)
        )
        return tuple(sorted(axis % ndim for axis in axes))

    def kept(self, b: Rule, x: Expr, value: Expr) -> Expr:
        """A value of the result's shape, with the reduced axes of x as size 1."""
        dims, gone = b.dims(x), self.axes_of(b.rank(x))
        shape = tuple(Dim.of(1) if a in gone else size for a, size in enumerate(dims))
        return value if self.keepdims or not dims else b.reshape(value, shape)

    def count(self, b: Rule, x: Expr) -> Dim:
        """The number of elements that are reduced to one."""
        return product(tuple(b.dims(x)[a] for a in self.axes_of(b.rank(x))))

    def along(self, b: Rule, x: Expr, out: Expr, ct: Expr) -> Expr:
        """The cotangent of x, or of one that is broadcast to it. `out` and `ct` have the reduced axes, of size 1."""
        raise NotImplementedError

    @classmethod
    def has_vjp(cls) -> bool:
        return not cls.no_vjp and cls.along is not Reduction.along

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        return rounded(out, self.reduced(out, x, self.reducer(), name=self.name))

    def reducer(self) -> Callable[[Any, Any], Any]:
        """The reduction as an expression, applied to an operand and loops."""
        raise NotImplementedError

    def reduced(
        self,
        out: KnownTensor,
        x: te.Tensor,
        reduce: Callable[[Any, Any], Any],
        value: Callable[[Any, Sequence[Any], Sequence[Any]], Any] = lambda element, *_: element,
        name: str = "reduced",
    ) -> te.Tensor:
        """Apply `reduce` to `value(element, place, along)` in wide precision; the result has the shape of `out`.
        `place` is an index of the result, `along` an index for each reduced axis."""
        sizes, gone = te.dims(x), self.axes_of(len(x.shape))
        loops = {a: te.reduce_axis(sizes[a], f"k{a}") for a in gone}

        def element(*place: Any) -> Any:
            outer = iter(place)
            index = []
            for a in range(len(sizes)):
                if a in gone:
                    index.append(loops[a])
                    if self.keepdims:
                        next(outer)
                else:
                    index.append(next(outer))
            along = list(loops.values())
            operand = value(te.widen(x(*index)), place, along)
            return reduce(operand, along) if loops else operand

        return te.compute(out.dims, element, name)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (x,) = args
        found = self.along(b, x, self.kept(b, x, out), self.kept(b, x, ct))
        return [found if same_dims(b.dims(found), b.dims(x)) else b.broadcast_to(found, b.dims(x))]

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
        yield wrong(cls(axis=(0, -2)), rand(3, 5), code="op-axis", match="repeats an axis")
        yield wrong(cls(), rand(3, dtype="bool"), code="op-dtype", match="bool")


@define_op
class Sum(Reduction):
    """The sum, in the argument's dtype; integers modulo 2**bits."""

    name = "sum"

    def reducer(self) -> Callable[[Any, Any], Any]:
        return te.sum

    def reference(self, x: np.ndarray) -> np.ndarray:
        wide = widened(x)
        return narrowed(np.sum(wide, self.axis, dtype=wide.dtype, keepdims=self.keepdims), x)

    def along(self, b: Rule, x: Expr, out: Expr, ct: Expr) -> Expr:
        return ct

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(axis=0), rand(3, 4, dtype="int32", high=9), dims="n 4")


@define_op
class Prod(Reduction):
    """The product, in the argument's dtype; integers modulo 2**bits. The product of no elements is 1."""

    name = "prod"

    def reducer(self) -> Callable[[Any, Any], Any]:
        return te.prod

    def reference(self, x: np.ndarray) -> np.ndarray:
        wide = widened(x)
        return narrowed(np.prod(wide, self.axis, dtype=wide.dtype, keepdims=self.keepdims), x)

    def along(self, b: Rule, x: Expr, out: Expr, ct: Expr) -> Expr:
        # With one 0 only that has a cotangent, the product of the others; with several none has.
        axes, zero = self.axes_of(b.rank(x)), b.equal(x, 0.0)
        others = b.prod(b.where(zero, 1.0, x), axes, keepdims=True)
        zeros = b.sum(b.astype(zero, b.dtype(x)), axes, keepdims=True)
        at_zero = b.where(b.equal(zeros, 1.0), others, 0.0)
        elsewhere = b.where(b.equal(zeros, 0.0), b.divide(others, b.where(zero, 1.0, x)), 0.0)
        return b.multiply(ct, b.where(zero, at_zero, elsewhere))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(axis=0), rand(3, 4, dtype="int32", high=9), dims="n 4")
        yield sample(cls(), rand(2, 5, dtype="uint8", low=0, high=200), dims="n m")


@define_op
class Mean(Reduction):
    """The mean. Integer means are rounded toward 0. The mean of no elements is NaN for floats, and 0 for integers."""

    name = "mean"

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        wide = sum_dtype(DType(str(x.dtype)))
        return rounded(out, self.mean(out, x, lambda v, *_: te.cast(v, wide)))

    def mean(self, out: KnownTensor, x: te.Tensor, value: Any = lambda v, *_: v) -> te.Tensor:
        """The mean of `value(element, place, along)`, in wide precision."""
        sizes = te.dims(x)
        count = product(tuple(sizes[a] for a in self.axes_of(len(sizes))))
        total = self.reduced(out, x, te.sum, value, name="sum")
        return te.compute(out.dims, lambda *i: te.per_count(total(*i), count), "mean")

    def reference(self, x: np.ndarray) -> np.ndarray:
        wide = x.astype(sum_dtype(DType(x.dtype)).numpy)
        total = np.asarray(np.sum(wide, self.axis, dtype=wide.dtype, keepdims=self.keepdims))
        count = math.prod(wide.shape[a] for a in self.axes_of(wide.ndim))
        if wide.dtype.kind in "iu":
            count = max(count, 1)
        with np.errstate(all="ignore"):
            return narrowed(quotient(total, np.asarray(count)), x)

    def along(self, b: Rule, x: Expr, out: Expr, ct: Expr) -> Expr:
        return b.divide(ct, self.count(b, x))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        ints = rand(3, 4, dtype="int8", low=-128, high=127)
        yield sample(cls(axis=0), ints, dims="n m")
        yield sample(cls(keepdims=True), ints.astype(np.uint8), dims="n m")
        yield sample(cls(axis=1), rand(3, 0, dtype="int32"), dims="n m")


class Spread(Reduction):
    """Base of variance and standard deviation. Integers are computed in float64, and the result is rounded toward 0."""

    def variance(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        """The variance in wide precision: the mean of the squared deviations from the mean."""
        average = Mean(self.axis, self.keepdims)
        if DType(str(x.dtype)).is_int:
            whole = x
            x = te.compute(te.dims(x), lambda *i: te.cast(whole(*i), DType("float64")), "floats")
        center = average.mean(out, x)

        def square(element: Any, place: Sequence[Any], _: Any) -> Any:
            distance = element - center(*place)
            return distance * distance

        return average.mean(out, x, square)

    def numpy_variance(self, x: np.ndarray) -> np.ndarray:
        """The same as `variance`, on an array."""
        wide = x.astype(np.float64) if DType(x.dtype).is_int else widened(x)
        distance = wide - Mean(self.axis, keepdims=True).reference(wide)
        return Mean(self.axis, self.keepdims).reference(distance * distance)


@define_op
class Variance(Spread):
    """The population variance, as `numpy.var`: the mean of the squared deviations from the mean. NaN of no elements."""

    name = "variance"

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        return rounded(out, self.variance(out, x))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return converted(self.numpy_variance(x), str(DType(x.dtype)))

    def along(self, b: Rule, x: Expr, out: Expr, ct: Expr) -> Expr:
        share = b.divide(b.multiply(ct, 2.0), self.count(b, x))
        return b.multiply(share, b.subtract(x, b.mean(x, self.axes_of(b.rank(x)), keepdims=True)))


@define_op
class Std(Spread):
    """The standard deviation: the square root of `variance`; NaN of no elements."""

    name = "std"

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        variance = self.variance(out, x)
        return rounded(out, te.compute(out.dims, lambda *i: te.sqrt(variance(*i)), "std"))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return converted(np.asarray(np.sqrt(self.numpy_variance(x))), str(DType(x.dtype)))

    def along(self, b: Rule, x: Expr, out: Expr, ct: Expr) -> Expr:
        flat = b.equal(out, 0.0)  # 0 where all are equal
        share = b.divide(ct, b.multiply(b.where(flat, 1.0, out), self.count(b, x)))
        share = b.where_not(flat, share)
        return b.multiply(share, b.subtract(x, b.mean(x, self.axes_of(b.rank(x)), keepdims=True)))


class Extreme(Reduction):
    """The greatest or smallest element; NaN if there is one."""

    mixed = "follow"

    def along(self, b: Rule, x: Expr, out: Expr, ct: Expr) -> Expr:
        chosen = b.astype(b.equal(x, out), b.dtype(ct))
        ties = b.sum(chosen, self.axes_of(b.rank(x)), keepdims=True)
        return b.multiply(chosen, b.divide(ct, ties))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(axis=0), rand(3, 4, dtype="int64", high=9), dims="n 4")
        yield sample(cls(axis=0), rand(0, 2, dtype="int32"), dims="n 2")


@define_op
class Max(Extreme):
    """The maximum; NaN if there is one. The maximum of no elements is -infinity, or the smallest integer."""

    name = "max"

    def reducer(self) -> Callable[[Any, Any], Any]:
        return te.reduce_max

    def reference(self, x: np.ndarray) -> np.ndarray:
        return narrowed(
            np.max(widened(x), self.axis, keepdims=self.keepdims, initial=_limits(x)[0]), x
        )


@define_op
class Min(Extreme):
    """The minimum; NaN if there is one. The minimum of no elements is infinity, or the greatest integer."""

    name = "min"

    def reducer(self) -> Callable[[Any, Any], Any]:
        return te.reduce_min

    def reference(self, x: np.ndarray) -> np.ndarray:
        return narrowed(
            np.min(widened(x), self.axis, keepdims=self.keepdims, initial=_limits(x)[1]), x
        )


class Quantifier(Reduction):
    """A reduction with a bool result: the logical or, or the logical and, of the elements. An element is true if it is
    not 0; a NaN is true."""

    def check(self, d: Deduction, x: KnownTensor) -> None:
        """Accept any dtype."""

    def deduce(self, d: Deduction, x: KnownTensor) -> TensorType:
        return TensorType(super().deduce(d, x).shape, "bool")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        found = expect(TensorType, super().deduce_unranked(d, args))
        return TensorType(None, "bool", found.ndim)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        def flag(element: Any, *_: Any) -> Any:
            return te.cast(te.cast(element, DType("bool")), DType("int8"))

        # A reduction of no elements gives a limit of int8: below 0 for `any`, above for `all`.
        found = self.reduced(out, x, self.reducer(), flag, self.name)
        zero = te.const(0, "int8")
        return te.compute(out.dims, lambda *i: te.greater(found(*i), zero), "flag")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        few = rand(3, 5, dtype="int32", low=0, high=2)
        yield sample(cls(), rand(3, 5, dtype="bool"), dims="n m")
        yield sample(cls(axis=(1,)), few, dims="n m")
        yield sample(cls(axis=0, keepdims=True), few.astype(np.float16), dims="n m")
        yield sample(cls(axis=(0, 2)), rand(2, 3, 4, dtype="bool"), dims="n m 4")
        yield sample(cls(axis=1), np.array([[0, -0.0], [0, np.nan]], np.float32), dims="n m")
        yield sample(cls(axis=0), rand(0, 3, dtype="bool"), dims="n 3")
        yield sample(cls(), rand(0, 3), dims="n 3")
        yield sample(cls(), rand(dtype="bool"))
        yield wrong(cls(axis=2), few, code="op-axis", match="2")


@define_op
class AnyTrue(Quantifier):
    """Is any element not 0? False for no elements; a NaN is not 0."""

    name = "any"
    no_vjp = BOOL

    def reducer(self) -> Callable[[Any, Any], Any]:
        return te.reduce_max

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.any(widened(x), self.axis, keepdims=self.keepdims))


@define_op
class AllTrue(Quantifier):
    """Are all elements not 0? True for no elements; a NaN is not 0."""

    name = "all"
    no_vjp = BOOL

    def reducer(self) -> Callable[[Any, Any], Any]:
        return te.reduce_min

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(np.all(widened(x), self.axis, keepdims=self.keepdims))


def rounded(out: KnownTensor, wide: te.Tensor) -> te.Tensor:
    """Convert a result in wide precision to the dtype of `out`."""
    if out.dtype == str(wide.dtype):
        return wide
    return te.compute(out.dims, lambda *i: te.cast(wide(*i), out.dtype), "rounded")


def _limits(x: np.ndarray) -> tuple[Any, Any]:
    """The maximum and the minimum of no elements."""
    if DType(x.dtype).is_float:
        return -np.inf, np.inf
    return np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
