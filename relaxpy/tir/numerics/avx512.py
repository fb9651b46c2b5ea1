"""Instructions of AVX-512 that replace several operations each, for powers of two and for rounding to bfloat16.

They are operators on float32 of any number of lanes, which passes vectorise as they do arithmetic. The code generator
gets the instructions for 16 lanes at a time, and for a single number the arithmetic that gives the same bits: of loops
over numbers, such as those of rows that are sorted or drawn from, LLVM makes vectors, but not of instructions.

    fraction(x)             `vreduceps`: x - floor(x); 0 of an infinity
    scaled(x, e)            `vscalefps`: x * 2**floor(e), rounded once; infinity or 0 beyond the range
    nearest_bfloat16(x)     `vpdpwssd`, `vfixupimmps`: the bits of x, rounded where those of a bfloat16 end
    nearest_of_short(x)     `vpdpwssd`: the same of what is no NaN, or one whose lower half is 0
    larger(a, b)            `vmaxps`, `vfixupimmps`: the larger one; NaN if either is
    smaller(a, b)           `vminps`, `vfixupimmps`

A power of two is a polynomial of the fraction, scaled: 7 operations for 18 bits, where numbers of bits take 11
(`relaxpy.tir.numerics.math`). Rounding to bfloat16 takes 3 instead of 6 (`relaxpy.tir.lowering.bfloat16`), since the
product of the pairs (1, last bit) and (0x7fff, 1) is added to the bits at once, and NaN is kept by one. A NaN whose
lower half is 0 keeps itself: nothing is carried into its upper half.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from relaxpy.tir.numerics.floats import f32, horner, let
from relaxpy.tir.numerics.math import exp_by_parts, power_of_2
from relaxpy.tir.operators import register
from relaxpy.tir.tvm import tirx, tvm

Expr = tvm.ir.Expr

FEATURES = ("avx512f", "avx512dq", "avx512vnni")
LANES = 16
LOG2_E = math.log2(math.e)

FRACTION, SCALED = "relaxpy.fraction", "relaxpy.scaled"
"""The operators of `fraction` and `scaled`."""
_NEAREST, _NEAREST_OF_SHORT = "relaxpy.nearest_bfloat16", "relaxpy.nearest_of_short"
_LARGER, _SMALLER = "relaxpy.larger", "relaxpy.smaller"

# 2**r = 1 + r*p(r) on 0 <= r < 1: minimax of the relative error, 2.9e-6.
_POWER = (1.34266843e-2, 5.22424742e-2, 2.41280205e-1, 6.93044845e-1)
_DOWN = 0x09
"""Of `vreduceps`: subtract the number rounded down, without exceptions."""
_QUIET = 0x22
"""Of `vfixupimmps`: a NaN of the source, quiet, instead of the other operand."""
_CURRENT = 4
"""The rounding that the processor is set to."""
_LAST = 1 << 16
"""The last bit of a bfloat16 in the bits of a float32."""
_BELOW_HALF = _LAST // 2 - 1
"""Of the bits that are cut off: the largest number that is less than half of the last one."""
_QUIET_BIT = 1 << 22
"""Of the bits of a NaN."""
_FARTHEST = 252.0
"""A power of two with half of this exponent is a normal number."""
_SCALE = 2.0**-64
_LEAST = -60.0
"""1 + 2**_LEAST is 1, and 2**_LEAST * _SCALE a normal number."""
_FAR = 1000.0
"""Powers of its negative are 0 for the processor without looking at digits."""


def fraction(x: Expr) -> Expr:
    """The difference of a float32 and the integer below; 0 of an infinity."""
    return tirx.call_intrin(x.ty, FRACTION, x)


def scaled(x: Expr, exponent: Expr) -> Expr:
    """The product of a float32 and 2 to the power of another one, rounded down."""
    return tirx.call_intrin(x.ty, SCALED, x, exponent)


def nearest_bfloat16(x: Expr) -> Expr:
    """A uint32 whose upper half are the bits of the bfloat16 nearest to a float32: of the even one of two, and of a NaN
    if that is one. The lower half is undefined."""
    return _bits_of(_NEAREST, x)


def nearest_of_short(x: Expr) -> Expr:
    """As `nearest_bfloat16`, of a float32 that is no NaN with a bit set in its lower half."""
    return _bits_of(_NEAREST_OF_SHORT, x)


def _bits_of(operator: str, x: Expr) -> Expr:
    lanes = int(tvm.DataType(str(x.ty.dtype)).lanes)
    return tirx.call_intrin("uint32" if lanes == 1 else f"uint32x{lanes}", operator, x)


def larger(a: Expr, b: Expr) -> Expr:
    """The larger of two float32; NaN if either is NaN. As comparisons and choices, which LLVM rearranges, it is four
    instructions."""
    return tirx.call_intrin(a.ty, _LARGER, a, b)


def smaller(a: Expr, b: Expr) -> Expr:
    """The smaller of two float32; NaN if either is NaN."""
    return tirx.call_intrin(a.ty, _SMALLER, a, b)


def exp_float32(x: Expr) -> Expr:
    """exp(x) in float32."""
    # Far below the least result, one is 0 at once; nearer to it, that takes the processor 200 cycles.
    bounded = tirx.Min(f32(_FAR), tirx.Max(f32(-_FAR), x))
    return exp_by_parts(bounded, lambda rest, n: scaled(rest + f32(1.0), n))


def sigmoid_float32(x: Expr) -> Expr:
    """1 / (1 + exp(-x)) in float32."""
    # As in `sigmoid_narrow`.
    bounded = tirx.Min(f32(-_LEAST / LOG2_E), tirx.Max(f32(-_FAR), x))

    def scale(rest: Expr, n: Expr) -> Expr:
        return scaled(f32(_SCALE) - f32(_SCALE) * rest, n)

    return f32(_SCALE) / (f32(_SCALE) + exp_by_parts(bounded, scale, times=-1))


def exp_narrow(x: Expr) -> Expr:
    """exp(x) of a float32 to 17 bits, for a result that is rounded to a narrow float."""
    return let("y", x * f32(LOG2_E), lambda y: _power(y, 1.0))


def sigmoid_narrow(x: Expr) -> Expr:
    """1 / (1 + exp(-x)) of a float32 to 17 bits, for a result that is rounded to a narrow float."""
    # With the power divided by 2**64, the quotient keeps the small values of negative x. Below the least power the
    # quotient is 1; a result below the normal numbers would take the processor 200 cycles. The comparison of a number
    # with a NaN returns the NaN.
    bounded = tirx.Max(f32(_LEAST), x * f32(-LOG2_E))
    power = let("y", bounded, lambda y: _power(y, _SCALE))
    return f32(_SCALE) / (f32(_SCALE) + power)


def _power(y: Expr, factor: float) -> Expr:
    """2**y times a power of two."""
    terms = [coefficient * factor for coefficient in (*_POWER, 1.0)]
    return scaled(let("r", fraction(y), lambda r: horner(terms, r)), y)


# Lowering


def _lowered_fraction(call: tvm.ir.Call) -> Expr:
    def of_register(x: Expr) -> Expr:
        return _instruction("reduce", x, _i32(_DOWN), x, *_ALL)

    def of_number(x: Expr) -> Expr:
        return let("low", _floor(x), lambda low: tirx.Select(tirx.EQ(low, x), f32(0.0), x - low))

    return _by_registers(of_register, of_number, call)


def _lowered_scaled(call: tvm.ir.Call) -> Expr:
    def of_register(x: Expr, exponent: Expr) -> Expr:
        return _instruction("scalef", x, exponent, x, *_ALL)

    def of_number(x: Expr, exponent: Expr) -> Expr:
        # In two factors, since there are results below the normal numbers. Rounded once where the first product is
        # normal: of x from 2**-65 on.
        bounded = tirx.Min(f32(_FARTHEST), tirx.Max(f32(-_FARTHEST), _floor(exponent)))

        def product(e: Expr) -> Expr:
            halves = let(
                "half", _floor(e * f32(0.5)), lambda h: x * power_of_2(h) * power_of_2(e - h)
            )
            return tirx.Select(tirx.EQ(e, e), halves, e)

        return let("e", bounded, product)

    return _by_registers(of_register, of_number, call)


def _lowered_nearest(call: tvm.ir.Call) -> Expr:
    def of_register(x: Expr) -> Expr:
        near = tirx.reinterpret(_register("float32"), _nearest_of_short(x))
        return tirx.reinterpret(_register("uint32"), _nan_kept(near, x))

    def of_number(x: Expr) -> Expr:
        kept = tirx.reinterpret("uint32", x) | _u32(_QUIET_BIT)
        return tirx.Select(tirx.EQ(x, x), _nearest_of_number(x), kept)

    return _by_registers(of_register, of_number, call)


def _lowered_nearest_of_short(call: tvm.ir.Call) -> Expr:
    def of_register(x: Expr) -> Expr:
        return tirx.reinterpret(_register("uint32"), _nearest_of_short(x))

    return _by_registers(of_register, _nearest_of_number, call)


def _nearest_of_short(x: Expr) -> Expr:
    """Of a register, as int32."""
    bits = tirx.reinterpret(_register("int32"), x)
    pairs = (bits & _all(_i32(_LAST))) | _all(_i32(1))
    return tirx.call_llvm_pure_intrin(
        _register("int32"),
        "llvm.x86.avx512.vpdpwssd.512",
        bits,
        _words(pairs),
        _words(_all(_i32(_LAST | _BELOW_HALF))),
    )


def _nearest_of_number(x: Expr) -> Expr:
    bits = tirx.reinterpret("uint32", x)
    return bits + ((bits >> _u32(16)) & _u32(1)) + _u32(_BELOW_HALF)


def _lowered_extremum(name: str) -> Callable[[tvm.ir.Call], Expr]:
    def of_register(a: Expr, b: Expr) -> Expr:
        # Of a number and a NaN the instruction gives the second operand.
        found = tirx.call_llvm_pure_intrin(
            _register("float32"), f"llvm.x86.avx512.{name}.ps.512", a, b, _i32(_CURRENT)
        )
        return _nan_kept(found, a)

    def of_number(a: Expr, b: Expr) -> Expr:
        # So does the comparison.
        extremum = {"max": tirx.Max, "min": tirx.Min}[name]
        return tirx.Select(tirx.EQ(a, a), extremum(a, b), a)

    return lambda call: _by_registers(of_register, of_number, call)


def _nan_kept(near: Expr, x: Expr) -> Expr:
    """A register, with the NaN of another one in its place, quiet."""
    return _instruction("fixupimm", near, x, _all(_i32(_QUIET)), _i32(0), *_ALL)


def _by_registers(
    of_register: Callable[..., Expr], of_number: Callable[..., Expr], call: tvm.ir.Call
) -> Expr:
    """A function of vectors of 16 lanes, of operands that have more of them, or fewer: then some lanes are repeated; or
    of numbers."""
    lanes = int(tvm.DataType(str(call.ty.dtype)).lanes)
    names = [tirx.Var("operand", operand.ty) for operand in call.args]
    if lanes == LANES:
        found = of_register(*names)
    elif lanes == 1:
        found = of_number(*names)
    else:
        copies = -(-LANES // lanes)
        parts = [
            of_register(*(_chosen([x] * copies, range(at, at + LANES)) for x in names))
            for at in range(0, lanes, LANES)
        ]
        found = _chosen(parts, range(lanes))
    for name, operand in zip(names, call.args, strict=True):
        found = tirx.Let(name, operand, found)
    return found


def _chosen(vectors: list[Expr], places: range) -> Expr:
    """The numbers at these places of some vectors, one behind the other; behind the last, they begin again."""
    total = sum(int(tvm.DataType(str(vector.ty.dtype)).lanes) for vector in vectors)
    return tirx.Shuffle(vectors, [_i32(place % total) for place in places])


def _instruction(name: str, *args: Expr) -> Expr:
    return tirx.call_llvm_pure_intrin(
        _register("float32"), f"llvm.x86.avx512.mask.{name}.ps.512", *args
    )


def _register(dtype: str) -> str:
    return f"{dtype}x{LANES}"


def _words(bits: Expr) -> Expr:
    """The halves of int32."""
    return tirx.reinterpret(f"int16x{2 * LANES}", bits)


def _all(value: Expr) -> Expr:
    return tirx.Broadcast(value, LANES)


def _i32(value: int) -> Expr:
    return tirx.IntImm("int32", value)


def _u32(value: int) -> Expr:
    return tirx.const(value, "uint32")


def _floor(x: Expr) -> Expr:
    return tirx.call_llvm_pure_intrin("float32", "llvm.floor.f32", x)


_ALL = (tirx.IntImm("int16", -1), _i32(_CURRENT))
"""Of masked instructions: all lanes, and the rounding."""


for _name, _text, _lowering in (
    (FRACTION, "The difference to the integer below.", _lowered_fraction),
    (SCALED, "The product with a power of two.", _lowered_scaled),
    (_NEAREST, "The bits of the nearest bfloat16, above others.", _lowered_nearest),
    (
        _NEAREST_OF_SHORT,
        "The same, of no NaN or a short one.",
        _lowered_nearest_of_short,
    ),
    (_LARGER, "The larger of two, or NaN.", _lowered_extremum("max")),
    (_SMALLER, "The smaller of two, or NaN.", _lowered_extremum("min")),
):
    register(_name, _text)
    tvm.ir.register_op_attr(_name, "llvm.FLowerIntrinsic", _lowering)
