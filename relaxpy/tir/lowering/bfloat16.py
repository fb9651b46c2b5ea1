"""bfloat16 as the processor has it: bits in memory, float32 in registers.

TVM's own pass computes wrong numbers where a bfloat16 is anything but an element in memory: it reads a value that was
just rounded, a `Let` or a choice among such values as the integer that its bits are; and it turns a NaN into 0 when it
rounds. So everything that a program computes in bfloat16 is written in float32 here, before that pass runs. Rounding,
to nearest, ties to even, NaN kept, is where the program says so (a cast) and where a value is stored.

Buffers that the program allocates become float32, too: values are rounded where the program says so. (TVM's pass does
that by halves: it forgets them inside a `Let`.) What is left to TVM are elements in memory that are moved as they are.
"""

from __future__ import annotations

import ml_dtypes

from relaxpy.tir.lowering.lanes import like, splat
from relaxpy.tir.lowering.widen import Widener
from relaxpy.tir.numerics.floats import is_nan
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

Expr = tvm.ir.Expr

_BITS, _NAN = 16, 0x7FC0


def without_bfloat16(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same function, in which no arithmetic, function or choice is of bfloat16."""
    rewriter = _Rewriter(func)
    body = tvm_ffi.structural_map(func.body, rewriter.callbacks())
    return func if body.same_as(func.body) else func.with_body(body)


class _Rewriter(Widener):
    dtype = "bfloat16"

    def widened(self, bits: Expr) -> Expr:
        return _widened(bits)

    def narrowed(self, value: Expr) -> Expr:
        return _rounded(value)

    def nearest(self, value: float) -> float:
        return float(ml_dtypes.bfloat16(value))


def _widened(bits: Expr) -> Expr:
    """The float32 with these 16 bits, and zeros below them."""
    wide = bits.astype(like(bits, "uint32")) << splat(_BITS, bits, "uint32")
    return tirx.reinterpret(like(bits, "float32"), wide)


def _widened_from(value: Expr) -> Expr | None:
    """The bits that `_widened` made a float32 of; None for any other value."""
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


def _rounded(value: Expr) -> Expr:
    """The bits of the bfloat16 next to a float32; of one that was widened, those it was widened from."""
    narrow = _widened_from(value)
    if narrow is not None:
        return narrow
    wide = tirx.Var("wide", value.ty)
    bits = tirx.reinterpret(like(value, "uint32"), wide)
    shift, one = splat(_BITS, value, "uint32"), splat(1, value, "uint32")
    half = splat(0x7FFF, value, "uint32") + ((bits >> shift) & one)
    near = ((bits + half) >> shift).astype(like(value, "uint16"))
    kept = tirx.Select(is_nan(wide), splat(_NAN, value, "uint16"), near)
    return tirx.Let(wide, value, kept)
