"""Powers of 2 by the instructions of AVX-512: for weights that are rounded to bfloat16.

`vreduceps` takes the fraction of 16 numbers and `vscalefps` multiplies by a power of two, each as fast as an addition:
6 operations, where numbers of bits take 9 for as many bits (`relaxpy.tir.numerics.math.exp_of_negative`).
"""

from __future__ import annotations

from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer import loops
from relaxpy.tir.writer.loops import Expr, Program

LANES = 16
FEATURES = ("avx512f", "avx512dq")

# 2**r = 1 + r*p(r) on 0 <= r < 1: minimax of the relative error, 8.6e-5.
_FRACTION = (7.706704e-2, 2.2764499e-1, 6.9511679e-1)
_LEAST = -126.0
"""The least exponent. A result below the normal numbers takes the processor 200 cycles."""
_DOWN = 0x09
"""Of `vreduceps`: subtract the number rounded down, without exceptions."""
_CURRENT = 4
"""The rounding that the processor is set to."""


def weights(p: Program, exponents: Expr) -> Expr:
    """2**x of 16 float32 that are at most 0: to 13 bits, and 1 of 0. What is less than 2**-126 gives that. NaN gives
    NaN."""
    # The constant comes first: the comparison of a number with a NaN then returns the NaN.
    x = p.let("exponent", tirx.Max(_all(_LEAST), exponents))
    keep, every = tirx.const(_DOWN, "int32"), tirx.const(-1, "int16")
    rounding = tirx.const(_CURRENT, "int32")
    r = p.let("fraction", _intrinsic("reduce", x, keep, x, every, rounding))
    value = _all(_FRACTION[0])
    for coefficient in (*_FRACTION[1:], 1.0):
        value = value * r + _all(coefficient)
    return _intrinsic("scalef", value, x, x, every, rounding)


def _all(value: float) -> Expr:
    return loops.broadcast(tirx.FloatImm("float32", value), LANES)


def _intrinsic(name: str, *args: Expr) -> Expr:
    return tirx.call_llvm_pure_intrin(
        f"float32x{LANES}", f"llvm.x86.avx512.mask.{name}.ps.512", *args
    )
