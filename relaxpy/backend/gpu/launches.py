"""Split a tensor program into launches: programs that run one after the other, each on one grid of threads.

Threads of one launch cannot wait for each other. Memory written by one loop nest is visible to all threads only after
the launch has ended. So every top-level loop nest of a program becomes a launch of its own, but for neighbours that a
rule recognises together (`relaxpy.backend.gpu.schedule`), and the program's allocations become *workspaces*
(`relaxpy.tir.lowering.workspace.split`), since kernels cannot allocate.

Rows (`relaxpy.tir.recognise.rows`: sorts, running totals), and loops that the author made parallel, are distributed
over threads unchanged. Allocations in their body are private to a thread: a few elements in registers or private
memory; large ones and those of symbolic size in a workspace with one row per iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from relaxpy.ir.dim import SymVar
from relaxpy.tir.lowering.packing import with_fewer_buffers
from relaxpy.tir.lowering.workspace import Launches, buffer_count, is_shared, split
from relaxpy.tir.prim_func import PrimFunc, read_symbols
from relaxpy.tir.programs.loops import int64
from relaxpy.tir.recognise.rows import read_rows
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.types import Buffer, Stmt, Var
from relaxpy.tir.walk import rewritten, walk


def launches_of(
    program: PrimFunc, joins: Callable[[Any], bool] | None = None, most_buffers: int | None = None
) -> Launches | None:
    """The launches of a program, with the memory that they need; None for one launch that needs none. `joins` is that
    of `split`. If a launch may take only `most_buffers` buffers, those of others are joined
    (`relaxpy.tir.lowering.packing`)."""
    func = _with_rows_at_the_top(program.func)
    found = split(PrimFunc(func, program.span), joins)
    if most_buffers is not None and _most_taken(program, found) > most_buffers:
        func = with_fewer_buffers(func, most_buffers)
        found = split(PrimFunc(func, program.span))
    if found is None or func is program.func:
        return found
    own = read_symbols(program.func).symbols
    again = {symbol: own[var] for var, symbol in read_symbols(func).symbols.items()}
    return _over(found, again)


def _most_taken(program: PrimFunc, found: Launches | None) -> int:
    """The most buffers that a launch takes."""
    programs = [program] if found is None else [each.program for each in found.launches]
    return max(map(buffer_count, programs))


def _over(launches: Launches, symbols: dict[SymVar, SymVar]) -> Launches:
    """Return the launches over other symbols."""
    dims = {old: new.dim for old, new in symbols.items()}
    made = [
        replace(each, args=tuple(symbols[a] if isinstance(a, SymVar) else a for a in each.args))
        for each in launches.launches
    ]
    workspaces = [
        replace(each, shape=tuple(dim.substitute(dims) for dim in each.shape))
        for each in launches.workspaces
    ]
    return Launches(tuple(made), tuple(workspaces))


def outer_parallel(stmt: Stmt) -> Any:
    """The parallel loop in a statement, below blocks without axes; None for other statements."""
    while _is_plain(stmt):
        stmt = stmt.block.body
    is_parallel = isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.PARALLEL
    return stmt if is_parallel else None


def _is_plain(stmt: Stmt) -> bool:
    """Is it a block without axes, which only groups its statements?"""
    if not isinstance(stmt, s_tir.SBlockRealize) or len(stmt.iter_values):
        return False
    return stmt.block.init is None and not len(stmt.block.match_buffers)


def _with_rows_at_the_top(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with the phases of a block next to each other, and with memory that loops allocate moved to
    the top: one row per iteration of the parallel loops around it.

    Memory whose size depends on computed values stays in place: it cannot be allocated before.
    """
    stmts, allocated = _phases(func.body)
    symbols = read_symbols(func).symbols
    rows: list[Buffer] = []
    changed: list[Stmt] = []
    for stmt in stmts:
        first, index = _own_index(stmt)
        lifted: dict[Buffer, Buffer] = {}
        for buffer in _allocated(stmt):
            shape = [int64(extent) for extent in (*first, *buffer.shape)]
            if all(var in symbols for extent in shape for var in _vars(extent)):
                lifted[buffer] = tirx.decl_buffer(
                    shape, str(buffer.dtype), buffer.name, layout=None
                )
        changed.append(_elsewhere(stmt, lifted, index) if lifted else stmt)
        rows += lifted.values()
    if not rows and len(stmts) == 1:
        return func
    body = changed[0] if len(changed) == 1 else tirx.SeqStmt(changed)
    root = s_tir.SBlock([], [], [], "root", body, None, [*allocated, *rows])
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), root))


