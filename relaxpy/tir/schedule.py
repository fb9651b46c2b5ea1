"""Functions shared by all schedule rules: functions to skip, loops that may run in parallel, and serial twins."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains, walk

SCHEDULED = "tirx.is_scheduled"
"""Attribute of a PrimFunc whose loops its author has scheduled; no rule changes it."""
FINISHED = "relaxpy.finished"
"""Attribute of a function that is fully lowered except for its calling convention."""
CHECKED = "relaxpy.checked"
"""Attribute of a function that checks its arguments before it accesses them."""
HALVES = "relaxpy.halves"
"""Attribute of a function with float16 values."""


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Has its author scheduled the function, by the attribute or by a loop that is not plain (parallel, vectorised,
    unrolled or bound)?"""
    if func.attrs is not None and (SCHEDULED in func.attrs or "tir.is_scheduled" in func.attrs):
        return True
    return any(loop.kind != tirx.ForKind.SERIAL for loop in loops_of(func))


def loops_of(func: tirx.PrimFunc) -> list[tirx.For]:
    """All loops of the function, outermost first."""
    found: list[tirx.For] = []

    def visit(loop: tirx.For) -> None:
        found.append(loop)

    tvm_ffi.structural_walk(func.body, (tirx.For, visit), order="pre")
    return found


def asserts(func: tirx.PrimFunc) -> bool:
    """May the program stop with an error of its own?"""
    return contains(func.body, tirx.AssertStmt)


def has_parallel_loop(func: tirx.PrimFunc) -> bool:
    """Does a call launch work on the thread pool?"""
    return any(loop.kind == tirx.ForKind.PARALLEL for loop in loops_of(func))


def serial_twin(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the program with its parallel loops serial; results are bit-identical."""
    if not has_parallel_loop(func):
        return func

    def serial(loop: tirx.For) -> tirx.For:
        return with_kind(loop, tirx.ForKind.SERIAL) if loop.kind == tirx.ForKind.PARALLEL else loop

    return tvm_ffi.structural_map(func, (tirx.For, serial))


def with_kind(loop: tirx.For, kind: int) -> tirx.For:
    """Return the loop as a new node of this kind."""
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, kind, loop.body, loop.thread_binding, loop.annotations
    )


def parallelise_outer_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make the outermost loop of each block parallel if TVM proves that its iterations are independent.

    A function that TVM's scheduler cannot read, or a loop that it does not prove safe, stays unchanged.
    """
    # TVM's scheduler modifies a function in place even if its body is shared (by one made by `with_attr`, say), so it
    # gets loops of its own.
    copied = tvm_ffi.structural_map(func, (tirx.For, lambda loop: with_kind(loop, loop.kind)))
    try:
        schedule = s_tir.Schedule(tvm.IRModule({"main": copied}))
        blocks = schedule.get_child_blocks(schedule.get_sblock("root", func_name="main"))
    except (s_tir.ScheduleError, ValueError, RuntimeError):
        return func
    blocks = [part for block in blocks for part in _with_initial_value_apart(schedule, block)]
    for block in blocks:
        try:
            loops = schedule.get_loops(block)
            if loops:
                schedule.parallel(loops[0])
        except s_tir.ScheduleError:
            continue
    return schedule.mod["main"]


def with_initial_values(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function, in which reductions that may be empty write their initial values before their loops, which
    TVM's lowering puts into the first iteration."""
    if not contains(func.body, s_tir.SBlock, _may_be_empty):
        return func
    # As above: the scheduler gets loops of its own.
    copied = tvm_ffi.structural_map(func, (tirx.For, lambda loop: with_kind(loop, loop.kind)))
    try:
        schedule = s_tir.Schedule(tvm.IRModule({"main": copied}))
        blocks = schedule.get_child_blocks(schedule.get_sblock("root", func_name="main"))
    except (s_tir.ScheduleError, ValueError, RuntimeError):
        return func
    for block in blocks:
        if not _may_be_empty(schedule.get(block)):
            continue
        with suppress(s_tir.ScheduleError):
            reduced = [
                loop for loop in schedule.get_loops(block) if _reduces(schedule, block, loop)
            ]
            if reduced:
                schedule.decompose_reduction(block, reduced[0])
    return schedule.mod["main"]


def _may_be_empty(block: s_tir.SBlock) -> bool:
    """Has a block an initial value, and a reduction of maybe no elements?"""
    extents = [v.dom.extent for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
    return block.init is not None and not all(
        isinstance(extent, tirx.IntImm) and extent.value > 0 for extent in extents
    )


def _reduces(schedule: s_tir.Schedule, block: s_tir.SBlock, loop: Any) -> bool:
    """Is an axis of a block that is reduced made of this loop?"""
    var = schedule.get(loop).loop_var
    realize = _realize(schedule, block)
    return any(
        axis.iter_type == tirx.IterVar.CommReduce
        and contains(value, tvm.ir.Var, lambda found: found.same_as(var))
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
    )


def _realize(schedule: s_tir.Schedule, block: s_tir.SBlock) -> Any:
    node, found = schedule.get(block), list[Any]()
    walk(
        schedule.mod["main"].body,
        (
            s_tir.SBlockRealize,
            lambda each: found.append(each) if each.block.same_as(node) else None,
        ),
    )
    return found[0]


def _with_initial_value_apart(schedule: s_tir.Schedule, block: s_tir.SBlock) -> list[s_tir.SBlock]:
    """Return the block. If its reduction may be empty, and so would never write the initial value, the initialisation
    is split off."""
    if not _may_be_empty(schedule.get(block)):
        return [block]
    try:
        loops = schedule.get_loops(block)
        return [schedule.decompose_reduction(block, loops[0]), block] if loops else [block]
    except s_tir.ScheduleError:
        return [block]
