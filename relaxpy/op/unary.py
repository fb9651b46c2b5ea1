"""Element-wise functions of one tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.op import te
from relaxpy.op.base import Deduction, Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.precision import narrowed, widened


class Unary(Op):
    """`scalar` of every element; the result has the argument's shape and dtype."""

    def scalar(self, x: Any) -> Any:
        """The function as an expression."""
        raise NotImplementedError

    def numpy(self, x: np.ndarray) -> Any:
        """The function on an array."""
        raise NotImplementedError

    def deduce(self, d: Deduction, x: TensorType) -> TensorType:
        self.check(d, x)
        return TensorType(x.shape, x.dtype, vdevice=x.vdevice)

    def check(self, d: Deduction, x: TensorType) -> None:
        """Refuse dtypes that the function is not defined on: by default bool."""
        assert x.dtype is not None
        d.require(
            not x.dtype.is_bool, "x must be numbers, got bool", arg="x", code="op-dtype",
            help='cast it: R.astype(x, "float32")',
        )  # fmt: skip

    def legalize(self, out: TensorType, x: te.Tensor) -> te.Tensor:
        return te.compute(out.dims, lambda *i: te.cast(self.scalar(te.widen(x(*i))), out.dtype))

    def reference(self, x: np.ndarray) -> np.ndarray:
        return narrowed(self.numpy(widened(x)), x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), dims="n 5")
        yield sample(cls(), rand(4, 3, dtype="float16"), dims="n m", rtol=2e-3, atol=1e-3)
        yield sample(cls(), rand(0, 4), dims="n 4")
        yield sample(cls(), rand(1, dtype="float64"), dims="n")
        yield sample(cls(), rand())
        yield sample(cls(), np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32), dims="n")


class FloatUnary(Unary):
    """A function that is defined on floats only."""

    def check(self, d: Deduction, x: TensorType) -> None:
        d.need_float(x, "x")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield wrong(cls(), rand(3, dtype="int32"), code="op-dtype", match="float")


class IntOrFloatUnary(Unary):
    """A function that is defined on all numbers."""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(), np.array([0, 5, -7, -(2**31), 2**31 - 1], np.int32), dims="n")
        yield wrong(cls(), rand(3, dtype="bool"), code="op-dtype", match="bool")


@define_op
class Exp(FloatUnary):
    """E to the power x."""

    name = "exp"

    def scalar(self, x: Any) -> Any:
        return te.exp(x)

    def numpy(self, x: np.ndarray) -> Any:
        return np.exp(x)


@define_op
class Log(FloatUnary):
    """The natural logarithm: -infinity of 0, NaN below."""

    name = "log"

    def scalar(self, x: Any) -> Any:
        return te.log(x)

    def numpy(self, x: np.ndarray) -> Any:
        return np.log(x)


@define_op
class Sqrt(FloatUnary):
    """The square root: NaN below 0."""

    name = "sqrt"

    def scalar(self, x: Any) -> Any:
        return te.sqrt(x)

    def numpy(self, x: np.ndarray) -> Any:
        return np.sqrt(x)


@define_op
class Rsqrt(FloatUnary):
    """1 / sqrt(x)."""

    name = "rsqrt"

    def scalar(self, x: Any) -> Any:
        return te.rsqrt(x)

    def numpy(self, x: np.ndarray) -> Any:
        return x.dtype.type(1) / np.sqrt(x)


@define_op
class Tanh(FloatUnary):
    """The hyperbolic tangent."""

    name = "tanh"

    def scalar(self, x: Any) -> Any:
        return te.tanh(x)

    def numpy(self, x: np.ndarray) -> Any:
        return np.tanh(x)


@define_op
class Erf(FloatUnary):
    """The error function."""

    name = "erf"

    def scalar(self, x: Any) -> Any:
        return te.erf(x)

    def numpy(self, x: np.ndarray) -> Any:
        return erf(x)


@define_op
class Sigmoid(FloatUnary):
    """1 / (1 + exp(-x))."""

    name = "sigmoid"

    def scalar(self, x: Any) -> Any:
        return te.sigmoid(x)

    def numpy(self, x: np.ndarray) -> Any:
        return sigmoid(x)


@define_op
class Negative(IntOrFloatUnary):
    """-x; integers modulo 2**bits."""

    name = "negative"

    def scalar(self, x: Any) -> Any:
        return te.negative(x)

    def numpy(self, x: np.ndarray) -> Any:
        return np.negative(x)


@define_op
class Abs(IntOrFloatUnary):
    """The magnitude; the smallest integer stays itself."""

    name = "abs"

    def scalar(self, x: Any) -> Any:
        return te.absolute(x)

    def numpy(self, x: np.ndarray) -> Any:
        return np.abs(x)


@define_op
class LogicalNot(Unary):
    """True where x is false."""

    name = "logical_not"

    def check(self, d: Deduction, x: TensorType) -> None:
        d.require(x.dtype == "bool", f"x must be bool, got {x.dtype}", arg="x", code="op-dtype")

    def scalar(self, x: Any) -> Any:
        return te.logical_not(x)

    def numpy(self, x: np.ndarray) -> Any:
        return np.logical_not(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5, dtype="bool"), dims="n 5")
        yield sample(cls(), rand(0, dtype="bool"), dims="n")
        yield wrong(cls(), rand(3), code="op-dtype", match="bool")


def erf(x: np.ndarray) -> np.ndarray:
    """The error function on an array, in double precision: numpy has none."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))
