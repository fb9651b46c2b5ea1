"""Elementwise functions of one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter
from typing import Any

import ml_dtypes
import numpy as np

from relaxpy.ir.annotation import PrimType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Expr, PrimValue, Var
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Sample, define_op, rand, sample, wrong
from relaxpy.op.binary import Maximum, Minimum
from relaxpy.op.deduction import Deduction
from relaxpy.op.elementwise import FloatUnary, Unary
from relaxpy.op.rule import BOOL, INTEGERS, Rule


@define_op
class Exp(FloatUnary):
    """The exponential function e**x."""

    name = "exp"
    mixed = "never"
    ufunc = np.exp

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return out


@define_op
class Log(FloatUnary):
    """The natural logarithm: -infinity at 0, NaN below."""

    name = "log"
    mixed = "never"
    ufunc = np.log

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        return [b.divide(ct, x)]


@define_op
class Log2(FloatUnary):
    """The logarithm to base 2: -infinity at 0, NaN below."""

    name = "log2"
    mixed = "never"
    ufunc = np.log2

    def scalar(self, x: Any) -> Any:
        return te.log(x) * te.literal(1 / math.log(2), x)

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        return [b.divide(ct, b.multiply(x, math.log(2)))]


@define_op
class Log10(FloatUnary):
    """The logarithm to base 10: -infinity at 0, NaN below."""

    name = "log10"
    mixed = "never"
    ufunc = np.log10

    def scalar(self, x: Any) -> Any:
        return te.log(x) * te.literal(1 / math.log(10), x)

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        return [b.divide(ct, b.multiply(x, math.log(10)))]


@define_op
class Log1p(FloatUnary):
    """log(1 + x), accurate near 0: -infinity at -1, NaN below."""

    name = "log1p"
    mixed = "never"
    ufunc = np.log1p

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        return [b.divide(ct, b.add(x, 1.0))]


@define_op
class Expm1(FloatUnary):
    """e**x - 1, accurate near 0."""

    name = "expm1"
    mixed = "never"
    ufunc = np.expm1

    def scalar(self, x: Any) -> Any:
        # The error of e**x is that of its own logarithm (Kahan); far from 0 it does not matter.
        one = te.literal(1, x)
        power = te.exp(x)
        near = (power - one) * (x / te.log(power))
        far = te.logical_or(te.absolute(x) > te.literal(1, x), te.isnan(x))
        return te.select(far, power - one, te.select(te.equal(power, one), x, near))

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.add(out, 1.0)


@define_op
class Sqrt(FloatUnary):
    """The square root: NaN below 0."""

    name = "sqrt"
    ufunc = np.sqrt

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [b.divide(ct, b.multiply(out, 2.0))]


@define_op
class Rsqrt(FloatUnary):
    """The reciprocal square root 1 / sqrt(x): infinity at 0, NaN below."""

    name = "rsqrt"
    mixed = "never"

    def numpy(self, x: np.ndarray) -> Any:
        return x.dtype.type(1) / np.sqrt(x)

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [b.multiply(b.multiply(ct, -0.5), b.multiply(b.square(out), out))]


@define_op
class Sin(FloatUnary):
    """The sine of x in radians, for x of any magnitude; NaN for infinities."""

    name = "sin"
    ufunc = np.sin

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.cos(x)


@define_op
class Cos(FloatUnary):
    """The cosine of x in radians, for x of any magnitude; NaN for infinities."""

    name = "cos"
    ufunc = np.cos

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.negative(b.sin(x))


@define_op
class Tan(FloatUnary):
    """The tangent of x in radians, for x of any magnitude; NaN for infinities."""

    name = "tan"
    mixed = "never"
    ufunc = np.tan

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.add(b.square(out), 1.0)


@define_op
class Asin(FloatUnary):
    """The arcsine, in [-pi/2, pi/2]; NaN if |x| > 1."""

    name = "asin"
    mixed = "never"
    ufunc = np.arcsin

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.rsqrt(b.subtract(1.0, b.square(x)))


@define_op
class Acos(FloatUnary):
    """The arccosine, in [0, pi]; NaN if |x| > 1."""

    name = "acos"
    mixed = "never"
    ufunc = np.arccos

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.negative(b.rsqrt(b.subtract(1.0, b.square(x))))


@define_op
class Atan(FloatUnary):
    """The arctangent, in [-pi/2, pi/2]."""

    name = "atan"
    ufunc = np.arctan

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        return [b.divide(ct, b.add(b.square(x), 1.0))]


@define_op
class Sinh(FloatUnary):
    """The hyperbolic sine."""

    name = "sinh"
    mixed = "never"
    ufunc = np.sinh

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.cosh(x)


@define_op
class Cosh(FloatUnary):
    """The hyperbolic cosine."""

    name = "cosh"
    mixed = "never"
    ufunc = np.cosh

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.sinh(x)


@define_op
class Tanh(FloatUnary):
    """The hyperbolic tangent."""

    name = "tanh"
    ufunc = np.tanh

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.subtract(1.0, b.square(out))


@define_op
class Asinh(FloatUnary):
    """The inverse hyperbolic sine."""

    name = "asinh"
    mixed = "never"
    ufunc = np.arcsinh

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.rsqrt(b.add(b.square(x), 1.0))


@define_op
class Acosh(FloatUnary):
    """The inverse hyperbolic cosine, not negative; NaN below 1."""

    name = "acosh"
    mixed = "never"
    ufunc = np.arccosh

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.rsqrt(b.subtract(b.square(x), 1.0))


@define_op
class Atanh(FloatUnary):
    """The inverse hyperbolic tangent: infinite at 1 and -1, NaN beyond."""

    name = "atanh"
    mixed = "never"
    ufunc = np.arctanh

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        return [b.divide(ct, b.subtract(1.0, b.square(x)))]


@define_op
class Erf(FloatUnary):
    """The error function."""

    name = "erf"

    def numpy(self, x: np.ndarray) -> Any:
        return erf(x)

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.multiply(b.exp(b.negative(b.square(x))), 2 / math.sqrt(math.pi))


@define_op
class Erfinv(FloatUnary):
    """The inverse of the error function: infinite at 1 and -1, NaN beyond."""

    name = "erfinv"
    mixed = "never"

    def scalar(self, x: Any) -> Any:
        from relaxpy.tir.numerics.floats import horner

        one = te.literal(1, x)
        w = te.negative(te.log((one - x) * (one + x)))
        middle = horner(_ERFINV_MIDDLE, w - te.literal(2.5, x))
        end = horner(_ERFINV_END, te.sqrt(w) - te.literal(3, x))
        found = te.select(w < te.literal(5, x), middle, end) * x
        if te.dtype_of(x) == "float64":
            for _ in range(2):  # Newton: the derivative of erf(y) is 2 / sqrt(pi) * exp(-y * y)
                slope = te.exp(te.negative(found * found)) * te.literal(2 / math.sqrt(math.pi), x)
                found = found - (te.erf(found) - x) / slope
        limit = x * te.literal(math.inf, x)
        return te.select(te.equal(te.absolute(x), one), limit, found)

    def numpy(self, x: np.ndarray) -> Any:
        return erfinv(x)

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.multiply(b.exp(b.square(out)), math.sqrt(math.pi) / 2)


_ERFINV_MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_ERFINV_END = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip
# Giles, Approximating the erfinv function (2012): in w - 2.5 and sqrt(w) - 3, w = -log(1 - x*x).


@define_op
class Sigmoid(FloatUnary):
    """The logistic sigmoid 1 / (1 + exp(-x))."""

    name = "sigmoid"

    def numpy(self, x: np.ndarray) -> Any:
        return sigmoid(x)

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.multiply(out, b.subtract(1.0, out))


@define_op
class Negative(Unary):
    """-x; integers modulo 2**bits."""

    name = "negative"
    ufunc = np.negative

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [b.negative(ct)]


@define_op
class Abs(Unary):
    """The absolute value; the smallest integer gives itself."""

    name = "abs"
    ufunc = np.abs

    def scalar(self, x: Any) -> Any:
        return te.absolute(x)

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.sign(x)  # 0 at 0


@define_op
class Sign(Unary):
    """The sign of x: 1, 0 or -1; NaN for NaN."""

    name = "sign"
    ufunc = np.sign

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [None]  # constant, but at jumps


@define_op
class Square(Unary):
    """x * x; integers modulo 2**bits."""

    name = "square"
    mixed = "never"
    ufunc = np.square

    def slope(self, b: Rule, x: Expr, out: Expr) -> Expr:
        return b.multiply(x, 2.0)


@define_op
class Floor(Unary):
    """The greatest whole number not above x; integers are unchanged."""

    name = "floor"
    ufunc = np.floor

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [None]  # constant, but at jumps


@define_op
class Ceil(Unary):
    """The smallest whole number not below x; integers are unchanged."""

    name = "ceil"
    ufunc = np.ceil

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [None]  # constant, but at jumps


@define_op
class Round(Unary):
    """The nearest whole number, halves rounded to even; integers are unchanged."""

    name = "round"
    ufunc = np.round  # np.rint makes floats of integers

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [None]  # constant, but at jumps


@define_op
class Trunc(Unary):
    """x truncated toward zero; integers are unchanged."""

    name = "trunc"
    ufunc = np.trunc

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [None]  # constant, but at jumps


@define_op
class IsFinite(Unary):
    """Is x neither infinite nor NaN? True for all integers."""

    name = "isfinite"
    no_vjp = BOOL
    gives_bool = True
    ufunc = np.isfinite


@define_op
class IsInf(Unary):
    """Is x infinite, of either sign? False for all integers."""

    name = "isinf"
    no_vjp = BOOL
    gives_bool = True
    ufunc = np.isinf


@define_op
class IsNan(Unary):
    """Is x NaN? False for all integers."""

    name = "isnan"
    no_vjp = BOOL
    gives_bool = True
    ufunc = np.isnan


@define_op
class LogicalNot(Unary):
    """Logical not."""

    name = "logical_not"
    no_vjp = BOOL
    takes = "bool"
    ufunc = np.logical_not


@define_op
class BitwiseNot(Unary):
    """Bitwise not; logical not for bools."""

    name = "bitwise_not"
    no_vjp = INTEGERS
    takes = "integers or bool"
    ufunc = np.bitwise_not


@define_op
class PopulationCount(Unary):
    """The number of bits of x that are set, in the dtype of x."""

    name = "population_count"
    no_vjp = INTEGERS
    takes = "integers"

    def numpy(self, x: np.ndarray) -> Any:
        return np.bitwise_count(x.view(f"u{x.itemsize}"))


@define_op
class CountLeadingZeros(Unary):
    """The number of bits of x above the highest that is set: all of 0, none of a negative number."""

    name = "count_leading_zeros"
    no_vjp = INTEGERS
    takes = "integers"

    def numpy(self, x: np.ndarray) -> Any:
        lengths = [int(value).bit_length() for value in x.view(f"u{x.itemsize}").reshape(-1)]
        return 8 * x.itemsize - np.array(lengths, np.int64).reshape(x.shape)


@define_op
class ReducePrecision(FloatUnary):
    """x rounded to a float with these numbers of bits, halves to even: infinite if it is too large for the exponent, 0
    if it is too small for a normal number, unchanged if it has as few bits."""

    name = "reduce_precision"
    mixed = "never"
    exponent_bits: int
    mantissa_bits: int

    def check(self, d: Deduction, dtype: DType) -> None:
        super().check(d, dtype)
        d.require(
            self.exponent_bits > 0, f"exponent_bits must be positive, got {self.exponent_bits}",
            arg="exponent_bits",
        )  # fmt: skip
        d.require(
            self.mantissa_bits >= 0, f"mantissa_bits is negative: {self.mantissa_bits}",
            arg="mantissa_bits",
        )  # fmt: skip

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        word = f"uint{out.dtype.bits}"

        def element(*i: Any) -> Any:
            value = te.element(x(*i))
            bits = self._rounded(
                te.reinterpret(value, word), out.dtype, lambda n: te.const(n, word), te.select
            )
            return te.select(te.isnan(value), value, te.reinterpret(bits, out.dtype))

        return te.compute(out.dims, element, "reduce_precision")

    def reference(self, x: np.ndarray) -> np.ndarray:
        dtype = DType(x.dtype)
        word = np.dtype(f"u{x.itemsize}").type
        bits = self._rounded(np.asarray(x).view(word), dtype, word, np.where)
        return np.where(np.isnan(x), x, np.asarray(bits, word).view(x.dtype))

    def _rounded(
        self, bits: Any, dtype: DType, number: Callable[[int], Any], select: Callable[..., Any]
    ) -> Any:
        """The bits of the rounded numbers, on numpy and as an expression."""
        info = ml_dtypes.finfo(dtype.numpy)
        own, width = int(info.nmant), dtype.bits
        digits = (1 << own) - 1
        sign = number(1 << (width - 1))
        if self.mantissa_bits < own:
            gone = own - self.mantissa_bits
            odd = (bits >> number(gone)) & number(1)
            half = number((1 << (gone - 1)) - 1)
            kept = number(((1 << width) - 1) ^ ((1 << gone) - 1))
            bits = (bits + (odd + half)) & kept
        if self.exponent_bits < width - 1 - own:
            bias, few = (1 << (width - 2 - own)) - 1, (1 << (self.exponent_bits - 1)) - 1
            size = bits & number((1 << (width - 1)) - 1)
            infinity = number(((1 << (width - 1)) - 1) ^ digits)
            above, below = (
                number(((bias + few) << own) | digits),
                number(((bias - few) << own) | digits),
            )
            ends = select(size > above, infinity, select(size <= below, number(0), size))
            bits = (bits & sign) | ends
        return bits

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [ct]  # as if it did not round

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        wide = (
            np.geomspace(1e-42, 3e38, 60).astype(np.float32)
            * np.array([1, -1], np.float32)[np.arange(60) % 2]
        )
        for bits in ((8, 7), (5, 10), (4, 3), (8, 23), (11, 52), (1, 0), (2, 24)):
            yield sample(cls(*bits), wide, dims="n")
        yield sample(cls(5, 2), rand(3, 5, dtype="float64"), dims="n 5")
        yield sample(cls(3, 4), rand(3, 5, dtype="float16"), dims="n 5")
        yield sample(cls(5, 10), np.array([0, -0.0, np.inf, -np.inf, np.nan], np.float32), dims="n")
        yield wrong(cls(0, 3), rand(3), code="op-arguments", match="exponent_bits")
        yield wrong(cls(3, -1), rand(3), code="op-arguments", match="mantissa_bits")
        yield wrong(cls(3, 4), rand(3, dtype="int32"), code="op-dtype", match="floats")


def _number(value: Any) -> Any:
    """A scalar as a Python number or a size, if it is one."""
    if isinstance(value, Var) and isinstance(value.annotation, PrimType):
        return value if value.annotation.value is None else value.annotation.value
    if not isinstance(value, PrimValue) or isinstance(value.value, bool):
        return value
    known = value.value.value if isinstance(value.value, Dim) else value.value
    return value.value if known is None else known


def _is_computed(value: Any) -> bool:
    """Is this a scalar known only at run time?"""
    if isinstance(value, PrimValue):
        value = value.value
    if isinstance(value, SymVar):
        return True
    return isinstance(value, Expr) if not isinstance(value, Dim) else value.value is None


@define_op
class Clip(Unary):
    """x clamped to [min, max]: `max` if min > max, NaN where x is NaN. For integers, bounds beyond the range of the
    dtype are its limits."""

    name = "clip"
    min: int | float
    max: int | float

    @classmethod
    def parameters(cls) -> list[Parameter]:
        x, *bounds = super().parameters()
        return [x, *(bound.replace(annotation="ScalarLike") for bound in bounds)]

    @classmethod
    def make(cls, *args: Any, **kwargs: Any) -> Call:
        """Make the call `R.clip(x, min, max)`. If a bound is a scalar of the program, or a size, the call is made of
        `minimum` and `maximum`."""
        given = {**dict(zip(("x", "min", "max"), args, strict=False)), **kwargs}
        if len(args) > 3 or not any(map(_is_computed, (given.get("min"), given.get("max")))):
            return super().make(*args, **kwargs)
        above = Maximum.make(given.get("x"), _number(given.get("min")))
        return Minimum.make(above, _number(given.get("max")))

    def check(self, d: Deduction, dtype: DType) -> None:
        super().check(d, dtype)
        for arg, bound in (("min", self.min), ("max", self.max)):
            d.require(
                dtype.is_float or not math.isfinite(bound) or bound == int(bound),
                f"{arg} must be a whole number for {dtype}, got {bound}",
                arg=arg,
                code="op-dtype",
            )
            d.require(not math.isnan(bound), f"{arg} cannot be a NaN", arg=arg)

    def bounds(self, dtype: DType) -> tuple[float, float]:
        """The bounds as numbers of the dtype."""
        if dtype.is_float:
            return self.min, self.max
        ends = np.iinfo(dtype.numpy)

        def inside(bound: float) -> int:
            if math.isinf(bound):
                return int(ends.max if bound > 0 else ends.min)
            return min(max(int(bound), int(ends.min)), int(ends.max))

        return inside(self.min), inside(self.max)

    def legalize(self, out: KnownTensor, x: te.Tensor) -> te.Tensor:
        low, high = self.bounds(DType(str(x.dtype)))
        return te.compute(
            out.dims, lambda *i: te.cast(te.clip(te.widen(x(*i)), low, high), out.dtype)
        )

    def numpy(self, x: np.ndarray) -> Any:
        low, high = (x.dtype.type(bound) for bound in self.bounds(DType(x.dtype)))
        return np.minimum(np.maximum(x, low), high)

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        inside = b.logical_and(b.greater_equal(x, self.min), b.less_equal(x, self.max))
        return [b.where(inside, ct, 0.0)]  # at a bound, ct

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
        yield sample(cls(-1, 1.5), rand(3, 5), dims="n 5")
        yield sample(cls(0.5, 0.25), rand(4, 3, dtype="float16"), dims="n m", rtol=2e-3)
        yield sample(cls(-1.0, math.inf), special, dims="n")
        yield sample(cls(-1, 100), np.array([0, 5, -7, -(2**31), 2**31 - 1], np.int32), dims="n")
        yield sample(cls(-(10**30), 5.0), rand(4, dtype="uint8", low=0, high=9), dims="n")
        yield sample(cls(-math.inf, 2**63 - 1), rand(0, dtype="int64"), dims="n")
        yield wrong(cls(0.5, 2), rand(3, dtype="int32"), code="op-dtype", match="whole number")
        yield wrong(cls(math.nan, 2), rand(3), code="op-arguments", match="NaN")
        yield wrong(cls(0, 1), rand(3, dtype="bool"), code="op-dtype", match="numbers")


def erf(x: np.ndarray) -> np.ndarray:
    """The error function on an array, in double precision: numpy has none."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """The logistic sigmoid on an array, without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def erfinv(x: np.ndarray) -> np.ndarray:
    """The inverse of the error function on an array, in double precision, by bisection."""

    def one(value: float) -> float:
        if not -1 < value < 1:
            return math.copysign(math.inf, value) if abs(value) == 1 else math.nan
        found, target = 0.0, 1 - abs(value)
        low, high = 0.0, 6.0
        for _ in range(100):
            found = (low + high) / 2
            less = math.erf(found) < abs(value) if target > 0.5 else math.erfc(found) > target
            low, high = (found, high) if less else (low, found)
        return math.copysign(found, value)

    return np.vectorize(one, otypes=[np.float64])(x)
