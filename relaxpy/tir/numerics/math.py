"""Elementary functions as tensor-program expressions, so that they vectorise.

LLVM calls libm once per element for these, even in a vectorised loop. The expressions built here are plain arithmetic
without branches and run on whole vectors. float32 is computed as such (`pow`, and the last step of a trigonometric
function's range reduction, in float64); float16 and bfloat16 through float32; float64 is libm's. NaN gives NaN,
infinities and zeros with their sign give what numpy gives, and results below the normal range are rounded once, not
flushed.

Largest errors in units in the last place, over all float32 (tests/tir/numerics/test_math.py): `exp` 1, `log` 1,
`log1p` 1.5, `pow` 0.51, `sigmoid` 2.5, `erf` 6; `relaxpy.tir.numerics.trigonometry` and
`relaxpy.tir.numerics.hyperbolic` have the others. `sqrt` and `rsqrt` are nowhere: processors have instructions for
them. Speed beside libm: `make bench-elementary`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from relaxpy.tir.numerics.floats import (
    SIGN_BIT,
    Expr,
    f32,
    f64,
    from_bits,
    horner,
    i32,
    is_nan,
    let,
    libm,
    magnitude,
    through_float32,
    to_bits,
)
from relaxpy.tir.tvm import tirx

_ROUND_MAGIC = (
    12582912.0  # 1.5 * 2**23: adding it rounds to an integer and leaves that in the low bits
)
_MANTISSA_BITS, _BIAS = 23, 127
_SCALE = 64
_LN2_HIGH = 0.693359375  # 9 bits: its product with an exponent is exact
_LN2_LOW = -2.12194440e-4

# exp(r) = 1 + r + r*r*p(r) on |r| <= ln(2)/2: minimax of the relative error, 3.1e-9.
_EXP = (1.3814539e-3, 8.3687450e-3, 4.1668390e-2, 1.6666521e-1, 4.9999994e-1)
# The same for results that are rounded to narrow floats: 5.3e-6.
_EXP_NARROW = (4.1277748e-2, 1.6753514e-1, 5.0005114e-1)
# exp(r) - 1 = r + r*r*p(r) on |r| <= ln(2)/2: minimax of the relative error, 1.3e-8 and, for narrow floats, 4.5e-7.
_EXPM1 = (1.3882522e-3, 8.3651400e-3, 4.1667201e-2, 1.6666543e-1, 4.9999997e-1)
_EXPM1_NARROW = (8.3380723e-3, 4.1872568e-2, 1.6666831e-1, 4.9999404e-1)
# log(1 + f) = f - f*f/2 + f*f*f*p(f) on sqrt(1/2) <= 1 + f < sqrt(2): Cephes, logf.
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
# erf(x) = x*p(z)/q(z), z = x*x: Eigen, generic_fast_erf_float. At _ERF_LIMIT the quotient is above 1.
_ERF_P = (
    2.2905065861350646e-4, 3.4082910107109506e-3, 5.0955695062380861e-2, 1.8520832239976145e-1,
    1.128379143519084,
)  # fmt: skip
_ERF_Q = (
    -1.1791602954361697e-7, 2.3547966471313185e-5, 1.0179625278914885e-3, 1.4070470171167667e-2,
    1.1098505178285362e-1, 4.9746925110067538e-1, 1.0,
)  # fmt: skip
_ERF_LIMIT = 4.0
# 2**r = 1 + r*p(r) on |r| <= 1/2: minimax of the relative error, 9.1e-8.
_EXP2_FEW = (
    1.3264727e-3, 9.6715130e-3, 5.5507336e-2, 2.4022242e-1, 6.9314700e-1,
)  # fmt: skip
# log2((1 + s) / (1 - s)) / s and 2**r as power series: in float64, and of enough terms for 37 bits on |s| <= 0.172
# and |r| <= 1/2.
_ATANH_LOG2 = tuple(2 / math.log(2) / (2 * k + 1) for k in reversed(range(8)))
_EXP2 = tuple(math.log(2) ** k / math.factorial(k) for k in reversed(range(11)))
_SMALLEST_NORMAL = 1.1754943508222875e-38


def exp(x: Expr) -> Expr:
    """The exponential function; 0 below -103.98, infinity above 88.72."""
    return through_float32(exp_float32, tirx.exp, x, narrow=partial(exp_float32, narrow=True))


def log(x: Expr) -> Expr:
    """The natural logarithm; -infinity at either zero, NaN below."""
    return through_float32(log_float32, tirx.log, x)


def log1p(x: Expr) -> Expr:
    """log(1 + x), accurate near 0; -infinity of -1, NaN below."""
    return through_float32(_log1p, libm("log1p"), x)


def pow(x: Expr, y: Expr) -> Expr:
    """The power x**y: 1 if y is 0 or x is 1, NaN for a negative x if y is not an integer."""
    return through_float32(_pow, tirx.pow, x, y)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)), accurate for large negative x too."""
    return through_float32(
        sigmoid_float32, tirx.sigmoid, x, narrow=partial(sigmoid_float32, narrow=True)
    )


