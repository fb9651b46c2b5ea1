"""Functions of one element whose edges are defined, for operators: the same results as their
numpy references.

Integer division and remainder by zero give 0, the smallest integer divided by -1 wraps around to
itself, conversions to integers saturate (NaN gives 0), maximum and minimum pass a NaN on. Nothing
here can end the process.
"""

from __future__ import annotations

from typing import Any

from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.tir import math
from relaxpy.tir._tvm import te, tirx
from relaxpy.tir.analyzer import PrimExpr, to_tvm

erf, exp, log, sigmoid, tanh = math.erf, math.exp, math.log, math.sigmoid, math.tanh


def element(x: Any) -> PrimExpr:
    """A read of a tensor, or an expression, as an expression."""
    return x.asobject() if isinstance(x, te.tensor.TensorSlice) else x


def dtype_of(x: Any) -> DType:
    """The dtype of an expression."""
    return DType(str(element(x).ty.dtype))


def literal(value: float, like: Any) -> PrimExpr:
    """`value` in the dtype of `like`."""
    return tirx.const(value, str(dtype_of(like)))


def widen(x: Any) -> PrimExpr:
    """float16 and bfloat16 as float32, in which sums and functions are computed; others as they
    are."""
    x = element(x)
    return x.astype("float32") if dtype_of(x) in ("float16", "bfloat16") else x


def cast(x: Any, dtype: str) -> PrimExpr:
    """`x` as `dtype`: to bool by comparing with 0, from float to integer towards zero,
    saturating, NaN as 0; from integer to integer modulo 2**bits."""
    x, source, target = element(x), dtype_of(x), DType(dtype)
    if source == target:
        return x
    if target.is_bool:
        return not_equal(x, literal(0, x))
    if not (source.is_float and target.is_int):
        return x.astype(str(target))
    x = widen(x)
    low, high = integer_range(target)
    # What is outside must not reach the conversion at all: there its result is undefined.
    beyond = tirx.GE(x, literal(float(high), x))
    below = tirx.LE(x, literal(float(low), x))
    inside = tirx.Select(tirx.any(beyond, below, tirx.isnan(x)), literal(0, x), x).astype(
        str(target)
    )
    ends = tirx.Select(below, tirx.const(low, str(target)), inside)
    return tirx.Select(beyond, tirx.const(high, str(target)), ends)


def integer_range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest integer of `dtype`."""
    if dtype.is_signed:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def maximum(a: Any, b: Any) -> PrimExpr:
    """The greater one; NaN if either is NaN."""
    a, b = element(a), element(b)
    if not dtype_of(a).is_float:
        return tirx.max(a, b)
    return tirx.Select(tirx.GT(a, b), a, tirx.Select(isnan(a), a, b))


def minimum(a: Any, b: Any) -> PrimExpr:
    """The smaller one; NaN if either is NaN."""
    a, b = element(a), element(b)
    if not dtype_of(a).is_float:
        return tirx.min(a, b)
    return tirx.Select(tirx.LT(a, b), a, tirx.Select(isnan(a), a, b))


def isnan(x: Any) -> PrimExpr:
    """Is it a NaN? (TVM takes `x != x` to be false.)"""
    return tirx.isnan(widen(x))


def floor_divide(a: Any, b: Any) -> PrimExpr:
    """The quotient rounded down."""
    a, b = element(a), element(b)
    if dtype_of(a).is_float:
        return tirx.floor(a / b)
    zero, one = literal(0, a), literal(1, a)
    quotient = tirx.floordiv(a, tirx.Select(_special(b), one, b))
    if dtype_of(a).is_signed:
        quotient = tirx.Select(tirx.EQ(b, literal(-1, b)), _wrapping_negative(a), quotient)
    return tirx.Select(tirx.EQ(b, zero), zero, quotient)


def floor_mod(a: Any, b: Any) -> PrimExpr:
    """What is left by `floor_divide`: of the divisor's sign."""
    a, b = element(a), element(b)
    if dtype_of(a).is_float:
        return a - tirx.floor(a / b) * b
    rest = tirx.floormod(a, tirx.Select(_special(b), literal(1, a), b))
    return tirx.Select(_special(b), literal(0, a), rest)


