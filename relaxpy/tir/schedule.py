"""Functions shared by all schedule rules: functions to skip, loops that may run in parallel, and serial twins."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from relaxpy.tir.nodes import operator_of
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains, contains_any, walk

Stmt = Any

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
        loop.loop_var, loop.min, loop.extent, kind, loop.body, loop.thread_binding, loop.annotations,
        loop.step,
    )  # fmt: skip


def with_outer_loops_parallel(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with the outermost loop of each block parallel, whether or not that is safe."""

    def parallel(stmt: Stmt) -> Stmt:
        return with_kind(stmt, tirx.ForKind.PARALLEL) if _may_run_at_once(stmt) else stmt

    return _with_statements(with_initial_values(func), parallel)


def _may_run_at_once(stmt: Stmt) -> bool:
    """Is it a loop with blocks that nothing inside ends early?"""
    if not isinstance(stmt, tirx.For) or not contains(stmt.body, s_tir.SBlockRealize):
        return False
    ends = (tirx.Break, tirx.Continue, tirx.Return)
    calls = ("break_loop", "continue_loop", "ret")
    return not contains_any(
        stmt.body,
        (ends, lambda _: True),
        (tvm.ir.Call, lambda call: operator_of(call).rpartition(".")[2] in calls),
    )


def with_initial_values(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function, in which reductions that may be empty write their initial values before their loops, which
    TVM's lowering puts into the first iteration."""
    if not contains(func.body, s_tir.SBlock, _may_be_empty):
        return func

    def initialised(stmt: Stmt) -> Stmt:
        return _initialised(func, stmt) if contains(stmt, s_tir.SBlock, _may_be_empty) else stmt

    return _with_statements(func, initialised)


def _with_statements(func: tirx.PrimFunc, change: Callable[[Stmt], Stmt]) -> tirx.PrimFunc:
    """Return the function with each statement of its root block changed."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return func
    root = func.body.block
    stmts = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    changed = [change(stmt) for stmt in stmts]
    if all(a is b for a, b in zip(stmts, changed, strict=True)):
        return func
    body = changed[0] if len(changed) == 1 else tirx.SeqStmt(changed)
    made = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init,
        root.alloc_buffers, root.match_buffers, root.annotations,
    )  # fmt: skip
    realize = s_tir.SBlockRealize(func.body.iter_values, func.body.predicate, made)
    return func.with_body(realize)


def _initialised(func: tirx.PrimFunc, stmt: Stmt) -> Stmt:
    """A statement of a function's root block, in which reductions that may be empty write their initial values before
    their loops. TVM's scheduler gets the statement as a function of its own, since each of its steps takes as long as
    the function has statements."""
    used: dict[Any, None] = {}
    walk(stmt, (tvm.ir.Var, lambda var: used.setdefault(var)))
    allocated = set(func.body.block.alloc_buffers)
    # The scheduler modifies a function in place even if its body is shared, so it gets loops of its own.
    own = tvm_ffi.structural_map(stmt, (tirx.For, lambda loop: with_kind(loop, loop.kind)))
    root = s_tir.SBlock(
        [], [], [], "root", own, alloc_buffers=[buffer for buffer in used if buffer in allocated]
    )
    body = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    try:
        schedule = s_tir.Schedule(tvm.IRModule({"main": tirx.PrimFunc(func.params, body)}))
        blocks = schedule.get_child_blocks(schedule.get_sblock("root", func_name="main"))
    except (s_tir.ScheduleError, ValueError, RuntimeError):
        return stmt
    for block in blocks:
        if not _may_be_empty(schedule.get(block)):
            continue
        with suppress(s_tir.ScheduleError):
            reduced = [
                loop for loop in schedule.get_loops(block) if _reduces(schedule, block, loop)
            ]
            if reduced:
                schedule.decompose_reduction(block, reduced[0])
    return schedule.mod["main"].body.block.body


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
