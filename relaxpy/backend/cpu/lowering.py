"""From tensor programs to what TVM's code generators take: the passes, for processors.

Two kinds of function meet in one module. Programs of blocks go through the passes that TVM runs on them, less those
for accelerators. Programs that `relaxpy.tir.writer.loops` wrote are in their final form already: flat buffers, explicit
vectors, no blocks. Lowering those again would only cost (TVM's simplifier needs minutes for a matrix product whose
dimensions are all unknown, its flattening of buffers hides from LLVM that vectors are contiguous), so they skip to
the end.
"""

from __future__ import annotations

from relaxpy.tir.allowed import REQUIRE_MEMORY
from relaxpy.tir.lowering.exact import sealed, unnamed, unsealed
from relaxpy.tir.lowering.intrinsics import lower_intrinsics
from relaxpy.tir.lowering.traps import without_traps
from relaxpy.tir.lowering.truth import chosen_by_truth
from relaxpy.tir.lowering.unnest import unnest_lets
from relaxpy.tir.schedule import CHECKED, FINISHED, asserts
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains

NAME = "relaxpy_cpu"
"""What the pipeline is called in TVM's registry, and by `tirx.build`."""


@tvm.transform.module_pass(opt_level=0, name="relaxpy.CompactBuffers")
def _compact_buffers(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Buffers of the size that is used of them, in programs of blocks. Those that the schedule wrote without have
    that already, and TVM's pass ends with an internal error at a vector of indices such as `x[lanes // 2]`. Blocks that
    allocate none are left alone: it takes long to see that where indices have many names."""
    blocks = {var: func for var, func in mod.functions.items() if _allocates(func)}
    if not blocks:
        return mod
    compact = s_tir.transform.CompactBufferAllocation()(tvm.IRModule(blocks))
    return tvm.IRModule({**dict(mod.functions.items()), **dict(compact.functions.items())})


def _allocates(func: tirx.PrimFunc) -> bool:
    """Does a block of the function have buffers of its own?"""
    return contains(func.body, s_tir.SBlock, lambda block: len(block.alloc_buffers) > 0)


@tvm.transform.module_pass(opt_level=0, name="relaxpy.ShareStorage")
def _share_storage(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Buffers that are not in use at a time in one place, allocated at the beginning: not in programs that ask for
    memory on their way, where a size may be no number before, and is memory that nobody has asked for yet."""
    shared = {var: func for var, func in mod.functions.items() if not _asks_for_memory(func)}
    if len(shared) == len(mod.functions):
        return tirx.transform.StorageRewrite()(mod)
    rewritten = tirx.transform.StorageRewrite()(tvm.IRModule(shared))
    return tvm.IRModule({**dict(mod.functions.items()), **dict(rewritten.functions.items())})


def _asks_for_memory(func: tirx.PrimFunc) -> bool:
    """Does the function call `REQUIRE_MEMORY`?"""
    return contains(func.body, tirx.AllocBuffer, _is_sized_late) and contains(
        func.body, tvm.ir.Call, _requires_memory
    )


def _is_sized_late(stmt: tirx.AllocBuffer) -> bool:
    return not all(isinstance(size, tirx.IntImm) for size in stmt.buffer.shape)


def _requires_memory(call: tvm.ir.Call) -> bool:
    is_packed = str(getattr(call.op, "name", "")).endswith("call_packed")
    return is_packed and getattr(call.args[0], "value", "") == REQUIRE_MEMORY


@tvm.transform.module_pass(opt_level=0, name="relaxpy.WithoutTraps")
def _without_traps(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Divisions by 0 give 0, after what simplified and moved them. The guards that were there before are gone where a
    condition makes them superfluous, though TVM computes both sides of a choice, and allocates before it."""
    return tvm.IRModule({var: without_traps(func) for var, func in mod.functions.items()})


@tvm.transform.module_pass(opt_level=0, name="relaxpy.Unnamed")
def _unnamed(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Values under a name in sight, before what looks at them for reads that must not happen."""
    return tvm.IRModule({var: unnamed(func) for var, func in mod.functions.items()})


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
        _share_storage,
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        _unnamed,
        s_tir.transform.RewriteUnsafeSelect(),
        _without_traps,
    ]


def calling_passes() -> list[tvm.transform.Pass]:
    """For all programs: the calling convention, and narrow floats as the integers that they are stored in."""
    return [
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        _packed,
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ]


@tvm.transform.module_pass(opt_level=0, name="relaxpy.PackedAPI")
def _packed(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """TVM's calling convention, without its checks of the arguments where nobody asks for them.

    TVM compares number, type, dtype, rank, shape, strides, device and address of every argument at every call, with a
    message for each: more than half of a small kernel's code and of the time to compile it. relaxpy's own virtual
    machine hands over compact tensors only, whose dtype and shape it has compared where they came into a call.
    Functions that assert something themselves keep all checks: theirs look the same.
    """
    bare = {
        var.name_hint
        for var, func in mod.functions.items()
        if CHECKED not in func.attrs and not asserts(func)
    }
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    unchecked: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    for var, func in tirx.transform.MakePackedAPI()(mod).functions.items():
        if var.name_hint in bare:
            body = tvm_ffi.structural_map(func.body, (tirx.AssertStmt, lambda _: nothing))
            unchecked[var] = func.with_body(body)
        else:
            unchecked[var] = func
    return tvm.IRModule(unchecked)


@tvm.transform.module_pass(opt_level=0, name="relaxpy.Lower")
def _lower(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Lower every function of the module, each by the passes of its kind, its values' arithmetic out of their sight."""
    mod = tvm.IRModule({var: sealed(func) for var, func in mod.functions.items()})
    blocks = {var: func for var, func in mod.functions.items() if not _is_finished(func)}
    if blocks:
        lowered = tvm.transform.Sequential(block_passes())(tvm.IRModule(blocks))
        mod = tvm.IRModule({**dict(mod.functions.items()), **dict(lowered.functions.items())})
    mod = tvm.IRModule(
        {var: chosen_by_truth(unsealed(func)) for var, func in mod.functions.items()}
    )
    return tvm.transform.Sequential(calling_passes())(mod)


def _is_finished(func: tirx.PrimFunc) -> bool:
    return func.attrs is not None and FINISHED in func.attrs


def _pipeline() -> tuple[object, object, object]:
    """As TVM's registry wants it: the passes, then what finishes host and device code."""
    return _lower, _finish_host, tirx.compilation_pipeline.finalize_device_passes


def _finish_host() -> tvm.transform.Pass:
    """TVM's last passes for host code, the second as ours."""
    return tvm.transform.Sequential(
        [
            tirx.transform.LowerTVMBuiltin(),
            _sizes_from_0,
            unnest_lets,
            lower_intrinsics,
            unnest_lets,
        ]
    )


@tvm.transform.module_pass(opt_level=0, name="relaxpy.SizesFrom0")
def _sizes_from_0(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """No memory has a negative number of bytes, which as a size would end the process: what is used of a buffer
    (`(n - 1) * 5000 + 1` elements) is negative where no loop uses it."""
    return tvm.IRModule(
        {
            var: func.with_body(tvm_ffi.structural_map(func.body, (tvm.ir.Call, _from_0)))
            for var, func in mod.functions.items()
        }
    )


def _from_0(call: tvm.ir.Call) -> tvm.ir.Call:
    if getattr(call.op, "name", None) != "tirx.TVMBackendAllocWorkspace":
        return call
    device, number, size, *dtype = call.args
    if isinstance(size, tirx.IntImm):
        return call
    least = tirx.max(size.astype("int64"), tirx.const(0, "int64")).astype("uint64")
    return tvm.ir.Call(call.op, [device, number, least, *dtype], span=call.span, ret_ty=call.ty)


tirx.register_tir_pipeline(NAME, _pipeline)
