"""Powers of 2 by the instructions of AVX-512, for weights that are rounded to bfloat16: 6 operations, where numbers of
bits take 9 for as many bits (`relaxpy.tir.numerics.math.exp_of_negative`).
"""

from __future__ import annotations

from relaxpy.tir.numerics.avx512 import LANES, fraction, scaled
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr, Program
from relaxpy.tir.tvm import tirx

# 2**r = 1 + r*p(r) on 0 <= r < 1: minimax of the relative error, 8.6e-5.
_FRACTION = (7.706704e-2, 2.2764499e-1, 6.9511679e-1)
_LEAST = -126.0
"""The least exponent. A result below the normal numbers takes the processor 200 cycles."""
_LEAST_TOTAL = 2.0**-100
"""A total below is one of weights of keys that are not seen."""


def weights(p: Program, exponents: Expr) -> Expr:
    """2**x of 16 float32 that are at most 0: to 13 bits, and 1 of 0. What is less than 2**-126 gives that. NaN gives
    NaN."""
    # The constant comes first: the comparison of a number with a NaN then returns the NaN.
    x = p.let("exponent", tirx.Max(_all(_LEAST), exponents))
    r = p.let("fraction", fraction(x))
    value = _all(_FRACTION[0])
    for coefficient in (*_FRACTION[1:], 1.0):
        value = value * r + _all(coefficient)
    return scaled(value, x)


def shares(totals: Expr) -> Expr:
    """The reciprocals of 16 totals of weights, by which sums are multiplied; 0 where no key is seen."""
    return tirx.Select(totals < _all(_LEAST_TOTAL), _all(0.0), _all(1.0) / totals)


def _all(value: float) -> Expr:
    return loops.broadcast(tirx.FloatImm("float32", value), LANES)
