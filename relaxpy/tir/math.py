"""Elementary functions as tensor-program expressions, so that they vectorise.

LLVM calls libm once an element for `exp`, `erf`, `tanh` and `log`, even in a vectorised loop; what is built here is
plain arithmetic without branches and runs on whole vectors. float32 is computed as such; float16 and bfloat16 through
float32; float64 keeps TVM's intrinsic, which is libm's (but for `tanh`, where TVM's loses digits near 0). NaN gives
NaN, infinities and zeros with their sign give what numpy gives, and results below the normal range are rounded once,
not flushed.

Largest errors in units in the last place, over all float32 (tests/tir/test_math.py): `exp` 1, `log` 1, `tanh` 1.5,
`sigmoid` 2.5, `erf` 6. `sqrt` and `rsqrt` are not here: processors have instructions for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relaxpy.tir._tvm import te, tirx, tvm

Expr = tvm.ir.Expr

_ROUND_MAGIC = (
    12582912.0  # 1.5 * 2**23: adding it rounds to an integer and leaves that in the low bits
)
_ROUND_MAGIC_BITS = 0x4B400000
_LN2_HIGH = 0.693359375  # 9 bits: its product with an exponent is exact
_LN2_LOW = -2.12194440e-4

# exp(r) = 1 + r + r*r*p(r) on |r| <= ln(2)/2, minimax: Cephes, expf.
_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
# log(1 + f) = f - f*f/2 + f*f*f*p(f) on sqrt(1/2) <= 1 + f < sqrt(2): Cephes, logf.
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
# tanh(x) = x + x*z*p(z), z = x*x, on |x| < 0.625: Cephes, tanhf.
_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)
# The same in float64, tanh(x) = x*(1 + z*p(z)/q(z)): Cephes, tanh.
_TANH64_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH64_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
# erf(x) = x*p(z)/q(z), z = x*x, on |x| <= _ERF_LIMIT, beyond which it rounds to 1: Eigen, generic_fast_erf_float.
_ERF_P = (
    2.2905065861350646e-4, 3.4082910107109506e-3, 5.0955695062380861e-2, 1.8520832239976145e-1,
    1.128379143519084,
)  # fmt: skip
_ERF_Q = (
    -1.1791602954361697e-7, 2.3547966471313185e-5, 1.0179625278914885e-3, 1.4070470171167667e-2,
    1.1098505178285362e-1, 4.9746925110067538e-1, 1.0,
)  # fmt: skip
_ERF_LIMIT = 3.7439211627767994


def exp(x: Expr) -> Expr:
    """E to the power x; 0 below -103.98, infinity above 88.72."""
    return _through_float32(x, _exp, tirx.exp)


def log(x: Expr) -> Expr:
    """The natural logarithm; -infinity at either zero, NaN below."""
    return _through_float32(x, _log, tirx.log)


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent."""
    return _through_float32(x, _tanh, _tanh64)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)), accurate for large negative x too."""
    return _through_float32(x, _sigmoid, tirx.sigmoid)


def erf(x: Expr) -> Expr:
    """The error function; odd, never beyond 1."""
    return _through_float32(x, _erf, tirx.erf)


def _through_float32(
    x: Expr, compute: Callable[[Expr], Expr], intrinsic: Callable[[Expr], Expr]
) -> Expr:
    """`compute` on float32, with casts around it for the narrower types; `intrinsic` for other types."""
    if isinstance(x, te.tensor.TensorSlice):
        x = x.asobject()
    dtype = str(x.ty.dtype)
    if dtype == "float32":
        return compute(x)
    if dtype in ("float16", "bfloat16"):
        return compute(x.astype("float32")).astype(dtype)
    return intrinsic(x)


def _exp(x: Expr) -> Expr:
    # The bounds are where the result is 0 and infinity for certain, and keep the exponent within two factors. The
    # constant stands first: of a NaN and a number, the comparison then takes the NaN on.
    bounded = tirx.Min(_f32(89.0), tirx.Max(_f32(-104.0), x))

    def scaled(x: Expr) -> Expr:
        return _let("t", x * _f32(1.44269504088896341) + _f32(_ROUND_MAGIC), lambda t: powers(x, t))

    def powers(x: Expr, t: Expr) -> Expr:
        n = t - _f32(_ROUND_MAGIC)
        # Rounded by addition, never by conversion, which is undefined for a NaN.
        exponent = tirx.reinterpret("int32", t) - _i32(_ROUND_MAGIC_BITS)
        remainder = _let("n", n, lambda n: x - n * _f32(_LN2_HIGH) - n * _f32(_LN2_LOW))
        return _let("r", remainder, lambda r: _let("k", exponent, lambda k: result(r, k)))

    def result(r: Expr, k: Expr) -> Expr:
        mantissa = r * r * _horner(_EXP, r) + r + _f32(1.0)
        # 2**k in two factors: k goes from -150 to 128, beyond what one float32 exponent holds at either end.
        return _let("h", k >> _i32(1), lambda h: mantissa * _power_of_two(h) * _power_of_two(k - h))

    return _let("x", bounded, scaled)


def _log(x: Expr) -> Expr:
    def normal(x: Expr) -> Expr:
        # A number below the normal range is scaled into it.
        tiny = x < _f32(1.1754943508222875e-38)
        scaled = tirx.Select(tiny, x * _f32(8388608.0), x)
        shift = tirx.Select(tiny, _f32(-23.0), _f32(0.0))
        bits = tirx.reinterpret("int32", scaled)
        return _let(
            "b", bits, lambda b: _let("s", shift, lambda s: _let("y", split(b, s), special(x)))
        )

    def split(bits: Expr, shift: Expr) -> Expr:
        # The mantissa in [sqrt(1/2), sqrt(2)): subtracting the bits of sqrt(1/2) makes the exponent field change there.
        offset = bits - _i32(0x3F3504F3)
        exponent = (offset >> _i32(23)).astype("float32") + shift
        fraction = tirx.reinterpret(
            "float32", (offset & _i32(0x007FFFFF)) + _i32(0x3F3504F3)
        ) - _f32(1.0)
        return _let("f", fraction, lambda f: _let("e", exponent, lambda e: series(f, e)))

    def series(f: Expr, e: Expr) -> Expr:
        tail = f * (f * f) * _horner(_LOG, f) + e * _f32(_LN2_LOW) - _f32(0.5) * (f * f)
        return f + tail + e * _f32(_LN2_HIGH)

    def special(x: Expr) -> Callable[[Expr], Expr]:
        infinity = _f32(float("inf"))
        return lambda y: tirx.Select(
            x > _f32(0.0),
            tirx.Select(x < infinity, y, x),
            # 0 gives -infinity; what is below, and a NaN, gives NaN.
            tirx.Select(tirx.EQ(x, _f32(0.0)), -infinity, _f32(float("nan"))),
        )

    return _let("x", x, normal)


def _tanh(x: Expr) -> Expr:
    def small(m: Expr) -> Expr:
        return _let("z", m * m, lambda z: _horner(_TANH, z) * z * m + m)

    def large(m: Expr) -> Expr:
        return _f32(1.0) - _f32(2.0) / (_exp(m + m) + _f32(1.0))

    def by_size(m: Expr) -> Expr:
        return tirx.Select(m < _f32(0.625), small(m), large(m))

    return _let("x", x, lambda x: _with_sign_of(_let("m", _magnitude(x), by_size), x))


def _tanh64(x: Expr) -> Expr:
    def small(x: Expr) -> Expr:
        one = tirx.FloatImm("float64", 1.0)  # as a factor of x, it keeps the sign of a zero
        return _let(
            "z", x * x, lambda z: x * (one + z * _horner(_TANH64_P, z) / _horner(_TANH64_Q, z))
        )

    def by_size(x: Expr) -> Expr:
        return tirx.Select(tirx.abs(x) < tirx.FloatImm("float64", 0.625), small(x), tirx.tanh(x))

    return _let("x", x, by_size)


def _sigmoid(x: Expr) -> Expr:
    def by_sign(x: Expr) -> Expr:
        # exp of what is never positive does not overflow; the quotient for negative x keeps its small values.
        decay = _exp(tirx.reinterpret("float32", tirx.reinterpret("int32", x) | _i32(-0x80000000)))
        return _let(
            "e",
            decay,
            lambda e: tirx.Select(x < _f32(0.0), e, _f32(1.0)) / (_f32(1.0) + e),
        )

    return _let("x", x, by_sign)


def _erf(x: Expr) -> Expr:
    def rational(x: Expr) -> Expr:
        return _let("z", x * x, lambda z: x * _horner(_ERF_P, z) / _horner(_ERF_Q, z))

    def limited(x: Expr) -> Expr:
        # The quotient rounds to a little more than 1 in places; a NaN passes through both comparisons.
        inside = tirx.Min(_f32(1.0), tirx.Max(_f32(-1.0), rational(x)))
        beyond = _magnitude(x) >= _f32(_ERF_LIMIT)
        return tirx.Select(beyond, _with_sign_of(_f32(1.0), x), inside)

    return _let("x", x, limited)


def _horner(coefficients: Sequence[float], x: Expr) -> Expr:
    """The polynomial with these coefficients, the highest first; one fused multiply-add each."""
    dtype = str(x.ty.dtype)
    value: Expr = tirx.FloatImm(dtype, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + tirx.FloatImm(dtype, coefficient)
    return value


def _power_of_two(exponent: Expr) -> Expr:
    """2 to an integer within the normal range."""
    return tirx.reinterpret("float32", (exponent + _i32(127)) << _i32(23))


def _magnitude(x: Expr) -> Expr:
    """The number without its sign bit."""
    return tirx.reinterpret("float32", tirx.reinterpret("int32", x) & _i32(0x7FFFFFFF))


def _with_sign_of(magnitude: Expr, sign: Expr) -> Expr:
    """A number that is not negative, with the sign bit of another."""
    bit = tirx.reinterpret("int32", sign) & _i32(-0x80000000)
    return tirx.reinterpret("float32", tirx.reinterpret("int32", magnitude) | bit)


def _let(name: str, value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """Compute `value` once, under a name."""
    var = tirx.Var(name, str(value.ty.dtype))
    return tirx.Let(var, value, body(var))


def _f32(value: float) -> Expr:
    return tirx.FloatImm("float32", value)


def _i32(value: int) -> Expr:
    return tirx.IntImm("int32", value)