def _own_index(stmt: Stmt) -> tuple[list[Any], list[Var]]:
    """The number of rows of memory that a statement needs, and the index of the row of an iteration: by the axes of
    rows, or the variable of a parallel loop."""
    rows, loop = read_rows(stmt), outer_parallel(stmt)
    if rows is not None:
        return [each.extent for each in rows.loops], rows.axes
    return ([], []) if loop is None else ([loop.extent], [loop.loop_var])


def _phases(body: Stmt) -> tuple[list[Stmt], list[Buffer]]:
    """The statements that a program runs one after the other, and the allocations around them."""
    allocated: list[Buffer] = []
    outer = body
    while _is_plain(body) and (body.same_as(outer) or _has_parallel(body.block.body)):
        allocated += list(body.block.alloc_buffers)
        body = body.block.body
    return (list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]), allocated


def _has_parallel(body: Stmt) -> bool:
    """Are there several statements, some of them parallel loops?"""
    stmts = list(body.seq) if isinstance(body, tirx.SeqStmt) else []
    return any(isinstance(s, tirx.For) and s.kind == tirx.ForKind.PARALLEL for s in stmts)


def _vars(extent: Any) -> list[Var]:
    found: list[Var] = []
    walk(extent, (tvm.ir.Var, found.append))
    return found


def _allocated(stmt: Stmt) -> list[Buffer]:
    """The allocations of a statement that are too large for a thread's private memory."""
    found: list[Buffer] = []
    walk(
        stmt,
        (s_tir.SBlock, lambda block: found.extend(block.alloc_buffers)),
        (tirx.AllocBuffer, lambda alloc: found.append(alloc.buffer)),
    )
    return [buffer for buffer in found if is_shared(buffer)]


def _elsewhere(stmt: Stmt, lifted: dict[Buffer, Buffer], index: list[Var]) -> Stmt:
    """Return the statement with its allocations replaced by rows of other buffers."""

    def load(node: Any) -> Any:
        if node.source not in lifted:
            return node
        return tirx.BufferLoad(lifted[node.source], [*index, *node.indices])

    def store(node: Any) -> Any:
        if node.buffer not in lifted:
            return node
        return tirx.BufferStore(lifted[node.buffer], node.value, [*index, *node.indices])

    def region(node: Any) -> Any:
        if node.source not in lifted:
            return node
        own = [tvm.ir.Range.from_min_extent(var, int64(1)) for var in index]
        return tirx.BufferRegion(lifted[node.source], [*own, *node.region])

    def block(node: Any) -> Any:
        kept = [buffer for buffer in node.alloc_buffers if buffer not in lifted]
        return s_tir.SBlock(
            node.iter_vars, node.reads, node.writes, node.name_hint, node.body, node.init, kept,
            node.match_buffers, node.annotations,
        )  # fmt: skip

    def sequence(node: Any) -> Any:
        kept = [s for s in node.seq if not (isinstance(s, tirx.AllocBuffer) and s.buffer in lifted)]
        if len(kept) == len(node.seq):
            return node
        return kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)

    return rewritten(
        stmt,
        (tvm.ir.TensorLoad, load),
        (tirx.BufferStore, store),
        (tvm.ir.TensorRegion, region),
        (s_tir.SBlock, block),
        (tirx.SeqStmt, sequence),
    )
