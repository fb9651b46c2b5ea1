"""From tensor programs to what TVM's code generators take: the passes, for processors.

Two kinds of function meet in one module. Programs of blocks go through the passes that TVM runs on them, less those
for accelerators. Programs that `relaxpy.tir.loops` wrote are in their final form already: flat buffers, explicit
vectors, no blocks. Lowering those again would only cost (TVM's simplifier needs minutes for a matrix product whose
dimensions are all unknown, its flattening of buffers hides from LLVM that vectors are contiguous), so they skip to
the end.
"""

from __future__ import annotations

from relaxpy.tir._tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.exact import sealed, unsealed

FINISHED = "relaxpy.finished"
"""Attribute of a function that only needs its calling convention."""

NAME = "relaxpy_cpu"
"""What the pipeline is called in TVM's registry, and by `tirx.build`."""


@tvm.transform.module_pass(opt_level=0, name="relaxpy.CompactBuffers")
def _compact_buffers(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Buffers of the size that is used of them, in programs of blocks. Those that the schedule wrote without have
    that already, and TVM's pass ends with an internal error at a vector of indices such as `x[lanes // 2]`."""
    blocks = {var: func for var, func in mod.functions.items() if _has_blocks(func)}
    if not blocks:
        return mod
    compact = s_tir.transform.CompactBufferAllocation()(tvm.IRModule(blocks))
    return tvm.IRModule({**dict(mod.functions.items()), **dict(compact.functions.items())})


def _has_blocks(func: tirx.PrimFunc) -> bool:
    found: list[object] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlockRealize, found.append), order="pre")
    return bool(found)


def block_passes() -> list[tvm.transform.Pass]:
    """For programs of blocks: away with blocks, vectorise, place buffers, simplify; in the order of TVM's pipeline.

    Without its elimination of common subexpressions, which goes wrong where an expression binds a variable ("used
    before definition"); LLVM does the same work later.
    """
    return [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        _compact_buffers,
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.AnnotateIrregularLoop(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.StorageRewrite(),
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
    ]


def calling_passes() -> list[tvm.transform.Pass]:
    """For all programs: the calling convention, and narrow floats as the integers that they are stored in."""
    return [
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ]


@tvm.transform.module_pass(opt_level=0, name="relaxpy.Lower")
def _lower(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Lower every function of the module, each by the passes of its kind, its values' arithmetic out of their sight."""
    mod = tvm.IRModule({var: sealed(func) for var, func in mod.functions.items()})
    blocks = {var: func for var, func in mod.functions.items() if not _is_finished(func)}
    if blocks:
        lowered = tvm.transform.Sequential(block_passes())(tvm.IRModule(blocks))
        mod = tvm.IRModule({**dict(mod.functions.items()), **dict(lowered.functions.items())})
    mod = tvm.IRModule({var: unsealed(func) for var, func in mod.functions.items()})
    return tvm.transform.Sequential(calling_passes())(mod)


def _is_finished(func: tirx.PrimFunc) -> bool:
    return func.attrs is not None and FINISHED in func.attrs


def _pipeline() -> tuple[object, object, object]:
    """As TVM's registry wants it: the passes, then what finishes host and device code."""
    finish = tirx.compilation_pipeline
    return _lower, finish.finalize_host_passes, finish.finalize_device_passes


tirx.register_tir_pipeline(NAME, _pipeline)
