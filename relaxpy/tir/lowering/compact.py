"""Shrink the buffers that blocks allocate to the region that is used."""

from __future__ import annotations

from relaxpy.tir.name_length import has_long_values
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.walk import contains


@tvm.transform.module_pass(opt_level=0, name="relaxpy.CompactBuffers")
def compact_buffers(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Shrink buffers, in programs of blocks. Programs that the schedule wrote as loops are compact already, and TVM's
    pass ends with an internal error at a vector of indices such as `x[lanes // 2]`. Functions that allocate no buffers
    in blocks are skipped, and those of long values: the analysis writes out the names in indices."""
    blocks = {
        var: func
        for var, func in mod.functions.items()
        if _allocates(func) and not has_long_values(func)
    }
    if not blocks:
        return mod
    compact = s_tir.transform.CompactBufferAllocation()(tvm.IRModule(blocks))
    return tvm.IRModule({**dict(mod.functions.items()), **dict(compact.functions.items())})


def _allocates(func: tirx.PrimFunc) -> bool:
    """Does a block of the function allocate buffers?"""
    return contains(func.body, s_tir.SBlock, lambda block: len(block.alloc_buffers) > 0)
