"""Trigonometric functions as tensor-program expressions, accurate for every float32; see `relaxpy.tir.numerics.math`
for the rules.

Largest errors in units in the last place, over all float32 (tests/tir/numerics/test_math.py): `sin` and `cos` 1.6,
`acos` 1.5, `tan`, `asin`, `atan` and `atan2` 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from relaxpy.tir.numerics.floats import (
    INFINITY_BITS,
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
    with_sign_of,
)
from relaxpy.tir.tvm import tirx

# sin(r) = r + r*z*p(z) and cos(r) = 1 - z/2 + z*z*p(z), z = r*r, on |r| <= pi/4: Cephes, sinf and cosf.
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
# tan(r) = r + r*z*p(z) on |r| <= pi/4: Cephes, tanf.
_TAN = (
    9.38540185543e-3,
    3.11992232697e-3,
    2.44301354525e-2,
    5.34112807005e-2,
    1.33387994085e-1,
    3.33331568548e-1,
)
# asin(r) = r + r*z*p(z) on |r| <= 1/2: Cephes, asinf.
_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
# atan(r) = r + r*z*p(z) on |r| <= tan(pi/8): Cephes, atanf.
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_TWO_OVER_PI = (0x00000000517CC1B7, 0x27220A94FE13ABE8, 0xFA9A6EE06DB14ACC, 0x9E21C820FF28B1D5)
"""The bits of 2/pi, shifted right by 33, in words of 64 bits."""
_QUARTER_TURN = math.pi / 2


def sin(x: Expr) -> Expr:
    """The sine of x radians; NaN of the infinities."""
    return through_float32(_sin, tirx.sin, x)


def cos(x: Expr) -> Expr:
    """The cosine of x radians; NaN of the infinities."""
    return through_float32(_cos, tirx.cos, x)


def tan(x: Expr) -> Expr:
    """The tangent of x radians; NaN of the infinities."""
    return through_float32(_tan, libm("tan"), x)


def asin(x: Expr) -> Expr:
    """The angle in [-pi/2, pi/2] whose sine is x; NaN beyond 1."""
    return through_float32(_asin, libm("asin"), x)


def acos(x: Expr) -> Expr:
    """The angle in [0, pi] whose cosine is x; NaN beyond 1."""
    return through_float32(_acos, libm("acos"), x)


def atan(x: Expr) -> Expr:
    """The angle in [-pi/2, pi/2] whose tangent is x."""
    return through_float32(_atan, libm("atan"), x)


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle in [-pi, pi] of the point (x, y), zeros and infinities with their signs."""
    return through_float32(_atan2, libm("atan2"), y, x)


def _sin(x: Expr) -> Expr:
    def value(x: Expr, r: Expr, quarter: Expr) -> Expr:
        # Two quadrants flip the sign; sin is odd, and the value is computed for |x|.
        turned = ((quarter & i32(2)) << i32(30)) ^ (to_bits(x) & i32(SIGN_BIT))
        return _either(quarter, _sine(r), _cosine(r), turned)

    return _on_quarters(x, value)


def _cos(x: Expr) -> Expr:
    def value(_: Expr, r: Expr, quarter: Expr) -> Expr:
        turned = ((quarter + i32(1)) & i32(2)) << i32(30)
        return _either(quarter + i32(1), _sine(r), _cosine(r), turned)

    return _on_quarters(x, value)


def _tan(x: Expr) -> Expr:
    def value(x: Expr, r: Expr, quarter: Expr) -> Expr:
        tangent = let("z", r * r, lambda z: horner(_TAN, z) * z * r + r)
        return let("y", tangent, turned(x, quarter))

    def turned(x: Expr, quarter: Expr) -> Callable[[Expr], Expr]:
        odd = tirx.EQ(quarter & i32(1), i32(1))
        sign = to_bits(x) & i32(SIGN_BIT)
        return lambda y: from_bits(to_bits(tirx.Select(odd, f32(-1.0) / y, y)) ^ sign)

    return _on_quarters(x, value)


def _either(quarter: Expr, even: Expr, odd: Expr, turned: Expr) -> Expr:
    """The value for a quadrant: `even` or `odd`, with its sign flipped if the sign bit of `turned` is set."""
    chosen = tirx.Select(tirx.EQ(quarter & i32(1), i32(0)), even, odd)
    return from_bits(to_bits(chosen) ^ turned)


