"""Kernels without float16 are compiled without TVM's conversions between float16 and float32.

TVM's LLVM code generator adds two such functions to every module, `__truncsfhf2` and `__extendhfsf2`, for processors
that have no instructions for it. LLVM optimises and emits them each time: half of the time of a kernel that does
nothing, some 10 ms.

They are weak definitions. So an imported text with other definitions of these names replaces them when LLVM links the
two, before it optimises. Nothing in such a module calls them, and the names are hidden, so no other library finds them.
"""

from __future__ import annotations

from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.nodes import with_body
from relaxpy.tir.schedule import HALVES
from relaxpy.tir.tvm import tvm

_REPLACED = """
@__truncsfhf2 = hidden alias i8, ptr @__extendhfsf2
@__extendhfsf2 = hidden constant i8 0
"""


def without_conversions(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the lowered module, for LLVM, without the conversions, if none of its functions has float16 values
    (attribute `HALVES`)."""
    funcs = dict(mod.functions.items())
    if not funcs or any(HALVES in func.attrs for func in funcs.values()):
        return mod
    var, func = next(iter(funcs.items()))
    body = with_definitions(_REPLACED, func.body)
    return tvm.IRModule({**funcs, var: with_body(func, body)})
