"""Functions shared by all schedule rules: functions to skip, loops that may run in parallel, and serial twins."""

from __future__ import annotations

from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains

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


def _with_initial_value_apart(schedule: s_tir.Schedule, block: s_tir.SBlock) -> list[s_tir.SBlock]:
    """Return the block. If its reduction may be empty, and so would never write the initial value, the initialisation
    is split off."""
    node = schedule.get(block)
    extents = [v.dom.extent for v in node.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
    if node.init is None or all(isinstance(e, tirx.IntImm) and e.value > 0 for e in extents):
        return [block]
    try:
        loops = schedule.get_loops(block)
        return [schedule.decompose_reduction(block, loops[0]), block] if loops else [block]
    except s_tir.ScheduleError:
        return [block]
