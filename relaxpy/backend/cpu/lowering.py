"""The lowering passes for processors: from tensor programs to the input of TVM's code generators.

A module contains two kinds of function. Programs of blocks go through TVM's own passes, without those for accelerators.
Programs written by `relaxpy.tir.programs.loops` are already in final form: flat buffers, explicit vectors, no blocks.
They skip to the end, since lowering them again is harmful: TVM's simplifier needs minutes for a matrix product whose
dimensions are all unknown, and its flattening of buffers hides from LLVM that vectors are contiguous.
"""

from __future__ import annotations

from functools import cache

from relaxpy.tir.allowed import REQUIRE_MEMORY
from relaxpy.tir.lowering.compact import compact_buffers
from relaxpy.tir.lowering.conversions import without_conversions
from relaxpy.tir.lowering.exact import sealed, unnamed, unsealed, wrapped
from relaxpy.tir.lowering.flat import flatten_buffers
from relaxpy.tir.lowering.given import with_given
from relaxpy.tir.lowering.intrinsics import lower_intrinsics, name_dividends
from relaxpy.tir.lowering.masked import with_kept_truncations
from relaxpy.tir.lowering.rolled import kept_rolled
from relaxpy.tir.lowering.traps import without_traps
from relaxpy.tir.lowering.truth import chosen_by_truth
from relaxpy.tir.lowering.unnest import unnest_lets, unnest_new_lets
from relaxpy.tir.name_length import nested_reads
from relaxpy.tir.nodes import with_body
from relaxpy.tir.schedule import CHECKED, FINISHED, asserts
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains, rewritten

NAME = "relaxpy_cpu"
"""The name of the pipeline in TVM's registry and in `tirx.build`."""