def erf(x: Expr) -> Expr:
    """The error function; odd, never beyond 1."""
    return through_float32(_erf, tirx.erf, x)


def exp_float32(x: Expr, *, narrow: bool = False) -> Expr:
    """exp(x) in float32; `narrow`: to 17 bits, for a result that is rounded to a narrow float."""

    def scaled(rest: Expr, code: Expr) -> Expr:
        # In two factors: the exponent ranges from -150 to 130, beyond that of a float32 at both ends.
        halved = (code << i32(_MANTISSA_BITS - 1)) & i32(-1 << _MANTISSA_BITS)

        def product(h: Expr, power: Expr) -> Expr:
            return (power * rest + power) * from_bits((code << i32(_MANTISSA_BITS)) - h)

        return let("h", halved, lambda h: let("p", from_bits(h), lambda p: product(h, p)))

    # The constant comes first: the comparison of a number with a NaN then returns the NaN.
    bounded = tirx.Min(f32(90.0), tirx.Max(f32(-104.0), x))
    return _exp_by_code(bounded, 2 * _BIAS, scaled, _EXP_NARROW if narrow else _EXP)


def exp_around(
    x: Expr, middle: int, halvings: int = 0, *, times: int = 1, narrow: bool = False
) -> Expr:
    """exp(times * x) / 2**halvings in float32, of a NaN or a number whose power divided by 2**middle is a normal
    number; `narrow` as for `exp_float32`."""
    factor = 2.0 ** (middle - halvings)

    def scaled(rest: Expr, code: Expr) -> Expr:
        def product(power: Expr) -> Expr:
            value = power * rest + power if times == 1 else power - power * rest
            return value if factor == 1 else value * f32(factor)

        return let("p", from_bits(code << i32(_MANTISSA_BITS)), product)

    assert times in (1, -1)
    coefficients = _EXP_NARROW if narrow else _EXP
    return _exp_by_code(x, _BIAS - middle, scaled, coefficients, times)


def half_of_expm1(x: Expr, *, narrow: bool = False) -> Expr:
    """(exp(2 * x) - 1) / 2 in float32, accurate near 0, of a NaN or a number whose power is a normal number."""

    def scaled(rest: Expr, code: Expr) -> Expr:
        # Both parts are exact for the power 1.
        return let(
            "p",
            from_bits(code << i32(_MANTISSA_BITS)),
            lambda power: power * rest + (power * f32(0.5) - f32(0.5)),
        )

    return _exp_by_code(x, _BIAS, scaled, _EXPM1_NARROW if narrow else _EXPM1, 2)


def exp_by_parts(x: Expr, scaled: Callable[[Expr, Expr], Expr], *, times: int = 1) -> Expr:
    """exp(times * x) of a finite number or a NaN from (exp(times * r) - 1) / times, of a remainder r, and the exponent,
    an integer as float32."""

    def of_parts(rest: Expr, t: Expr) -> Expr:
        return scaled(rest, t - f32(_ROUND_MAGIC))

    return _exp_by_parts(x, 0, of_parts, _EXP, times)


def _exp_by_code(
    x: Expr,
    bias: int,
    scaled: Callable[[Expr, Expr], Expr],
    coefficients: Sequence[float],
    times: int = 1,
) -> Expr:
    """As `exp_by_parts`, with the integer whose low bits are the exponent plus a bias: all that is left of it after a
    shift to where a float32 has its exponent."""
    return _exp_by_parts(x, bias, lambda rest, t: scaled(rest, to_bits(t)), coefficients, times)


def _exp_by_parts(
    x: Expr,
    bias: int,
    scaled: Callable[[Expr, Expr], Expr],
    coefficients: Sequence[float],
    times: int,
) -> Expr:
    """The same with the sum of the exponent, the bias and the number that rounds to integers."""
    magic = f32(_ROUND_MAGIC + bias)
    high, low = f32(_LN2_HIGH / times), f32(_LN2_LOW / times)
    degrees = range(len(coefficients), 0, -1)
    terms = [c * times**k for c, k in zip(coefficients, degrees, strict=True)]

    def parts(x: Expr, t: Expr) -> Expr:
        n = t - magic
        # Rounded by addition, never by conversion, which is undefined for a NaN.
        remainder = let("n", n, lambda n: x - n * high - n * low)
        return let("r", remainder, lambda r: scaled(r * r * horner(terms, r) + r, t))

    rounded = f32(1.44269504088896341 * times)
    return let("x", x, lambda x: let("t", x * rounded + magic, lambda t: parts(x, t)))