def _sine(r: Expr) -> Expr:
    return let("z", r * r, lambda z: horner(_SIN, z) * z * r + r)


def _cosine(r: Expr) -> Expr:
    return let("z", r * r, lambda z: horner(_COS, z) * z * z - f32(0.5) * z + f32(1.0))


def _on_quarters(x: Expr, value: Callable[[Expr, Expr, Expr], Expr]) -> Expr:
    """`value(x, r, quarter)` for |x| = quarter * pi/2 + r, with r in [-pi/4, pi/4]; NaN if x is not finite.

    Payne and Hanek's range reduction: of the product of the mantissa and 2/pi, only the 96 bits are computed that
    matter after multiples of four quadrants are dropped. Their position depends only on the exponent, so no float32 is
    too large. The product is computed in parts that never overflow: TVM tells LLVM that sums and products do not wrap.
    """

    def reduced(x: Expr, raw: Expr) -> Expr:
        exponent = raw >> i32(23)
        # Below 1 the mantissa is shifted instead of the window, which begins with the first bit of 2/pi.
        place = tirx.Max(exponent - i32(127), i32(0))
        shift = tirx.Select(exponent < i32(127), i32(7), i32(8))
        mantissa = ((raw & i32(0x007FFFFF)) | i32(0x00800000)).astype("uint32") << shift.astype(
            "uint32"
        )
        return let(
            "p",
            place,
            lambda p: let("m", mantissa.astype("uint64"), lambda m: product(x, p, m, raw)),
        )

    def product(x: Expr, place: Expr, m: Expr, raw: Expr) -> Expr:
        high, middle, low = _window(place)
        tail = ((low * m) >> _u64(32)) + middle * m
        return let("t", tail, lambda t: turns(x, ((high * m) & _LOW) + (t >> _u64(32)), t, raw))

    def turns(x: Expr, head: Expr, tail: Expr, raw: Expr) -> Expr:
        head = (head & _LOW).astype("uint32")
        return let("h", head, lambda h: angle(x, h, tail, raw))

    def angle(x: Expr, head: Expr, tail: Expr, raw: Expr) -> Expr:
        # Two bits for the quadrant, then the fraction, read as a signed number: this rounds to the nearest quadrant.
        low = (tail & _LOW).astype("uint32")
        fraction = ((head << _u32(2)) | (low >> _u32(30))).astype("int32")
        below = ((low << _u32(2)) >> _u32(1)).astype("int32")
        r = fraction.astype("float64") * f64(_QUARTER_TURN * 2.0**-32)
        r = r + below.astype("float64") * f64(_QUARTER_TURN * 2.0**-63)
        quarter = (head >> _u32(30)).astype("int32") + ((head >> _u32(29)) & _u32(1)).astype(
            "int32"
        )
        small = raw <= i32(0x3F490FDB)
        return let(
            "q",
            tirx.Select(small, i32(0), quarter),
            lambda q: let(
                "r",
                tirx.Select(small, from_bits(raw), r.astype("float32")),
                lambda r: finite(value(x, r, q), raw),
            ),
        )

    def finite(y: Expr, raw: Expr) -> Expr:
        return tirx.Select(raw < i32(INFINITY_BITS), y, f32(float("nan")))

    return let(
        "x",
        x,
        lambda x: let("a", to_bits(x) & i32(0x7FFFFFFF), lambda raw: reduced(x, raw)),
    )


def _window(place: Expr) -> tuple[Expr, Expr, Expr]:
    """Three words of 32 bits of 2/pi from bit `place` on, which is at most 127."""
    # One choice per word: TVM's passes analyse every expression inside a Select again and again.
    later = place >= i32(64)
    pairs = pairwise(_TWO_OVER_PI)
    first, second, third = (
        tirx.reinterpret("uint64", tirx.Select(later, _i64(b), _i64(a))) for a, b in pairs
    )
    shift = (place & i32(63)).astype("uint64")

    def both(s: Expr) -> tuple[Expr, Expr]:
        rest = s ^ _u64(63)
        head = (first << s) | ((second >> _u64(1)) >> rest)
        return head, (second << s) | ((third >> _u64(1)) >> rest)

    head, tail = both(shift)
    return head >> _u64(32), head & _LOW, tail >> _u64(32)


