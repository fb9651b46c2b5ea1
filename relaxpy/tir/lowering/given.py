"""Indices that LLVM takes as given, in the loop in which they are computed.

For the addresses that a loop uses LLVM prefers a pointer each, moved on in every iteration, to sums of an index and an
offset that stays. A tile of a matrix whose row length is unknown has one for each of its rows, read, written, fetched:
far more than there are registers, so that most are loaded, moved on and stored again, up to fifty a tile. Those stores
leave no room in the queue where stores wait for memory.

There is no hint for it in TVM's programs. So such an index (`relaxpy.tir.programs.loops.Program.given`) passes through
an empty instruction, after which LLVM does not know how it changes from one iteration to the next.
"""

from __future__ import annotations

from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.nodes import operator_of, with_body
from relaxpy.tir.programs.loops import GIVEN, Expr
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import contains, rewritten

_DEFINITION = f"""
define i64 @{GIVEN}(i64 %index) alwaysinline nounwind {{
  %same = call i64 asm "", "=r,0"(i64 %index)
  ret i64 %same
}}
"""


def with_given(func: tirx.PrimFunc, *, for_llvm: bool) -> tirx.PrimFunc:
    """Return the function with what hides from LLVM how its given indices change. Other code generators compute them
    as any other."""
    if not contains(func.body, tvm.ir.Call, _is_given):
        return func
    if for_llvm:
        return with_body(func, with_definitions(_DEFINITION, func.body))

    def plain(call: tvm.ir.Call) -> Expr:
        return call.args[1] if _is_given(call) else call

    return with_body(func, rewritten(func.body, (tvm.ir.Call, plain)))


def _is_given(call: tvm.ir.Call) -> bool:
    return operator_of(call) == "tirx.call_pure_extern" and str(call.args[0].value) == GIVEN
