"""Scalar functions with defined results in all cases, for operators: the same results as their numpy references.

Elementary functions are calls (`T.exp(x)`), so that programs can be read and recognised; the backend expands them
(`relaxpy.tir.programs.elementary` on processors).

Integer division and remainder by zero give 0, the smallest integer divided by -1 wraps around to itself, conversions to
integers saturate (NaN gives 0), maximum and minimum propagate NaN. Nothing here can end the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.dtype import DType
from relaxpy.tir.analyzer import PrimExpr, to_tvm
from relaxpy.tir.numerics import integer
from relaxpy.tir.numerics.floats import from_bits, i32, is_compound, let, to_bits
from relaxpy.tir.tvm import te, tirx

infinity = float("inf")
log_of_2 = 0.6931471805599453

integer_power, integer_range = integer.power, integer.integer_range


def element(x: Any) -> PrimExpr:
    """Convert a read of a tensor, a loop of a reduction, or an expression to an expression."""
    if isinstance(x, tirx.IterVar):
        return x.var
    return x.asobject() if isinstance(x, te.tensor.TensorSlice) else x


def _called(function: Callable[..., PrimExpr]) -> Callable[..., PrimExpr]:
    """A function of floats that remains a call in programs."""
    return lambda *xs: function(*map(element, xs))


erf, exp, log, log1p = map(_called, (tirx.erf, tirx.exp, tirx.log, tirx.log1p))
fmod, sigmoid = map(_called, (tirx.fmod, tirx.sigmoid))
acos, asin, atan, atan2 = map(_called, (tirx.acos, tirx.asin, tirx.atan, tirx.atan2))
cos, sin, tan = map(_called, (tirx.cos, tirx.sin, tirx.tan))
acosh, asinh, atanh = map(_called, (tirx.acosh, tirx.asinh, tirx.atanh))
cosh, sinh, tanh = map(_called, (tirx.cosh, tirx.sinh, tirx.tanh))
nextafter = _called(tirx.nextafter)


def dtype_of(x: Any) -> DType:
    """The dtype of an expression."""
    return DType(str(element(x).ty.dtype))


def literal(value: float, like: Any) -> PrimExpr:
    """`value` in the dtype of `like`."""
    return tirx.const(value, str(dtype_of(like)))


def times(x: Any, value: float) -> PrimExpr:
    """`x * value` of floats. A value of 0 is written by its bits: TVM takes `x * 0` for 0, which it is not for NaN and
    infinities, nor in the sign."""
    x = element(x)
    if value:
        return x * literal(value, x)
    dtype = dtype_of(x)
    bits = np.zeros((), dtype.numpy)
    bits[()] = value
    integer_of = f"int{8 * bits.itemsize}"
    return x * tirx.reinterpret(str(dtype), tirx.const(int(bits.view(integer_of)), integer_of))


def widen(x: Any) -> PrimExpr:
    """Convert floats of 8 and 16 bits to float32, in which sums and functions are computed; others unchanged."""
    x = element(x)
    return x.astype("float32") if dtype_of(x).is_narrow else x


def power(x: Any, y: Any) -> PrimExpr:
    """x**y of floats."""
    return _of_wide(tirx.pow, element(x), element(y))


def _of_wide(function: Callable[..., PrimExpr], *xs: PrimExpr) -> PrimExpr:
    """A function of floats that TVM does not have of bfloat16 and of 8 bits: computed in float32, and rounded."""
    dtype = dtype_of(xs[0])
    if dtype.bits > 8 and dtype != "bfloat16":
        return function(*xs)
    return function(*map(widen, xs)).astype(str(dtype))


def cast(x: Any, dtype: str) -> PrimExpr:
    """Convert `x` to `dtype`: to bool by comparing with 0, from float to integer by truncation and saturation (NaN
    gives 0), from integer to integer modulo 2**bits."""
    x, source, target = element(x), dtype_of(x), DType(dtype)
    if source == target:
        return x
    if target.is_bool:
        return not_equal(x, literal(0, x))
    signs = target.is_int and target.is_signed and source.is_int and not source.is_signed
    if signs and target.bits <= source.bits:
        # TVM assumes that an unsigned value stays at least 0 whatever it is converted to, and drops checks of it. It
        # assumes nothing about the same bits as a signed number.
        return tirx.reinterpret(f"int{source.bits}", x).astype(str(target))
    if not (source.is_float and target.is_int):
        return x.astype(str(target))
    x = widen(x)
    if is_compound(x):
        return let("x", x, lambda value: cast(value, target))
    low, high = integer_range(target)
    # Values out of range must not reach the conversion, whose result is undefined for them.
    beyond = tirx.GE(x, literal(float(high), x))
    below = tirx.LE(x, literal(float(low), x))
    inside = tirx.Select(tirx.any(beyond, below, tirx.isnan(x)), literal(0, x), x).astype(
        str(target)
    )
    ends = tirx.Select(below, tirx.const(low, str(target)), inside)
    return tirx.Select(beyond, tirx.const(high, str(target)), ends)


def reinterpret(x: Any, dtype: str) -> PrimExpr:
    """The bits of `x` as a number of another dtype of that width; a bool's are those of 0 and 1."""
    x, target = element(x), DType(dtype)
    if dtype_of(x).is_bool:
        x = x.astype("uint8")
    elif dtype_of(x).is_float and target.is_float and dtype_of(x) != target:
        x = tirx.reinterpret(f"uint{target.bits}", x)  # one narrow float as another is a conversion
    return x if dtype_of(x) == target else tirx.reinterpret(str(target), x)