def _u32(value: int) -> Expr:
    return tirx.const(value, "uint32")


def _i64(word: int) -> Expr:
    """The int64 with these bits: script has no literals of more than 63 bits."""
    return tirx.IntImm("int64", word - (1 << 64) if word >> 63 else word)


def _u64(value: int) -> Expr:
    return tirx.const(value, "uint64")


_LOW = _u64(0xFFFFFFFF)


def _asin(x: Expr) -> Expr:
    def by_size(a: Expr) -> Expr:
        return let("y", _asin_core(a), lambda y: tirx.Select(a > f32(0.5), _HALF_PI - y - y, y))

    return let("x", x, lambda x: with_sign_of(let("a", magnitude(x), by_size), x))


def _acos(x: Expr) -> Expr:
    def by_size(x: Expr, a: Expr) -> Expr:
        return let("y", _asin_core(a), lambda y: result(x, a, y))

    def result(x: Expr, a: Expr, y: Expr) -> Expr:
        outer = tirx.Select(x > f32(0.0), y + y, f32(math.pi) - y - y)
        return tirx.Select(a > f32(0.5), outer, _HALF_PI - with_sign_of(y, x))

    return let("x", x, lambda x: let("a", magnitude(x), lambda a: by_size(x, a)))


_HALF_PI = f32(math.pi / 2)


def _asin_core(a: Expr) -> Expr:
    """asin(a) for 0 <= a <= 1/2, above that asin(sqrt((1 - a) / 2)); NaN above 1."""

    def series(z: Expr) -> Expr:
        r = tirx.Select(a > f32(0.5), tirx.sqrt(z), a)
        return let("r", r, lambda r: horner(_ASIN, z) * z * r + r)

    return let("z", tirx.Select(a > f32(0.5), (f32(1.0) - a) * f32(0.5), a * a), series)


def _atan(x: Expr) -> Expr:
    return let("x", x, lambda x: with_sign_of(let("a", magnitude(x), _atan_positive), x))


def _atan_positive(a: Expr) -> Expr:
    """atan(a) for a >= 0."""
    far = a > f32(2.414213562373095)
    return tirx.Select(far, _HALF_PI, f32(0.0)) + _atan_near(tirx.Select(far, f32(-1.0) / a, a))


def _atan_near(a: Expr) -> Expr:
    """atan(a) for -1/2 < a < 5/2."""

    def by_size(a: Expr) -> Expr:
        middle = a > f32(0.4142135623730950)
        r = tirx.Select(middle, (a - f32(1.0)) / (a + f32(1.0)), a)
        base = tirx.Select(middle, f32(math.pi / 4), f32(0.0))
        return let("r", r, lambda r: let("z", r * r, lambda z: horner(_ATAN, z) * z * r + r)) + base

    return let("u", a, by_size)


def _atan2(y: Expr, x: Expr) -> Expr:
    # Every value is used as few times as possible: TVM's passes expand names recursively.
    def first_octant(a: Expr, b: Expr) -> Expr:
        """The angle of (a, b), both positive."""
        # 0 over 0 is 0, infinity over infinity 1: the angles that the axes and the diagonals have.
        equal = tirx.Select(tirx.EQ(a, f32(0.0)), f32(0.0), f32(1.0))
        ratio = tirx.Select(tirx.EQ(a, b), equal, tirx.Min(a, b) / tirx.Max(a, b))
        return _reflected(_atan_near(ratio), b > a, math.pi / 2)

    def result(x: Expr, y: Expr) -> Expr:
        w = let("a", magnitude(x), lambda a: let("b", magnitude(y), lambda b: first_octant(a, b)))
        angle = with_sign_of(_reflected(w, to_bits(x) < i32(0), math.pi), y)
        return tirx.Select(tirx.any(is_nan(x), is_nan(y)), f32(float("nan")), angle)

    return let("x", x, lambda x: let("y", y, lambda y: result(x, y)))


def _reflected(angle: Expr, condition: Expr, whole: float) -> Expr:
    """`whole - angle` if the condition holds, else `angle`."""
    turned = to_bits(angle) ^ tirx.Select(condition, i32(SIGN_BIT), i32(0))
    return from_bits(turned) + tirx.Select(condition, f32(whole), f32(0.0))