def _special(divisor: PrimExpr) -> PrimExpr:
    """Divisors that the processor may trap on: 0, and -1 under the smallest integer."""
    zero = tirx.EQ(divisor, literal(0, divisor))
    return (
        tirx.any(zero, tirx.EQ(divisor, literal(-1, divisor)))
        if dtype_of(divisor).is_signed
        else zero
    )


def _wrapping_negative(x: PrimExpr) -> PrimExpr:
    """-x modulo 2**bits: signed overflow is undefined, unsigned is not."""
    signed, unsigned = str(dtype_of(x)), f"u{dtype_of(x)}"
    # Not 0 - x: TVM takes an unsigned difference to be at least 0, and so this one to be 0.
    return (tirx.bitwise_not(x.astype(unsigned)) + tirx.const(1, unsigned)).astype(signed)


def per_count(total: Any, count: Dim) -> PrimExpr:
    """`total / count`: a mean. NaN of nothing (TVM refuses to fold a division by a constant 0)."""
    total = element(total)
    if count == 0:
        return literal(float("nan"), total)
    return total / to_tvm(count).astype(str(dtype_of(total)))


def negative(x: Any) -> PrimExpr:
    """-x; integers modulo 2**bits."""
    x = element(x)
    if dtype_of(x).is_float:
        return x * literal(-1, x)
    if dtype_of(x).is_signed:
        return _wrapping_negative(x)
    return tirx.bitwise_not(x) + literal(1, x)


def absolute(x: Any) -> PrimExpr:
    """The magnitude; the smallest integer stays itself."""
    x = element(x)
    if not dtype_of(x).is_signed:
        return x
    if dtype_of(x).is_float:
        return tirx.abs(x)
    return tirx.Select(tirx.LT(x, literal(0, x)), _wrapping_negative(x), x)


def sqrt(x: Any) -> PrimExpr:
    """The square root; NaN below zero."""
    return tirx.sqrt(element(x))


def rsqrt(x: Any) -> PrimExpr:
    """1 / sqrt(x)."""
    x = element(x)
    return literal(1, x) / tirx.sqrt(x)


def power(a: Any, b: Any) -> PrimExpr:
    """A to the power b."""
    return tirx.power(element(a), element(b))


def logical_and(a: Any, b: Any) -> PrimExpr:
    return tirx.all(element(a), element(b))


def logical_or(a: Any, b: Any) -> PrimExpr:
    return tirx.any(element(a), element(b))


def logical_not(a: Any) -> PrimExpr:
    return tirx.Not(element(a))


def _comparable(x: Any) -> PrimExpr:
    """TVM compares bools as floats, which LLVM refuses: they are compared as integers."""
    x = element(x)
    return x.astype("int8") if dtype_of(x).is_bool else x


def equal(a: Any, b: Any) -> PrimExpr:
    return tirx.EQ(_comparable(a), _comparable(b))


def not_equal(a: Any, b: Any) -> PrimExpr:
    """TVM takes `x != x` to be false, which it is not for a NaN."""
    a, b = _comparable(a), _comparable(b)
    differ = tirx.NE(a, b)
    return tirx.any(differ, isnan(a), isnan(b)) if dtype_of(a).is_float else differ


def less(a: Any, b: Any) -> PrimExpr:
    return tirx.LT(element(a), element(b))


def less_equal(a: Any, b: Any) -> PrimExpr:
    return tirx.LE(element(a), element(b))


def greater(a: Any, b: Any) -> PrimExpr:
    return tirx.GT(element(a), element(b))


def greater_equal(a: Any, b: Any) -> PrimExpr:
    return tirx.GE(element(a), element(b))


def _reducer(combine: Any, low: bool) -> Any:
    def identity(dtype: str) -> PrimExpr:
        kind = DType(str(dtype))
        if kind.is_float:
            return tirx.const(float("-inf" if low else "inf"), str(kind))
        return tirx.const(integer_range(kind)[0 if low else 1], str(kind))

    return te.comm_reducer(combine, identity, name="maximum" if low else "minimum")


def reduce_max(value: Any, axis: Any) -> PrimExpr:
    """The greatest along `axis`: NaN if there is one; -infinity or the smallest integer of
    nothing."""
    return _reducer(maximum, True)(value, axis=axis)


def reduce_min(value: Any, axis: Any) -> PrimExpr:
    """The smallest along `axis`: NaN if there is one; infinity or the greatest integer of
    nothing."""
    return _reducer(minimum, False)(value, axis=axis)