def power_of_2(exponent: Expr) -> Expr:
    """2 to the power of an integer from -126 to 127, given as float32; undefined for others, and of a NaN."""
    return _power_of_2(exponent + f32(_ROUND_MAGIC + _BIAS))


def _power_of_2(t: Expr) -> Expr:
    """The same, given the sum of the exponent, the bias and the number that rounds to integers."""
    # The low bits are the exponent and its bias; the bits above them are shifted out.
    return from_bits(to_bits(t) << i32(_MANTISSA_BITS))


def exp_of_negative(x: Expr) -> Expr:
    """exp(x) of a float32 that is at most 0, for weights that add up to 1: half the operations of `exp_float32`.

    The relative error is 2e-7 for x near 0, and |x| * 2e-8 further down; the result is 1 at 0, and 0 below -87.7, where
    weights are no longer normal numbers. NaN gives NaN.
    """
    # The constant comes first: the comparison of a number with a NaN then returns the NaN.
    bounded = tirx.Max(f32(-88.0), x)
    magic = _ROUND_MAGIC + _BIAS

    def result(x: Expr, t: Expr) -> Expr:
        remainder = x * f32(1.44269504088896341) - (t - f32(magic))
        power = _power_of_2(t)
        return let("r", remainder, lambda r: (r * horner(_EXP2_FEW, r) + f32(1.0)) * power)

    rounded = f32(1.44269504088896341), f32(magic)
    return let(
        "x", bounded, lambda x: let("t", x * rounded[0] + rounded[1], lambda t: result(x, t))
    )


def exp2_of_negative(x: Expr) -> Expr:
    """2**x of a float32 that is at most 0, for weights that add up to 1, as `exp_of_negative`.

    The relative error is 1.5e-7; the result is 1 at 0, and 0 below -126.5. NaN gives NaN.
    """
    bounded = tirx.Max(f32(-127.0), x)
    magic = _ROUND_MAGIC + _BIAS

    def result(x: Expr, t: Expr) -> Expr:
        power = _power_of_2(t)
        remainder = x - (t - f32(magic))
        return let("r", remainder, lambda r: (r * horner(_EXP2_FEW, r) + f32(1.0)) * power)

    return let("x", bounded, lambda x: let("t", x + f32(magic), lambda t: result(x, t)))


def log_float32(x: Expr) -> Expr:
    """log(x) in float32."""

    def normal(x: Expr) -> Expr:
        # A number below the normal range is scaled into it.
        tiny = x < f32(_SMALLEST_NORMAL)
        scaled = tirx.Select(tiny, x * f32(8388608.0), x)
        shift = tirx.Select(tiny, f32(-23.0), f32(0.0))
        raw = to_bits(scaled)
        return let("b", raw, lambda b: let("s", shift, lambda s: let("y", split(b, s), special(x))))

    def split(raw: Expr, shift: Expr) -> Expr:
        # The mantissa in [sqrt(1/2), sqrt(2)): subtracting the bits of sqrt(1/2) makes the exponent field change there.
        offset = raw - i32(0x3F3504F3)
        exponent = (offset >> i32(23)).astype("float32") + shift
        fraction = from_bits((offset & i32(0x007FFFFF)) + i32(0x3F3504F3)) - f32(1.0)
        return let("f", fraction, lambda f: let("e", exponent, lambda e: series(f, e)))

    def series(f: Expr, e: Expr) -> Expr:
        tail = f * (f * f) * horner(_LOG, f) + e * f32(_LN2_LOW) - f32(0.5) * (f * f)
        return f + tail + e * f32(_LN2_HIGH)

    def special(x: Expr) -> Callable[[Expr], Expr]:
        infinity = f32(float("inf"))
        return lambda y: tirx.Select(
            x > f32(0.0),
            tirx.Select(x < infinity, y, x),
            # 0 gives -infinity; negative numbers and NaN give NaN.
            tirx.Select(tirx.EQ(x, f32(0.0)), -infinity, f32(float("nan"))),
        )

    return let("x", x, normal)


def _log1p(x: Expr) -> Expr:
    # The rounding error of 1 + x is added back in proportion.
    def corrected(x: Expr, w: Expr) -> Expr:
        inside = tirx.all(w > f32(0.0), w < f32(float("inf")))
        lost = tirx.Select(inside, (x - (w - f32(1.0))) / w, f32(0.0))
        return tirx.Select(tirx.EQ(w, f32(1.0)), x, log_float32(w) + lost)

    return let("x", x, lambda x: let("w", f32(1.0) + x, lambda w: corrected(x, w)))


