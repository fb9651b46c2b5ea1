"""Masked stores of narrow elements, for AVX-512.

LLVM joins a truncation and a masked store of AVX-512, and replaces a masked store of one lane, if it knows that, by a
store of that lane. Both together store the lane as it was before its truncation: 32 bits where the element has 16 or 8,
so that the elements behind it become 0. They are those of the next row, which another thread may have written, or none
of the result at all. So a value that is stored so passes through an empty instruction, after its truncation.
"""

from __future__ import annotations

from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.nodes import operator_of, with_body
from relaxpy.tir.programs.vectors import lanes_of
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import rewritten

_NAME = "relaxpy_truncated"
_WIDTHS = (128, 256, 512)
"""Bits of registers."""


def with_kept_truncations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function, in which narrow floats are integers already, with its masked stores as they are meant."""
    used: set[tuple[int, int]] = set()

    def keep(call: tvm.ir.Call) -> tvm.ir.Call:
        if operator_of(call) != "tirx.masked_store":
            return call
        buffer, value, *place = call.args
        kind, lanes = tvm.DataType(str(value.ty.dtype)), lanes_of(value)
        if kind.bits not in (8, 16) or kind.bits * lanes not in _WIDTHS or "int" not in str(kind):
            return call
        used.add((lanes, kind.bits))
        kept = tirx.call_pure_extern(str(kind), f"{_NAME}_{lanes}x{kind.bits}", value)
        return tvm.ir.Call(call.op, [buffer, kept, *place], span=call.span, ret_ty=call.ty)

    body = rewritten(func.body, (tvm.ir.Call, keep))
    if not used:
        return func
    return with_body(func, with_definitions("".join(map(_definition, sorted(used))), body))


def _definition(shape: tuple[int, int]) -> str:
    lanes, bits = shape
    vector = f"<{lanes} x i{bits}>"
    return f"""
define {vector} @{_NAME}_{lanes}x{bits}({vector} %value) alwaysinline nounwind {{
  %same = call {vector} asm "", "=v,0"({vector} %value)
  ret {vector} %same
}}
"""