def upper_digits(x: Any) -> PrimExpr:
    """A float32 or float64 with zeros for the lower half of its digits: its square is exact."""
    x = element(x)
    bits, gone = dtype_of(x).bits, 12 if dtype_of(x).bits == 32 else 27
    word = f"int{bits}"
    return tirx.reinterpret(
        str(dtype_of(x)), tirx.reinterpret(word, x) & tirx.const(-(1 << gone), word)
    )


def maximum(a: Any, b: Any) -> PrimExpr:
    """The larger one; NaN if either is NaN."""
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
    """Is it a NaN? (TVM simplifies `x != x` to false.)"""
    x = element(x)
    return tirx.isnan(widen(x)) if dtype_of(x).is_float else tirx.const(False, "bool")


def add(a: Any, b: Any) -> PrimExpr:
    """The sum; integers modulo 2**bits."""
    return element(a) + element(b)


def subtract(a: Any, b: Any) -> PrimExpr:
    """The difference; integers modulo 2**bits."""
    return element(a) - element(b)


def multiply(a: Any, b: Any) -> PrimExpr:
    """The product; integers modulo 2**bits."""
    return element(a) * element(b)


def divide(a: Any, b: Any) -> PrimExpr:
    """The quotient; of integers rounded towards zero."""
    a, b = element(a), element(b)
    return a / b if dtype_of(a).is_float else integer.divide(a, b)


def mod(a: Any, b: Any) -> PrimExpr:
    """The remainder of a quotient rounded towards zero, with the sign of the dividend."""
    a, b = element(a), element(b)
    return fmod(a, b) if dtype_of(a).is_float else integer.mod(a, b)


def floor_divide(a: Any, b: Any) -> PrimExpr:
    """The quotient rounded down."""
    a, b = element(a), element(b)
    if not dtype_of(a).is_float:
        return integer.floor_divide(a, b)
    zero, one = literal(0, a), literal(1, a)

    def rounded(quotient: PrimExpr) -> PrimExpr:
        # An integer up to rounding: if it was rounded below, it is the next one.
        down = tirx.floor(quotient)
        nearest = tirx.Select(quotient - down > literal(0.5, a), down + one, down)
        signed_zero = tirx.Select(tirx.EQ(a, zero), a / b, zero)
        return tirx.Select(tirx.EQ(quotient, zero), signed_zero, nearest)

    def quotient(rest: PrimExpr) -> PrimExpr:
        exact = (a - rest) / b
        return tirx.Select(_opposite(rest, b), exact - one, exact)

    whole = let("r", fmod(a, b), lambda r: let("q", quotient(r), rounded))
    return tirx.Select(tirx.EQ(b, zero), a / b, whole)


