"""Running sums, products and extrema along an axis."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr, PrimValue
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import converted, widened
from relaxpy.op.rule import Cotangent, NoRule, Rule


@dataclass(frozen=True)
class Scan(Op):
    """Base of scans: elements combined with all those before them along `axis`."""

    axis: int | None = None
    """The axis; None: the flattened tensor, in row-major order."""
    dtype: DType | None = None
    """Dtype that elements are converted to before the scan; None: the dtype of the argument."""
    exclusive: bool = False
    """Whether each result excludes its own element; the first result is then `start`."""

    combine: ClassVar[Callable[[Any, Any], Any]]
    start: ClassVar[float]
    """The result for no elements."""
    neutral: ClassVar[float]
    """The neutral element: combined with it, every element is unchanged, -0.0 included."""
    ufunc: ClassVar[np.ufunc]
    """`combine` as a numpy ufunc."""

    def first(self, dtype: DType) -> float:
        """The result for no elements, in a dtype."""
        return self.start

    def identity(self, dtype: DType) -> float:
        """The neutral element of a dtype."""
        return self.neutral

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        dtype = self.dtype or data.dtype
        d.require(
            dtype != "bool",
            "the result must be numbers, got bool",
            arg="dtype" if self.dtype else "data",
            code="op-dtype",
            help='pass another dtype: dtype="int64"',
        )
        if self.axis is None:
            return TensorType((product(data.dims),), dtype)
        d.axis(self.axis, data.ndim)
        return TensorType(data.dims, dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (data,) = args
        data = expect(TensorType, data)
        return TensorType(None, self.dtype or data.dtype, 1 if self.axis is None else data.ndim)

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        from relaxpy.tir.programs.scan import scan

        shape, axis = te.dims(data), self.axis
        axis = None if axis is None else axis % len(shape)
        start = self.first(out.dtype) if self.exclusive else self.identity(out.dtype)
        return scan(data, shape, axis, out.dtype, type(self).combine, start, self.exclusive)

    def reference(self, data: np.ndarray) -> np.ndarray:
        dtype = self.dtype or DType(data.dtype)
        x = widened(converted(data, dtype))
        axis = 0 if self.axis is None else self.axis % x.ndim
        if self.axis is None:
            x = x.reshape(-1)
        if self.exclusive:
            first = [1 if a == axis else size for a, size in enumerate(x.shape)]
            x = np.concatenate([np.full(first, self.first(dtype), x.dtype), x], axis)
            x = np.delete(x, -1, axis)
        found = self.ufunc.accumulate(x, axis, dtype=x.dtype)
        return found.astype(dtype.numpy)

    def flat(self, b: Rule, data: Expr) -> Expr:
        """The argument as it is scanned: flattened without an axis, in the dtype of the result."""
        x = b.flatten(data) if self.axis is None else data
        return x if self.dtype is None else b.astype(x, self.dtype)

    def unflattened(self, b: Rule, data: Expr, ct: Expr) -> Expr:
        """The cotangent of the argument, given that of `flat`."""
        return b.astype(b.reshape(ct, b.dims(data)), b.dtype(data))

    def reversed(self, b: Rule, x: Expr) -> Expr:
        """The sums of each element and those after it; without its own if exclusive."""
        axis = self.axis or 0
        return b.flip(b.cumsum(b.flip(x, axis), axis, exclusive=self.exclusive), axis)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), dims="n m")
        yield sample(cls(axis=0), rand(7), dims="n")
        yield sample(cls(axis=1), rand(2, 3, 4), dims="n m 4")
        yield sample(cls(axis=-1, exclusive=True), rand(2, 3, 4), dims="n 3 m")
        yield sample(cls(axis=0, exclusive=True), rand(0, 3), dims="n 3")
        yield sample(cls(), rand(1, 0), dims="n m")
        yield sample(cls(), np.array([-0.0, -0.0, 1, np.nan], np.float32), dims="n")
        yield sample(cls(exclusive=True), rand())
        yield sample(cls(axis=1), rand(2, 4, dtype="float16"), dims="n m", rtol=2e-3, atol=1e-3)
        yield sample(cls(axis=0), rand(5, 2, dtype="int8", high=9), dims="n m")
        yield sample(cls(axis=0, dtype=DType("int64")), rand(6, dtype="bool"), dims="n")
        yield sample(cls(dtype=DType("float64")), rand(6, dtype="int32", high=9), dims="n")
        yield sample(cls(axis=0, dtype=DType("int32")), rand(6), dims="n")
        yield wrong(cls(axis=2), rand(3, 5), code="op-axis", match="2")
        yield wrong(cls(axis=0), rand(3, dtype="bool"), code="op-dtype", match="bool")
        yield wrong(cls(dtype=DType("bool")), rand(3), code="op-dtype", match="bool")


@define_op
class Cumsum(Scan):
    """Running sums along `axis`; integers modulo 2**bits. Narrow floats are summed in float32, and each sum is rounded.
    A float converted to an integer `dtype` is truncated and saturated."""

    name = "cumsum"
    combine = operator.add
    start = 0
    neutral = -0.0
    ufunc = np.add

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (data,) = args
        return [self.unflattened(b, data, self.reversed(b, ct))]


@define_op
class Cumprod(Scan):
    """Running products along `axis`; integers modulo 2**bits. Narrow floats are multiplied in float32, and each product
    is rounded. A float converted to an integer `dtype` is truncated and saturated."""

    name = "cumprod"
    combine = operator.mul
    start = 1
    neutral = 1
    ufunc = np.multiply

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        # Before the first 0, sum(ct * out) / data over what follows; at it, that with a 1 in its place; after it, 0.
        (data,) = args
        x = b.astype(self.flat(b, data), b.dtype(ct))
        axis, zero = self.axis or 0, b.equal(x, 0.0)
        zeros = b.cumsum(b.astype(zero, b.dtype(ct)), axis)
        first = b.logical_and(zero, b.equal(zeros, 1.0))
        before = b.divide(self.reversed(b, b.multiply(ct, out)), b.where(zero, 1.0, x))
        without = b.cumprod(b.where(first, 1.0, x), axis, exclusive=self.exclusive)
        at_first = b.where(first, self.reversed(b, b.multiply(ct, without)), 0.0)
        return [self.unflattened(b, data, b.where(b.equal(zeros, 0.0), before, at_first))]


@dataclass(frozen=True)
class ScanExtreme(Scan):
    """Base of running extrema: NaN from the first NaN on. Excluding its own element, the first result is that of no
    elements: the limit of the dtype, infinite for floats."""

    is_max: ClassVar[bool]

    def first(self, dtype: DType) -> float:
        low, high = (-math.inf, math.inf) if dtype.is_float else dtype.limits
        return low if self.is_max else high

    identity = first

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (data,) = args
        if self.exclusive:
            return [NoRule(f"{self.name} with exclusive=True has no rule")]
        x, axis = self.flat(b, data), self.axis or 0
        dims = b.dims(x)
        shape = [Dim.of(1)] * len(dims)
        shape[axis] = dims[axis] if dims else Dim.of(1)
        places = b.broadcast_to(b.reshape(b.arange(PrimValue(shape[axis])), tuple(shape)), dims)
        last = b.cummax(b.where(b.equal(x, out), places, 0), axis)
        return [
            self.unflattened(b, data, b.scatter_elements(b.zeros_like(ct), last, ct, axis, "add"))
        ]


@define_op
class Cummax(ScanExtreme):
    """Running maxima along `axis`; NaN from the first NaN on. A float converted to an integer `dtype` is truncated and
    saturated."""

    name = "cummax"
    is_max = True
    ufunc = np.maximum

    @staticmethod
    def combine(x: Any, y: Any) -> Any:
        return te.maximum(x, y)


@define_op
class Cummin(ScanExtreme):
    """Running minima along `axis`; NaN from the first NaN on. A float converted to an integer `dtype` is truncated and
    saturated."""

    name = "cummin"
    is_max = False
    ufunc = np.minimum

    @staticmethod
    def combine(x: Any, y: Any) -> Any:
        return te.minimum(x, y)


@define_op
class Cumlogsumexp(Scan):
    """Running logarithms of sums along `axis`: log(exp(x0) + exp(x1) + …), without overflow. Floats only; narrow ones
    are computed in float32, and each result is rounded."""

    name = "cumlogsumexp"
    start = -math.inf
    neutral = -math.inf
    ufunc = np.logaddexp

    @staticmethod
    def combine(x: Any, y: Any) -> Any:
        return te.log_add_exp(x, y)

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        d.require(
            (self.dtype or data.dtype).is_float,
            f"the result must be floats, got {self.dtype or data.dtype}",
            arg="dtype" if self.dtype else "data",
            code="op-dtype",
            help='pass another dtype: dtype="float32"',
        )
        return super().deduce(d, data)

    def reference(self, data: np.ndarray) -> np.ndarray:
        found = super().reference(data)
        return found + found.dtype.type(0)  # log(exp(-0.0)) is 0.0

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (data,) = args
        x, axis = b.astype(self.flat(b, data), b.dtype(ct)), self.axis or 0
        largest = b.max(x, axis, keepdims=True)
        shares = self.reversed(b, b.multiply(ct, b.exp(b.subtract(largest, out))))
        return [self.unflattened(b, data, b.multiply(b.exp(b.subtract(x, largest)), shares))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for s in super().samples():
            kind = s.op.dtype or DType(s.inputs[0].dtype)
            if s.code or kind.is_float:
                yield s
        yield sample(
            cls(axis=0), np.array([-np.inf, 1000, -np.inf, 999, 1e38], np.float32), dims="n"
        )
        yield wrong(cls(axis=0), rand(3, dtype="int32"), code="op-dtype", match="floats")
