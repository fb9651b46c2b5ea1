"""Hyperbolic functions and their inverses as tensor-program expressions; see `relaxpy.tir.numerics.math` for the rules.

Largest errors in units in the last place, over all float32 (tests/tir/numerics/test_math.py): `tanh` 2.5, `sinh` and
`cosh` 2, `asinh`, `acosh` and `atanh` 3.
"""

from __future__ import annotations

import math
from functools import partial

from relaxpy.tir.numerics.floats import (
    Expr,
    f32,
    f64,
    horner,
    let,
    libm,
    magnitude,
    through_float32,
    with_sign_of,
)
from relaxpy.tir.numerics.math import exp_around, half_of_expm1, log_float32
from relaxpy.tir.tvm import tirx

# tanh(x) in float64 on |x| < 0.625, tanh(x) = x*(1 + z*p(z)/q(z)): Cephes, tanh.
_TANH64_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH64_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
# sinh(x) = x + x*z*p(z) on |x| <= 1, asinh and atanh alike on |x| < 1/2: Cephes, sinhf, asinhf, atanhf.
_SINH = (2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)
_ASINH = (2.0122003309e-2, -4.2699340972e-2, 7.4847586088e-2, -1.6666288134e-1)
_ATANH = (1.81740078349e-1, 8.24370301058e-2, 1.46691431730e-1, 1.99782164500e-1, 3.33337300303e-1)
# acosh(1 + z) = sqrt(z)*p(z) on 0 <= z < 1/2: Cephes, acoshf.
_ACOSH = (1.7596881071e-3, -7.5272886713e-3, 2.6454905019e-2, -1.1784741703e-1, 1.4142135263)
_LARGE = 1e4
"""From here on the square of a float32 plus or minus 1 rounds to the square."""


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent."""
    return through_float32(tanh_float32, _tanh64, x, narrow=partial(tanh_float32, narrow=True))


def sinh(x: Expr) -> Expr:
    """The hyperbolic sine."""
    return through_float32(_sinh, libm("sinh"), x)


def cosh(x: Expr) -> Expr:
    """The hyperbolic cosine."""
    return through_float32(_cosh, libm("cosh"), x)


def asinh(x: Expr) -> Expr:
    """The number whose hyperbolic sine is x."""
    return through_float32(_asinh, libm("asinh"), x)


def acosh(x: Expr) -> Expr:
    """The number, not negative, whose hyperbolic cosine is x; NaN below 1."""
    return through_float32(_acosh, libm("acosh"), x)


def atanh(x: Expr) -> Expr:
    """The number whose hyperbolic tangent is x; infinity of 1, NaN beyond."""
    return through_float32(_atanh, libm("atanh"), x)


def tanh_float32(x: Expr, *, narrow: bool = False) -> Expr:
    """tanh(x) in float32; `narrow`: to 17 bits, for a result that is rounded to a narrow float."""

    def of_magnitude(m: Expr) -> Expr:
        # From 10 on the result is 1; the comparison of a number with a NaN returns the NaN.
        half = half_of_expm1(tirx.Min(f32(10.0), m), narrow=narrow)
        return let("h", half, lambda h: h / (h + f32(1.0)))

    return let("x", x, lambda x: with_sign_of(of_magnitude(magnitude(x)), x))


def _tanh64(x: Expr) -> Expr:
    def small(x: Expr) -> Expr:
        one = f64(1.0)  # as a factor of x, it keeps the sign of a zero
        return let(
            "z", x * x, lambda z: x * (one + z * horner(_TANH64_P, z) / horner(_TANH64_Q, z))
        )

    def large(x: Expr) -> Expr:
        falling, rising = tirx.exp(f64(-2.0) * x), tirx.exp(f64(2.0) * x)
        above = (f64(1.0) - falling) / (f64(1.0) + falling)
        below = (rising - f64(1.0)) / (rising + f64(1.0))
        return tirx.Select(x >= f64(0.0), above, below)

    def by_size(x: Expr) -> Expr:
        return tirx.Select(tirx.abs(x) < f64(0.625), small(x), large(x))

    return let("x", x, by_size)


def _sinh(x: Expr) -> Expr:
    def by_size(a: Expr) -> Expr:
        small = let("z", a * a, lambda z: horner(_SINH, z) * z * a + a)
        large = let("e", _half_of_power(a), lambda e: e - f32(0.25) / e)
        return tirx.Select(a <= f32(1.0), small, large)

    return let("x", x, lambda x: with_sign_of(let("a", magnitude(x), by_size), x))


def _cosh(x: Expr) -> Expr:
    return let("e", _half_of_power(magnitude(x)), lambda e: e + f32(0.25) / e)


def _half_of_power(a: Expr) -> Expr:
    """exp(a) / 2 of a number that is not negative."""
    # From 90 on it is infinity; the comparison of a number with a NaN returns the NaN.
    return exp_around(tirx.Min(f32(90.0), a), middle=64, halvings=1)


def _asinh(x: Expr) -> Expr:
    def by_size(a: Expr) -> Expr:
        small = let("z", a * a, lambda z: horner(_ASINH, z) * z * a + a)
        return tirx.Select(a < f32(0.5), small, _log_of_sum(a, a * a + f32(1.0)))

    return let("x", x, lambda x: with_sign_of(let("a", magnitude(x), by_size), x))


def _acosh(x: Expr) -> Expr:
    def by_size(x: Expr, z: Expr) -> Expr:
        small = horner(_ACOSH, z) * tirx.sqrt(z)
        return tirx.Select(z < f32(0.5), small, _log_of_sum(x, z * (x + f32(1.0))))

    return let("x", x, lambda x: let("z", x - f32(1.0), lambda z: by_size(x, z)))


def _log_of_sum(a: Expr, square: Expr) -> Expr:
    """log(a + sqrt(square)), which is log(2a) for large a."""
    large = a > f32(_LARGE)
    logarithm = log_float32(tirx.Select(large, a, a + tirx.sqrt(square)))
    return logarithm + tirx.Select(large, f32(math.log(2)), f32(0.0))


def _atanh(x: Expr) -> Expr:
    def by_size(a: Expr) -> Expr:
        small = let("z", a * a, lambda z: horner(_ATANH, z) * z * a + a)
        large = f32(0.5) * log_float32((f32(1.0) + a) / (f32(1.0) - a))
        return tirx.Select(a < f32(0.5), small, large)

    return let("x", x, lambda x: with_sign_of(let("a", magnitude(x), by_size), x))