@tvm.transform.module_pass(opt_level=0, name="relaxpy.ShareStorage")
def _share_storage(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Let buffers with disjoint lifetimes share memory, allocated at the beginning. Not in programs that check for
    memory while they run: there a size may be undefined before the check, and the memory has not been requested yet."""
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
    """Make divisions by 0 give 0, after the passes that simplify and move them. Those passes remove earlier guards
    if a condition makes them redundant, although TVM evaluates both sides of a choice, and allocates before the
    condition."""
    return tvm.IRModule({var: without_traps(func) for var, func in mod.functions.items()})


@tvm.transform.module_pass(opt_level=0, name="relaxpy.Unnamed")
def _unnamed(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Restore let-bound values, before the passes that look for reads that must not happen."""
    return tvm.IRModule({var: unnamed(func) for var, func in mod.functions.items()})


def block_passes() -> list[tvm.transform.Pass]:
    """The passes for programs of blocks, in the order of TVM's pipeline: remove blocks, vectorise, place buffers,
    simplify.

    Common subexpression elimination is left out. It is wrong if an expression binds a variable ("used before
    definition"), and LLVM does the same later.
    """
    return [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        compact_buffers,
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.AnnotateIrregularLoop(),
        s_tir.transform.LowerOpaqueBlock(),
        *_vector_passes(),
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        *_last_passes(),
    ]


def loop_passes() -> list[tvm.transform.Pass]:
    """Those for programs of loops without blocks, which rules have written. Their conditions are outside of loops as
    far as that pays; hoisting others, with the simplification that follows it, took a quarter of the time and changed
    no kernel's code."""
    return [
        s_tir.transform.StmtSimplify(),
        *_vector_passes(),
        tirx.transform.UnrollLoop(),
        *_last_passes(),
    ]


@tvm.transform.module_pass(opt_level=0, name="relaxpy.NarrowDataType")
def _narrow_data_type(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Indices of 32 bits where these suffice. Not in functions that read at what they have read at what they have read
    and so on: TVM's pass goes through an index twice, and through one in it four times."""
    few = {var: f for var, f in mod.functions.items() if nested_reads(f.body) <= _MOST_NESTED_READS}
    narrow = tirx.transform.NarrowDataType(32)(tvm.IRModule(few))
    return tvm.IRModule({**dict(mod.functions.items()), **dict(narrow.functions.items())})


_MOST_NESTED_READS = 6


def _vector_passes() -> list[tvm.transform.Pass]:
    return [
        flatten_buffers,
        tirx.transform.BF16ComputeLegalize(),
        _narrow_data_type,
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(True),
        _share_storage,
    ]


def _last_passes() -> list[tvm.transform.Pass]:
    return [
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        _unnamed,
        s_tir.transform.RewriteUnsafeSelect(),
        _without_traps,
    ]


def calling_passes() -> list[tvm.transform.Pass]:
    """The passes for all programs: calling convention, and narrow floats as the integers that they are stored in."""
    return [
        tirx.transform.FP8ComputeLegalize(),
        tirx.transform.VerifyMemory(),
        tirx.transform.SplitHostDevice(),
        _packed,
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ]


@tvm.transform.module_pass(opt_level=0, name="relaxpy.PackedAPI")
def _packed(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """TVM's calling convention, with its argument checks only if they are requested.

    TVM compares number, type, dtype, rank, shape, strides, device and address of every argument at every call, with a
    message for each. That is more than half of a small kernel's code and compile time. relaxpy's virtual machine passes
    only compact tensors whose dtype and shape it has checked at entry. Functions with assertions of their own keep all
    checks, because the two cannot be told apart.
    """
    bare = {
        var.name_hint
        for var, func in mod.functions.items()
        if CHECKED not in func.attrs and not asserts(func)
    }
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    unchecked: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    for var, func in tirx.transform.MakePackedAPI()(mod).functions.items():
        body = func.body
        if var.name_hint in bare:
            body = rewritten(body, (tirx.AssertStmt, lambda _: nothing))
        if _only_launches(func):
            body = rewritten(body, (tirx.AttrStmt, _without_scope))
        unchecked[var] = with_body(func, body)
    return tvm.IRModule(unchecked)


def _only_launches(func: tirx.PrimFunc) -> bool:
    """Is every loop of the function parallel, or inside of one that is?"""
    parallel: list[bool] = []

    def visit(loop: tirx.For | tirx.While) -> object:
        parallel.append(isinstance(loop, tirx.For) and loop.kind == tirx.ForKind.PARALLEL)
        return tvm_ffi.WalkResult.SKIP

    tvm_ffi.structural_walk(func.body, ((tirx.For, tirx.While), visit), order="pre")
    return bool(parallel) and all(parallel)


def _without_scope(attr: tirx.AttrStmt) -> tirx.Stmt:
    """TVM puts the body of a program into a function of its own, behind one that reads the arguments, so that LLVM
    knows its pointers not to alias. A program that only launches loops does without: they are functions already."""
    return attr.body if attr.attr_key == "compute_scope" else attr


@tvm.transform.module_pass(opt_level=0, name="relaxpy.Lower")
def _lower(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Lower every function of the module by the passes of its kind, with the arithmetic of its values sealed."""
    lowered: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = dict(mod.functions.items())
    blocks: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    nests: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
    for var, func in lowered.items():
        if _is_finished(func):
            lowered[var] = _prepared(func)
        elif contains(func.body, s_tir.SBlock):
            blocks[var] = sealed(func)
        else:
            nests[var] = sealed(func)
    for funcs, passes in ((blocks, block_passes), (nests, loop_passes)):
        if funcs:
            passed = tvm.transform.Sequential(passes())(tvm.IRModule(funcs))
            lowered |= {var: unsealed(func) for var, func in passed.functions.items()}
    mod = tvm.IRModule({var: _completed(func) for var, func in lowered.items()})
    mod = tvm.transform.Sequential(calling_passes())(mod)
    if not all(_is_for_llvm(func) for func in mod.functions.values()):
        return mod
    stored = {
        var: with_kept_truncations(func) if _stores_lanes(str(func.attrs["target"])) else func
        for var, func in mod.functions.items()
    }
    return without_conversions(tvm.IRModule(stored))


def _prepared(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A finished function with wrapping arithmetic, and its marked loops rolled."""
    return kept_rolled(wrapped(func)) if _is_for_llvm(func) else wrapped(func)


def _completed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A lowered function with its given indices, and with what is chosen by the truth of a number."""
    return with_given(chosen_by_truth(func), for_llvm=_is_for_llvm(func))


def _is_for_llvm(func: tirx.PrimFunc) -> bool:
    return func.attrs["target"].kind.name == "llvm"


@cache
def _stores_lanes(target: str) -> bool:
    """Does a target, in TVM's text, have masked stores of narrow elements?"""
    needed = ["avx512bw", "avx512vl"]
    return bool(tvm.target.codegen.target_has_features(needed, tvm.target.Target(target)))


def _is_finished(func: tirx.PrimFunc) -> bool:
    return func.attrs is not None and FINISHED in func.attrs


def _pipeline() -> tuple[object, object, object]:
    """The pipeline in the form that TVM's registry expects: the passes, then those that finish host and device code."""
    return _lower, _finish_host, tirx.compilation_pipeline.finalize_device_passes


def _finish_host() -> tvm.transform.Pass:
    """TVM's last passes for host code, with `LowerIntrin` replaced by ours."""
    return tvm.transform.Sequential(
        [
            tirx.transform.LowerTVMBuiltin(),
            _sizes_from_0,
            name_dividends,
            unnest_lets,
            lower_intrinsics,
            unnest_new_lets,
        ]
    )


@tvm.transform.module_pass(opt_level=0, name="relaxpy.SizesFrom0")
def _sizes_from_0(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Clamp sizes of memory at 0, since a negative size would end the process: the used region of a buffer (`(n - 1) *
    5000 + 1` elements) is negative if no loop uses it."""
    return tvm.IRModule(
        {
            var: with_body(func, rewritten(func.body, (tvm.ir.Call, _from_0)))
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
