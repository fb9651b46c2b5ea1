"""Integer arithmetic with defined results in all cases, as tensor-program expressions; used by
`relaxpy.tir.numerics.scalar`.

Quotient and remainder of a division by zero are 0. The smallest integer divided by -1 is itself. A shift by the width
or more, or by a negative number, shifts everything out. Powers wrap around. The processor traps on the first two and
takes a shift modulo the width, and LLVM assumes that sums and products do not wrap because TVM says so. Therefore none
of these cases reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.tir import te
from relaxpy.tir.analyzer import PrimExpr
from relaxpy.tir.numerics.floats import let
from relaxpy.tir.programs.loops import Buffer
from relaxpy.tir.programs.rows import cell, rows
from relaxpy.tir.programs.serial import Serial, serial
from relaxpy.tir.te import broadcast_index
from relaxpy.tir.tvm import tirx


def integer_range(dtype: DType) -> tuple[int, int]:
    """The smallest and the largest integer of `dtype`."""
    if dtype.is_signed:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def negative(x: PrimExpr) -> PrimExpr:
    """-x modulo 2**bits."""
    if _is_signed(x):
        # Not a comparison of x with the smallest integer: for k * 4 + 3, TVM's simplifier subtracts 3 from that one.
        most = _const(integer_range(_dtype(x))[1], x)
        is_least = tirx.EQ(tirx.bitwise_not(x), most)
        return tirx.Select(is_least, x, _const(0, x) - x)
    # Not 0 - x: TVM assumes that an unsigned difference is at least 0, and so folds this one to 0.
    return tirx.Select(tirx.EQ(x, _const(0, x)), x, tirx.bitwise_not(x) + _const(1, x))


def absolute(x: PrimExpr) -> PrimExpr:
    """The magnitude; the smallest integer stays itself."""
    return tirx.Select(tirx.LT(x, _const(0, x)), negative(x), x) if _is_signed(x) else x


def floor_divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The quotient rounded down."""
    return _quotient(tirx.floordiv, a, b)


