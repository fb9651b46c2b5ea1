"""Loops of which LLVM keeps one copy.

LLVM writes short loops out several times, with a remainder loop behind them, and loops of few iterations completely, up
to some hundred instructions. For a loop that computes this saves some counting. For one that copies, stores or only
repeats another loop it saves nothing, but each copy is optimised, scheduled and emitted: two thirds of a product's code
where neither depth nor strides are known. Rules mark such loops (`relaxpy.tir.programs.loops.ROLLED`).

There is no hint for it in TVM's programs. So the body of a marked loop begins with an empty instruction that LLVM must
not duplicate. It touches no memory and emits no code.
"""

from __future__ import annotations

from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.nodes import with_body
from relaxpy.tir.programs.loops import ROLLED
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import contains, rewritten

_ONCE = "relaxpy_once"
_DEFINITION = f"""
define void @{_ONCE}() alwaysinline nounwind {{
  call void asm sideeffect "", ""() noduplicate nounwind willreturn memory(inaccessiblemem: readwrite)
  ret void
}}
"""


def kept_rolled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function, for LLVM, with what keeps its marked loops rolled."""
    if not contains(func.body, tirx.For, _is_marked):
        return func
    once = tirx.Evaluate(tirx.call_extern("void", _ONCE))

    def mark(loop: tirx.For) -> tirx.For:
        if not _is_marked(loop):
            return loop
        body = tirx.SeqStmt([once, loop.body])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)

    body = rewritten(func.body, (tirx.For, mark))
    return with_body(func, with_definitions(_DEFINITION, body))


def _is_marked(loop: tirx.For) -> bool:
    return ROLLED in loop.annotations
