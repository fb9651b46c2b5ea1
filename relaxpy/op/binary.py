"""Elementwise functions of two or three tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from relaxpy.ir.dim import Dim, dim_op, maximum, minimum
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Sample, define_op, sample
from relaxpy.op.elementwise import Binary, Ternary
from relaxpy.op.rule import BOOL, INTEGERS, Rule


def _divided(op: str, x1: Dim, x2: Dim) -> Dim | None:
    """An integer quotient or remainder as a dimension; None if the divisor may be 0."""
    return dim_op(op, x1, x2) if x2.value else None


@define_op
class Add(Binary):
    """x1 + x2; integers modulo 2**bits."""

    name = "add"
    ufunc = np.add
    size = operator.add

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [ct, ct]


@define_op
class Subtract(Binary):
    """x1 - x2; integers modulo 2**bits."""

    name = "subtract"
    ufunc = np.subtract
    size = operator.sub

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [ct, b.negative(ct)]


@define_op
class Multiply(Binary):
    """x1 * x2; integers modulo 2**bits."""

    name = "multiply"
    ufunc = np.multiply
    size = operator.mul

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        x1, x2 = args
        return [b.multiply(ct, x2), b.multiply(ct, x1)]


@define_op
class Divide(Binary):
    """x1 / x2. Integers are rounded toward zero; x2 = 0 gives 0, and the smallest integer divided by -1 gives
    itself."""

    name = "divide"
    mixed = "never"

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        if DType(x1.dtype).is_float:
            return np.divide(x1, x2)
        quotient = np.floor_divide(x1, np.where(x2 == 0, 1, x2))
        inexact = quotient * x2 != x1
        return np.where(x2 == 0, 0, quotient + ((x1 < 0) != (x2 < 0)) * inexact.astype(x1.dtype))

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        share = b.divide(ct, args[1])
        return [share, b.negative(b.multiply(share, out))]


@define_op
class Mod(Binary):
    """The remainder of a division rounded toward zero; it has the sign of x1, as C's `%` and `fmod`. Where x2 is 0,
    integers give 0 and floats NaN. Other float results are exact."""

    name = "mod"
    mixed = "never"

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        if DType(x1.dtype).is_float:
            return np.fmod(x1, x2)
        return np.where(x2 == 0, 0, np.fmod(x1, np.where(x2 == 0, 1, x2)))

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        x1, x2 = args
        return [ct, b.negative(b.multiply(ct, b.trunc(b.divide(x1, x2))))]


@define_op
class FloorDivide(Binary):
    """x1 / x2 rounded down. Integers: x2 = 0 gives 0, and the smallest integer divided by -1 gives itself. Floats: (x1
    - floor_mod(x1, x2)) / x2 rounded to the nearest whole number; x1 / x2 where x2 is 0."""

    name = "floor_divide"
    mixed = "never"
    size = partial(_divided, "floordiv")

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        if DType(x1.dtype).is_float:
            return np.floor_divide(x1, x2)
        return np.where(x2 == 0, 0, np.floor_divide(x1, np.where(x2 == 0, 1, x2)))

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [None, None]  # constant, but at jumps


@define_op
class FloorMod(Binary):
    """The remainder of a division rounded down; it has the sign of x2, as Python's `%`. Where x2 is 0, integers give 0
    and floats NaN."""

    name = "floor_mod"
    mixed = "never"
    size = partial(_divided, "floormod")

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        if DType(x1.dtype).is_float:
            return np.mod(x1, x2)
        return np.where(x2 == 0, 0, np.mod(x1, np.where(x2 == 0, 1, x2)))

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        x1, x2 = args
        return [ct, b.negative(b.multiply(ct, b.floor(b.divide(x1, x2))))]


@define_op
class Power(Binary):
    """x1 to the power x2. Integers: modulo 2**bits; a negative exponent gives the integer part, which is 0 unless x1 is
    1 or -1; 0 to the power 0 is 1. Floats: NaN where x1 is negative and x2 is not a whole number."""

    name = "power"
    mixed = "never"

    def legalize(self, out: KnownTensor, x1: te.Tensor, x2: te.Tensor) -> te.Tensor:
        if DType(str(x1.dtype)).is_float:
            return super().legalize(out, x1, x2)
        x1, x2 = te.as_tensor(x1), te.as_tensor(x2)
        return te.integer_power(x1, x2, out.dims, (te.dims(x1), te.dims(x2)))

    def numpy(self, x1: np.ndarray, x2: np.ndarray) -> Any:
        if DType(x1.dtype).is_float:
            return np.power(x1, x2)
        inverse = np.where(x1 == 1, 1, np.where(x1 == -1, np.where(x2 % 2 == 1, -1, 1), 0))
        return np.where(x2 < 0, inverse, np.power(x1, np.maximum(x2, 0)))

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        x1, x2 = args
        base = b.multiply(x2, b.power(x1, b.subtract(x2, 1.0)))
        flat = b.logical_and(b.equal(x1, 0.0), b.greater_equal(x2, 0.0))
        return [
            b.multiply(ct, b.where(b.equal(x2, 0.0), 0.0, base)),
            b.multiply(ct, b.where(flat, 0.0, b.multiply(out, b.log(x1)))),
        ]


@define_op
class Maximum(Binary):
    """The elementwise maximum; NaN if either is NaN."""

    name = "maximum"
    ufunc = np.maximum
    size = maximum

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        x1, x2 = args
        return shared(b, ct, x1, x2)


@define_op
class Minimum(Binary):
    """The elementwise minimum; NaN if either is NaN."""

    name = "minimum"
    ufunc = np.minimum
    size = minimum

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        x1, x2 = args
        return shared(b, ct, x2, x1)


@define_op
class Atan2(Binary):
    """The angle of the point (x2, x1), in [-pi, pi]. The signs of zeros and infinities count. Integer results are
    rounded toward 0."""

    name = "atan2"
    mixed = "never"
    in_float = True
    ufunc = np.arctan2

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        x1, x2 = args
        share = b.divide(ct, b.add(b.square(x1), b.square(x2)))
        return [b.multiply(share, x2), b.negative(b.multiply(share, x1))]


@define_op
class LogAddExp(Binary):
    """log(exp(x1) + exp(x2)) without overflow. Integer results are rounded toward 0."""

    name = "log_add_exp"
    mixed = "never"
    in_float = True
    ufunc = np.logaddexp

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        x1, x2 = args
        part = b.sigmoid(b.subtract(x1, x2))
        return [b.multiply(ct, part), b.multiply(ct, b.subtract(1.0, part))]


@define_op
class NextAfter(Binary):
    """The next number of the dtype after x1 towards x2; x2 if they are equal."""

    name = "nextafter"
    no_vjp = "it steps from one float to the next"
    mixed = "never"
    takes = "floats"

    def legalize(self, out: KnownTensor, *xs: te.Tensor) -> te.Tensor:
        return te.compute(
            out.dims, lambda *i: te.nextafter(*(te.broadcast(x, out.dims, i) for x in xs))
        )

    def reference(self, *xs: np.ndarray) -> np.ndarray:
        x1, x2 = np.broadcast_arrays(*xs)
        return np.where(x1 == x2, x2, np.nextafter(x1, x2))  # of zeros not the same for all dtypes

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        x1 = np.array([1, 1, -1, 0, -0.0, 1e-45, 3.4028235e38, np.inf, 2, np.nan], np.float32)
        x2 = np.array([2, 0, 0, 1, -1, 0, np.inf, 0, 2, 1], np.float32)
        for dtype in ("float32", "float64", "float16", "bfloat16"):
            with np.errstate(over="ignore"):
                exact = x1.astype(DType(dtype).numpy), x2.astype(DType(dtype).numpy)
            yield sample(cls(), *exact, dims="n, n", rtol=0, atol=0)


@define_op
class LogicalAnd(Binary):
    """Logical and."""

    name = "logical_and"
    no_vjp = BOOL
    size = partial(dim_op, "and")
    takes = "bool"
    ufunc = np.logical_and


@define_op
class LogicalOr(Binary):
    """Logical or."""

    name = "logical_or"
    no_vjp = BOOL
    size = partial(dim_op, "or")
    takes = "bool"
    ufunc = np.logical_or


@define_op
class LogicalXor(Binary):
    """Logical exclusive or."""

    name = "logical_xor"
    no_vjp = BOOL
    takes = "bool"
    ufunc = np.logical_xor


@define_op
class BitwiseAnd(Binary):
    """Bitwise and; logical and for bools."""

    name = "bitwise_and"
    no_vjp = INTEGERS
    takes = "integers or bool"
    ufunc = np.bitwise_and


@define_op
class BitwiseOr(Binary):
    """Bitwise or; logical or for bools."""

    name = "bitwise_or"
    no_vjp = INTEGERS
    takes = "integers or bool"
    ufunc = np.bitwise_or


@define_op
class BitwiseXor(Binary):
    """Bitwise exclusive or; logical exclusive or for bools."""

    name = "bitwise_xor"
    no_vjp = INTEGERS
    takes = "integers or bool"
    ufunc = np.bitwise_xor


@define_op
class LeftShift(Binary):
    """x1 * 2**x2 modulo 2**bits; 0 where x2 is negative or at least the number of bits."""

    name = "left_shift"
    no_vjp = INTEGERS
    takes = "integers"
    ufunc = np.left_shift


@define_op
class RightShift(Binary):
    """x1 / 2**x2 rounded down (arithmetic shift). Where x2 is negative or at least the number of bits: -1 for a
    negative x1, else 0."""

    name = "right_shift"
    no_vjp = INTEGERS
    takes = "integers"
    ufunc = np.right_shift


@define_op
class EwiseFma(Ternary):
    """Multiply and add: x1 * x2 + x3; integers modulo 2**bits."""

    name = "ewise_fma"

    def numpy(self, x1: np.ndarray, x2: np.ndarray, x3: np.ndarray) -> Any:
        return x1 * x2 + x3

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        x1, x2, _ = args
        return [b.multiply(ct, x2), b.multiply(ct, x1), ct]


def shared(b: Rule, ct: Expr, greater: Expr, less: Expr) -> list[Expr | None]:
    """Two cotangents for the arguments of a maximum, or with the arguments swapped a minimum: the first where `greater`
    is, the second where it is not, and half each where they are equal."""
    half = b.where(b.equal(greater, less), b.multiply(ct, 0.5), ct)
    return [b.where_not(b.less(greater, less), half), b.where_not(b.greater(greater, less), half)]