def divide(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The quotient rounded towards zero."""
    return _quotient(tirx.truncdiv, a, b)


def floor_mod(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The remainder of `floor_divide`, with the sign of the divisor."""
    return _remainder(tirx.floormod, a, b)


def mod(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The remainder of `divide`, with the sign of the dividend."""
    return _remainder(tirx.truncmod, a, b)


def _quotient(divide: Callable[..., PrimExpr], a: PrimExpr, b: PrimExpr) -> PrimExpr:
    if _is_safe(b):
        return divide(a, b)
    quotient = divide(a, tirx.Select(_traps(b), _const(1, a), b))
    if _is_signed(a):
        quotient = tirx.Select(tirx.EQ(b, _const(-1, b)), negative(a), quotient)
    return tirx.Select(tirx.EQ(b, _const(0, b)), _const(0, a), quotient)


def _remainder(divide: Callable[..., PrimExpr], a: PrimExpr, b: PrimExpr) -> PrimExpr:
    if _is_safe(b):
        return divide(a, b)
    rest = divide(a, tirx.Select(_traps(b), _const(1, a), b))
    return tirx.Select(_traps(b), _const(0, a), rest)


def _is_safe(divisor: PrimExpr) -> bool:
    """Whether the divisor is a literal on which no processor traps."""
    return isinstance(divisor, tirx.IntImm) and divisor.value not in (0, -1)


def _traps(divisor: PrimExpr) -> PrimExpr:
    """Divisors on which the processor may trap: 0, and -1 with the smallest integer."""
    zero = tirx.EQ(divisor, _const(0, divisor))
    return tirx.any(zero, tirx.EQ(divisor, _const(-1, divisor))) if _is_signed(divisor) else zero


def left_shift(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The product of a and 2**b modulo 2**bits; 0 if b is negative or at least the width."""
    shifted = (_unsigned(a) << _unsigned(_within(b))).astype(str(a.ty.dtype))
    return tirx.Select(_is_place(b), shifted, _const(0, a))


def right_shift(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The quotient of a and 2**b, rounded down; if b is negative or at least the width, 0, or -1 for a negative a."""
    gone = _const(0, a)
    if _is_signed(a):
        gone = tirx.Select(tirx.LT(a, gone), _const(-1, a), gone)
    return tirx.Select(_is_place(b), a >> _within(b), gone)


def population_count(x: PrimExpr) -> PrimExpr:
    """The number of bits that are set. LLVM knows this sum of pairs, of fours, and so on, by its instruction."""
    kind = f"uint{_dtype(x).bits}"
    ones = (1 << _dtype(x).bits) - 1

    def number(value: int) -> PrimExpr:
        return tirx.const(value, kind)

    def sums(width: int, total: PrimExpr) -> PrimExpr:
        if width == _dtype(x).bits:
            return total.astype(str(x.ty.dtype))
        low = number(ones // ((1 << width) + 1))
        return let(
            "bits", total, lambda t: sums(2 * width, (t & low) + ((t >> number(width)) & low))
        )

    return sums(1, tirx.reinterpret(kind, x))


def count_leading_zeros(x: PrimExpr) -> PrimExpr:
    """The number of bits above the highest that is set; all of 0."""
    bits = _dtype(x).bits
    kind = f"uint{bits}"

    def smeared(shift: int, word: PrimExpr) -> PrimExpr:
        if shift == bits:
            return _const(bits, x) - population_count(word).astype(str(x.ty.dtype))
        by = tirx.const(shift, kind)
        return let("word", word, lambda w: smeared(2 * shift, w | (w >> by)))

    return smeared(1, tirx.reinterpret(kind, x))


def _is_place(b: PrimExpr) -> PrimExpr:
    below = tirx.LT(b, _const(_dtype(b).bits, b))
    return tirx.all(tirx.GE(b, _const(0, b)), below) if _is_signed(b) else below


def _within(b: PrimExpr) -> PrimExpr:
    return b & _const(_dtype(b).bits - 1, b)


def power(
    a: te.Tensor, b: te.Tensor, shape: Sequence[Dim], operands: Sequence[Sequence[Dim]]
) -> te.Tensor:
    """A tensor of `shape`, to which the operands' shapes are broadcast: a to the power b modulo 2**bits. For a negative
    exponent, the integer part (0, except for 1 and -1).

    Computed by squaring in a loop over the exponent's bits. Written out for one element, it is an expression that TVM
    and LLVM take minutes to simplify.
    """
    dtype = DType(str(a.dtype))
    wide = f"u{dtype}" if dtype.is_signed else str(dtype)

    def fill(p: Serial, out: Buffer, bases: Buffer, exponents: Buffer) -> None:
        with rows(p, shape) as i:
            at = [broadcast_index(operand, shape, i) for operand in operands]
            base = p.let("base", p.read(bases, *at[0]))
            exponent = p.let("exponent", p.read(exponents, *at[1]))
            square = cell(p, "square", base.astype(wide))
            result = cell(p, "result", tirx.const(1, wide))
            left = cell(p, "left", exponent.astype(wide))
            with p.loop("bit", dtype.bits):
                odd = tirx.EQ(left.get() & tirx.const(1, wide), tirx.const(1, wide))
                factor = tirx.Select(odd, square.get(), tirx.const(1, wide))
                result.set(_times(result.get(), factor))
                square.set(_times(square.get(), square.get()))
                left.set(left.get() >> tirx.const(1, wide))
            value = result.get().astype(str(dtype))
            p.write(out, *i, value=_of_negative(base, exponent, value))

    return serial((shape, str(dtype)), [a, b], fill, "power")


def _of_negative(base: PrimExpr, exponent: PrimExpr, otherwise: PrimExpr) -> PrimExpr:
    """The integer part of 1 / base**-exponent for a negative exponent, else `otherwise`."""
    if not _is_signed(base):
        return otherwise
    zero, one, minus_one = (_const(value, base) for value in (0, 1, -1))
    sign = tirx.Select(tirx.EQ(exponent & one, one), minus_one, one)
    whole = tirx.Select(tirx.EQ(base, one), one, tirx.Select(tirx.EQ(base, minus_one), sign, zero))
    return tirx.Select(tirx.LT(exponent, zero), whole, otherwise)


def _times(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """The product of unsigned integers modulo 2**bits, from partial products that do not wrap."""
    bits = _dtype(a).bits
    if bits < 32:
        return a * b
    if bits == 32:
        return (_low(a) * _low(b)).astype("uint32")
    return let("x", a, lambda x: let("y", b, lambda y: let("z", _low(x) * _low(y), _join(x, y))))


def _join(x: PrimExpr, y: PrimExpr) -> Callable[[PrimExpr], PrimExpr]:
    """The low 64 bits of x * y, given the product of the low halves."""
    cross = _low(_high(x) * _low(y)) + _low(_low(x) * _high(y))
    return lambda z: ((cross + _high(z)) << _const(32, z)) | _low(z)


def _low(x: PrimExpr) -> PrimExpr:
    """The low 32 bits, as 64."""
    return x.astype("uint64") & tirx.const(0xFFFFFFFF, "uint64")


def _high(x: PrimExpr) -> PrimExpr:
    return x >> _const(32, x)


def _unsigned(x: PrimExpr) -> PrimExpr:
    if not _is_signed(x):
        return x
    dtype = f"u{x.ty.dtype}"
    if isinstance(x, tirx.IntImm):  # TVM refuses to convert negative literals
        return tirx.const(int(x.value) % (1 << _dtype(x).bits), dtype)
    return x.astype(dtype)


def _is_signed(x: PrimExpr) -> bool:
    return _dtype(x).is_signed


def _dtype(x: PrimExpr) -> DType:
    return DType(str(x.ty.dtype))


def _const(value: int, like: PrimExpr) -> PrimExpr:
    return tirx.const(value, str(like.ty.dtype))