def _pow(x: Expr, y: Expr) -> Expr:
    """2**(y * log2|x|) in float64, rounded once, then the sign and the special cases."""

    def magnitude_of(a: Expr, y: Expr) -> Expr:
        # -infinity and infinity represent the logarithms of the ends: the product's bounds turn them into 0 or
        # infinity.
        ends = tirx.Select(
            tirx.EQ(a, f32(0.0)),
            f64(-math.inf),
            tirx.Select(a < f32(math.inf), _log2(a), f64(math.inf)),
        )
        return _exp2(y.astype("float64") * ends)

    def result(x: Expr, y: Expr) -> Expr:
        a = magnitude(x)
        half = y * f32(0.5)
        whole = tirx.EQ(tirx.floor(y), y)
        odd = tirx.all(whole, tirx.floor(half) < half)
        power = tirx.Select(
            tirx.EQ(a, f32(1.0)), f32(1.0), let("a", a, lambda a: magnitude_of(a, y))
        )
        signed = from_bits(to_bits(power) | (to_bits(x) & tirx.Select(odd, i32(SIGN_BIT), i32(0))))
        root = tirx.all(x < f32(0.0), x > f32(-math.inf), tirx.Not(whole))
        unknown = tirx.any(is_nan(x), is_nan(y), root)
        exact = tirx.any(tirx.EQ(y, f32(0.0)), tirx.EQ(x, f32(1.0)))
        return tirx.Select(exact, f32(1.0), tirx.Select(unknown, f32(math.nan), signed))

    return let("x", x, lambda x: let("y", y, lambda y: result(x, y)))


def _log2(x: Expr) -> Expr:
    """log2 of a positive float32 in float64, to 40 bits."""

    def split(raw: Expr, tiny: Expr) -> Expr:
        offset = raw - i32(0x3F3504F3)
        exponent = (offset >> i32(23)) - tirx.Select(tiny, i32(23), i32(0))
        mantissa = from_bits((offset & i32(0x007FFFFF)) + i32(0x3F3504F3)).astype("float64")
        return let("m", mantissa, lambda m: series((m - f64(1.0)) / (m + f64(1.0)), exponent))

    def series(s: Expr, exponent: Expr) -> Expr:
        # log(m) = 2 * (s + s**3/3 + s**5/5 + …), s = (m - 1) / (m + 1)
        return let(
            "s", s,
            lambda s: let("z", s * s, lambda z: horner(_ATANH_LOG2, z)) * s + exponent.astype("float64"),
        )  # fmt: skip

    tiny = x < f32(_SMALLEST_NORMAL)
    scaled = tirx.Select(tiny, x * f32(8388608.0), x)
    return let("b", to_bits(scaled), lambda b: split(b, tiny))


def _exp2(x: Expr) -> Expr:
    """2**x of a float64 as float32."""
    # Beyond the bounds the result is 0 or infinity as a float32. The comparison of a NaN with a number returns the
    # number, because only a number may be converted to an integer.
    bounded = tirx.Max(tirx.Min(x, f64(160.0)), f64(-160.0))

    def scaled(x: Expr) -> Expr:
        return let("n", tirx.nearbyint(x), lambda n: let("r", x - n, lambda r: result(r, n)))

    def result(r: Expr, n: Expr) -> Expr:
        power = (n.astype("int32") + i32(1023)).astype("int64") << tirx.IntImm("int64", 52)
        return (horner(_EXP2, r) * tirx.reinterpret("float64", power)).astype("float32")

    return let("x", bounded, scaled)


def sigmoid_float32(x: Expr, *, narrow: bool = False) -> Expr:
    """sigmoid(x) in float32; `narrow` as for `exp_float32`."""
    # With the power divided by 2**64, the quotient keeps the small values of negative x. Below -104 it is 0, above 40
    # it is 1; the comparison of a number with a NaN returns the NaN.
    bounded = tirx.Min(f32(40.0), tirx.Max(f32(-104.0), x))
    power = exp_around(bounded, middle=_SCALE, halvings=_SCALE, times=-1, narrow=narrow)
    one = f32(2.0**-_SCALE)
    return one / (one + power)


def _erf(x: Expr) -> Expr:
    def rational(x: Expr) -> Expr:
        return let("z", x * x, lambda z: x * horner(_ERF_P, z) / horner(_ERF_Q, z))

    # The quotient rounds to a little more than 1 in places; a NaN passes through all comparisons.
    bounded = tirx.Min(f32(_ERF_LIMIT), tirx.Max(f32(-_ERF_LIMIT), x))
    return tirx.Min(f32(1.0), tirx.Max(f32(-1.0), let("x", bounded, rational)))
