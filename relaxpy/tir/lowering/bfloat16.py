"""Lower bfloat16: bits in memory, float32 in registers.

TVM's own pass computes wrong numbers if a bfloat16 is anything but an element in memory: it reads a value that was just
rounded, a `Let` or a choice among such values as the integer of its bits; and it turns a NaN into 0 when it rounds. So
all arithmetic in bfloat16 is rewritten in float32 here, before that pass runs. Values are rounded (to nearest, ties to
even, NaN kept) where the program has a cast and where they are stored.

Buffers that the program allocates become float32, too; their values are rounded where the program has a cast. (TVM's
pass does that only in part: it forgets buffers inside a `Let`.) Only elements in memory that are moved unchanged are
left to TVM.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes

from relaxpy.tir.lowering.lanes import like, splat
from relaxpy.tir.lowering.widen import Widener
from relaxpy.tir.nodes import operator_of, with_body
from relaxpy.tir.numerics import avx512
from relaxpy.tir.numerics.floats import is_nan
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

Expr = tvm.ir.Expr

_BITS, _NAN = 16, 0x7FC0
_ARITHMETIC = frozenset((avx512.FRACTION, avx512.SCALED, "tirx.sqrt", "tirx.fabs"))
"""Functions that are an instruction each."""


def without_bfloat16(
    func: tirx.PrimFunc, rounding: Callable[[Expr], Expr] | None = None
) -> tirx.PrimFunc:
    """Return the function with all arithmetic, functions and choices in bfloat16 rewritten. `rounding` is the target's:
    from a float32 to the bits, as uint16, of the nearest bfloat16; `rounded` if it is not given."""
    rewriter = _Rewriter(func, rounding or rounded)
    body = tvm_ffi.structural_map(func.body, rewriter.callbacks())
    return with_body(func, body)


class _Rewriter(Widener):
    dtype = "bfloat16"

    def __init__(self, func: tirx.PrimFunc, rounding: Callable[[Expr], Expr]) -> None:
        super().__init__(func)
        self.rounding = rounding

    def widened(self, bits: Expr) -> Expr:
        return _widened(bits)

    def narrowed(self, value: Expr) -> Expr:
        bits = _widened_from(value)
        return self.rounding(value) if bits is None else bits

    def nearest(self, value: float) -> float:
        return float(ml_dtypes.bfloat16(value))


def _widened(bits: Expr) -> Expr:
    """The float32 whose upper 16 bits are these, with zeros below."""
    wide = bits.astype(like(bits, "uint32")) << splat(_BITS, bits, "uint32")
    return tirx.reinterpret(like(bits, "float32"), wide)


def _widened_from(value: Expr) -> Expr | None:
    """The bits from which `_widened` made a float32; None for other values."""
    match value:
        case tvm.ir.Call(args=[tirx.LShift(a=tirx.Cast(value=bits), b=shift)]) if (
            _is_reinterpretation(value)
            and str(bits.ty.dtype).startswith("uint16")
            and tvm_ffi.structural_equal(shift, splat(_BITS, bits, "uint32"))
        ):
            return bits
        case _:
            return None


def _is_reinterpretation(call: tvm.ir.Call) -> bool:
    return str(getattr(call.op, "name", "")) == "tirx.reinterpret"


def rounded(value: Expr, is_nan: Callable[[Expr], Expr] = is_nan) -> Expr:
    """The bits of the bfloat16 nearest to a float32, in operations that all targets have. `is_nan` is the target's test
    of a float32."""
    wide = tirx.Var("wide", value.ty)
    bits = tirx.reinterpret(like(value, "uint32"), wide)
    shift, one = splat(_BITS, value, "uint32"), splat(1, value, "uint32")
    half = splat(0x7FFF, value, "uint32") + ((bits >> shift) & one)
    near = ((bits + half) >> shift).astype(like(value, "uint16"))
    kept = tirx.Select(is_nan(wide), splat(_NAN, value, "uint16"), near)
    return tirx.Let(wide, value, kept)


def rounded_by_instructions(value: Expr) -> Expr:
    """As `rounded`, on processors with the instructions of `relaxpy.tir.numerics.avx512`."""
    nearest = avx512.nearest_of_short if _is_short(value) else avx512.nearest_bfloat16
    near = nearest(value)
    return (near >> splat(_BITS, value, "uint32")).astype(like(value, "uint16"))


def _is_short(value: Expr, names: frozenset[tvm.ir.Var] = frozenset()) -> bool:
    """Is the lower half of a float32 0, if it is a NaN, given that this holds for the variables in `names`? It does for
    numbers that were widened. Of such operands the arithmetic of x86 processors hands on one that is a NaN, made quiet,
    or makes a NaN that has no further bits."""
    match value:
        case tirx.FloatImm():
            return not math.isnan(float(value.value))
        case tvm.ir.Var():
            return value in names
        case tirx.Add() | tirx.Sub() | tirx.Mul() | tirx.Div() | tirx.Max() | tirx.Min():
            return _is_short(value.a, names) and _is_short(value.b, names)
        case tirx.Select():
            return _is_short(value.true_value, names) and _is_short(value.false_value, names)
        case tirx.Broadcast():
            return _is_short(value.value, names)
        case tirx.Let():
            bound = names | {value.var} if _is_short(value.value, names) else names
            return _is_short(value.body, bound)
        case tvm.ir.Call() if operator_of(value) in _ARITHMETIC:
            return all(_is_short(each, names) for each in value.args)
        case _:
            return _widened_from(value) is not None