def floor_mod(a: Any, b: Any) -> PrimExpr:
    """The remainder of `floor_divide`, with the sign of the divisor."""
    a, b = element(a), element(b)
    if not dtype_of(a).is_float:
        return integer.floor_mod(a, b)
    zero = literal(0, a)

    def of_sign(rest: PrimExpr) -> PrimExpr:
        # Not a choice between the zeros, which TVM considers equal.
        signed_zero = absolute(rest) * tirx.Select(b < zero, literal(-1, a), literal(1, a))
        moved = tirx.Select(_opposite(rest, b), rest + b, rest)
        return tirx.Select(tirx.EQ(rest, zero), signed_zero, moved)

    return let("r", fmod(a, b), of_sign)


def _opposite(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Do the floats have opposite signs, neither being 0?"""
    zero = literal(0, a)
    return tirx.any(tirx.all(a < zero, b > zero), tirx.all(a > zero, b < zero))


def per_count(total: Any, count: Dim) -> PrimExpr:
    """`total / count`: a mean. Of floats, NaN for a count of 0 (TVM refuses to fold a division by a constant 0). Of
    integers, whose dtype holds the count, the quotient rounded towards zero; 0 for a count of 0."""
    total = element(total)
    dtype = dtype_of(total)
    if not dtype.is_float:
        return integer.divide(total, to_tvm(dim_op("max", count, 1)).astype(str(dtype)))
    if count == 0:
        return literal(float("nan"), total)
    return total / to_tvm(count).astype(str(dtype))


def negative(x: Any) -> PrimExpr:
    """-x; integers modulo 2**bits."""
    x = element(x)
    return x * literal(-1, x) if dtype_of(x).is_float else integer.negative(x)


def absolute(x: Any) -> PrimExpr:
    """The magnitude; the smallest integer stays itself."""
    x = element(x)
    if not dtype_of(x).is_float:
        return integer.absolute(x)
    return _of_wide(tirx.abs, x)


def sign(x: Any) -> PrimExpr:
    """1, 0 or -1; NaN of a NaN."""
    x = element(x)
    zero, one = literal(0, x), literal(1, x)
    if not dtype_of(x).is_signed:
        return tirx.Select(tirx.GT(x, zero), one, zero)
    below = tirx.Select(tirx.LT(x, zero), literal(-1, x), zero)
    if dtype_of(x).is_float:
        below = tirx.Select(isnan(x), x, below)
    return tirx.Select(tirx.GT(x, zero), one, below)


def clip(x: Any, low: float, high: float) -> PrimExpr:
    """`x` limited to at least `low`, and then to at most `high`; NaN stays NaN."""
    x = element(x)
    return minimum(maximum(x, literal(low, x)), literal(high, x))


def square(x: Any) -> PrimExpr:
    """The product with itself; integers modulo 2**bits."""
    x = element(x)
    return x * x


def sqrt(x: Any) -> PrimExpr:
    """The square root; NaN below zero."""
    return tirx.sqrt(element(x))


def rsqrt(x: Any) -> PrimExpr:
    """1 / sqrt(x)."""
    x = element(x)
    return literal(1, x) / tirx.sqrt(x)


def log_add_exp(a: Any, b: Any) -> PrimExpr:
    """log(exp(a) + exp(b)) without overflow."""

    def result(a: PrimExpr, b: PrimExpr) -> PrimExpr:
        rest = log1p(exp(negative(absolute(a - b))))
        # The difference of equal infinities is undefined.
        rest = tirx.Select(tirx.EQ(a, b), literal(log_of_2, a), rest)
        return maximum(a, b) + rest

    return let("a", element(a), lambda a: let("b", element(b), lambda b: result(a, b)))


def ewise_fma(a: Any, b: Any, c: Any) -> PrimExpr:
    """The sum a * b + c."""
    return element(a) * element(b) + element(c)


def _rounding(function: Callable[[PrimExpr], PrimExpr]) -> Callable[[Any], PrimExpr]:
    """A rounding function of floats; integers are returned unchanged."""

    def rounded(x: Any) -> PrimExpr:
        x = element(x)
        return function(x) if dtype_of(x).is_float else x

    return rounded


ceil, floor, trunc = _rounding(tirx.ceil), _rounding(tirx.floor), _rounding(tirx.trunc)
round = _rounding(tirx.nearbyint)
"""Round to the nearest integer, ties to even."""


def isfinite(x: Any) -> PrimExpr:
    """Is it neither infinite nor a NaN?"""
    x = element(x)
    if not dtype_of(x).is_float:
        return tirx.const(True, "bool")
    x = widen(x)
    return tirx.LT(tirx.abs(x), literal(infinity, x))


def isinf(x: Any) -> PrimExpr:
    """Is it infinite, of either sign?"""
    x = element(x)
    if not dtype_of(x).is_float:
        return tirx.const(False, "bool")
    x = widen(x)
    return tirx.EQ(tirx.abs(x), literal(infinity, x))


def bitwise_not(x: Any) -> PrimExpr:
    """Invert every bit; for a bool, its negation."""
    x = element(x)
    return logical_not(x) if dtype_of(x).is_bool else tirx.bitwise_not(x)


def bitwise_and(a: Any, b: Any) -> PrimExpr:
    return _bit_by_bit(tirx.bitwise_and, logical_and, a, b)


def bitwise_or(a: Any, b: Any) -> PrimExpr:
    return _bit_by_bit(tirx.bitwise_or, logical_or, a, b)


def bitwise_xor(a: Any, b: Any) -> PrimExpr:
    return _bit_by_bit(tirx.bitwise_xor, logical_xor, a, b)


def _bit_by_bit(
    bitwise: Callable[..., PrimExpr], logical: Callable[..., PrimExpr], a: Any, b: Any
) -> PrimExpr:
    a, b = element(a), element(b)
    return logical(a, b) if dtype_of(a).is_bool else bitwise(a, b)


def left_shift(a: Any, b: Any) -> PrimExpr:
    """The product a * 2**b modulo 2**bits; see `relaxpy.tir.numerics.integer`."""
    return integer.left_shift(element(a), element(b))


def right_shift(a: Any, b: Any) -> PrimExpr:
    """The quotient a / 2**b rounded down; see `relaxpy.tir.numerics.integer`."""
    return integer.right_shift(element(a), element(b))


def population_count(x: Any) -> PrimExpr:
    """The number of bits that are set."""
    return integer.population_count(element(x))


def count_leading_zeros(x: Any) -> PrimExpr:
    """The number of bits above the highest that is set; all of 0."""
    return integer.count_leading_zeros(element(x))


def logical_and(a: Any, b: Any) -> PrimExpr:
    return tirx.all(element(a), element(b))


def logical_or(a: Any, b: Any) -> PrimExpr:
    return tirx.any(element(a), element(b))


def logical_xor(a: Any, b: Any) -> PrimExpr:
    return not_equal(a, b)


def logical_not(a: Any) -> PrimExpr:
    """Not `tirx.Not`: TVM rewrites `not a < b` to `a >= b`, which is wrong for a NaN."""
    return tirx.EQ(_comparable(a), tirx.const(0, "int8"))


def _comparable(x: Any) -> PrimExpr:
    """Convert bools to integers for comparisons: TVM compares them as floats, which LLVM refuses."""
    x = element(x)
    return x.astype("int8") if dtype_of(x).is_bool else x


def equal(a: Any, b: Any) -> PrimExpr:
    """Equality. TVM simplifies `x == x` to true, which is wrong for a NaN."""
    a, b = _comparable(a), _comparable(b)
    same = tirx.EQ(a, b)
    return tirx.all(same, logical_not(isnan(a))) if dtype_of(a).is_float else same


def not_equal(a: Any, b: Any) -> PrimExpr:
    """Inequality. TVM simplifies `x != x` to false, which is wrong for a NaN."""
    a, b = _comparable(a), _comparable(b)
    differ = tirx.NE(a, b)
    return tirx.any(differ, isnan(a), isnan(b)) if dtype_of(a).is_float else differ


def less(a: Any, b: Any) -> PrimExpr:
    return tirx.LT(_comparable(a), _comparable(b))


def less_equal(a: Any, b: Any) -> PrimExpr:
    return tirx.LE(_comparable(a), _comparable(b))


def greater(a: Any, b: Any) -> PrimExpr:
    return tirx.GT(_comparable(a), _comparable(b))


def greater_equal(a: Any, b: Any) -> PrimExpr:
    return tirx.GE(_comparable(a), _comparable(b))


def compared(compare: Callable[[Any, Any], PrimExpr], a: Any, b: Any) -> PrimExpr:
    """Compare numbers whose dtypes may differ: integers exactly, an integer and a float in a float type that represents
    both."""
    a, b = element(a), element(b)
    left, right = dtype_of(a), dtype_of(b)
    if left == right:
        return compare(a, b)
    if left.is_float or right.is_float:
        wide = any(x.bits == 64 or (x.is_int and x.bits == 32) for x in (left, right))
        common = "float64" if wide else "float32"
    elif "uint64" in (left, right):
        return _compared_with_uint64(compare, a, b)
    else:
        common = "int64"
    return compare(cast(a, common), cast(b, common))


def _compared_with_uint64(
    compare: Callable[[Any, Any], PrimExpr], a: PrimExpr, b: PrimExpr
) -> PrimExpr:
    """Compare with a uint64: a negative number is less than any uint64; other numbers are converted."""

    def below(x: PrimExpr) -> PrimExpr | None:
        signed = dtype_of(x).is_int and dtype_of(x).is_signed
        return tirx.LT(x, literal(0, x)) if signed else None

    found = compare(cast(a, "uint64"), cast(b, "uint64"))
    zero, one = tirx.const(0, "int8"), tirx.const(1, "int8")
    for x, ends in ((a, (zero, one)), (b, (one, zero))):
        negative = below(x)
        if negative is not None:
            found = tirx.Select(negative, compare(*ends), found)
    return found


def _reducer(combine: Any, low: bool) -> Any:
    def identity(dtype: str) -> PrimExpr:
        kind = DType(str(dtype))
        if kind.is_float:
            return tirx.const(kind.limits[0 if low else 1], str(kind))
        return tirx.const(integer_range(kind)[0 if low else 1], str(kind))

    return te.comm_reducer(combine, identity, name="maximum" if low else "minimum")


def float_order(x: Any) -> PrimExpr:
    """An int32 for a float32, in the same order: reductions of integers take one instruction a vector. NaNs are beyond
    the infinities of their sign, so the largest or the smallest of numbers with a NaN tells that it is there."""
    return _without_sign_order(to_bits(element(x)))


def in_float_order(word: Any) -> PrimExpr:
    """The float32 of an int32 of `float_order`."""
    return from_bits(_without_sign_order(element(word)))


def _without_sign_order(word: PrimExpr) -> PrimExpr:
    """The bits with those below the sign inverted if it is set: its own inverse."""
    return word ^ ((word >> i32(31)) & i32(0x7FFFFFFF))


def reduce_max(value: Any, axis: Any) -> PrimExpr:
    """The maximum along `axis`, NaN if an element is NaN. For no elements, -infinity or the smallest integer."""
    return _reducer(maximum, True)(value, axis=axis)


def reduce_min(value: Any, axis: Any) -> PrimExpr:
    """The minimum along `axis`, NaN if an element is NaN. For no elements, infinity or the largest integer."""
    return _reducer(minimum, False)(value, axis=axis)
