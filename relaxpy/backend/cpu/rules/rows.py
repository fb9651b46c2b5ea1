"""Independent rows: one parallel loop over all of them, the statements of a row in order.

Sorts, running totals, region samples, integer powers: programs written as a block with statements, loops and memory of
its own for every row (`relaxpy.tir.recognise.rows`). The author declares the rows independent; here that is proved,
loop by loop, and a loop without a proof runs serially.

A row that is strided in memory (a running total along an outer axis) would use one element of each cache line, and no
vectors: many such rows run at a time (`relaxpy.backend.cpu.rules.columns`).

Statements before, between and after rows are scheduled like programs of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from relaxpy.analysis.independence import in_order, rows_at_once
from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.rules.columns import are_columns, write_columns
from relaxpy.backend.cpu.rules.elementwise import schedule_elementwise
from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.backend.cpu.rules.reduction import schedule_reduction
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.lowering.workspace import handed_on, is_small
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc, Stmt, sequence
from relaxpy.tir.programs.serial import Serial
from relaxpy.tir.recognise.rows import Rows, read_rows, rows_of
from relaxpy.tir.regions import with_regions
from relaxpy.tir.schedule import with_outer_loops_parallel
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.walk import rewritten, walk


def schedule_rows(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """Schedule a program that contains rows, and perhaps other statements; None without rows."""
    if not rows_of(func):
        return None
    parts = _parts_of(func, target)
    if parts is None:
        return Arrangement(lambda: _as_written(func), handed_on(func))
    return Arrangement(lambda: _in_turn(func, parts), parts.workspaces)


@dataclass(frozen=True)
class _Parts:
    """A program as statements that run one after the other: rows, and parts that other rules schedule."""

    parts: Sequence[Rows | Arrangement]
    between: Sequence[Buffer]
    """Memory that parts pass to each other."""

    @property
    def workspaces(self) -> list[Buffer]:
        inside = [
            b for part in self.parts if isinstance(part, Arrangement) for b in part.workspaces
        ]
        return [*(buffer for buffer in self.between if not is_small(buffer)), *inside]


def _parts_of(func: PrimFunc, target: CpuTarget) -> _Parts | None:
    """The parts of a program. None if no other rule schedules the statements that are not rows, or if rows have memory
    outside their block that nothing else uses."""
    root = func.body.block
    stmts = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    groups = [
        group
        for are_rows, found in groupby(stmts, lambda stmt: read_rows(stmt) is not None)
        for group in ([[stmt] for stmt in found] if are_rows else [list(found)])
    ]
    used = [_variables(group) for group in groups]
    users = {b: [n for n, names in enumerate(used) if b in names] for b in root.alloc_buffers}
    between = [buffer for buffer, numbers in users.items() if len(numbers) > 1]
    parts: list[Rows | Arrangement] = []
    for number, group in enumerate(groups):
        own = [buffer for buffer, numbers in users.items() if numbers == [number]]
        rows = read_rows(group[0])
        part = _arranged(_part(func, group, own, between), target) if rows is None else rows
        if part is None or (rows is not None and own):
            return None
        parts.append(part)
    return _Parts(parts, between)


def _variables(stmts: Sequence[Stmt]) -> set[Expr]:
    found: set[Expr] = set()
    for stmt in stmts:
        walk(stmt, (tvm.ir.Var, found.add))
    return found


def _part(
    func: PrimFunc, stmts: Sequence[Stmt], own: Sequence[Buffer], given: Sequence[Buffer]
) -> PrimFunc:
    """Some statements as a program, with the buffers shared with others as parameters."""
    root = s_tir.SBlock([], [], [], "root", sequence(stmts), alloc_buffers=own)
    body = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
    return tirx.PrimFunc([*func.params, *given], body, func.ret_type, attrs=func.attrs)


def _arranged(part: PrimFunc, target: CpuTarget) -> Arrangement | None:
    return schedule_elementwise(part, target) or schedule_reduction(part, target)


def _in_turn(func: PrimFunc, parts: _Parts) -> PrimFunc:
    """Run each part by itself, in loops without blocks around them."""
    nests = _proved(func)
    p = Serial()
    for buffer in parts.between:
        p.add(tirx.AllocBuffer(buffer))
    for part in parts.parts:
        p.add(part.write().body if isinstance(part, Arrangement) else _spread(nests[_key(part)]))
    return func.with_body(p.body())


def _as_written(func: PrimFunc) -> PrimFunc:
    """Rewrite the rows in place; the outermost loops of other statements become parallel if that is proved safe."""
    arranged = with_outer_loops_parallel(func)
    body = in_order(arranged).body
    nests = _proved(arranged)

    def spread(loop: tirx.For) -> Stmt:
        rows = nests.get(loop.loop_var)
        if rows is None:
            return loop
        block = s_tir.SBlock([], [], [], rows.block.name_hint, _spread(rows))
        return s_tir.SBlockRealize([], tirx.const(True, "bool"), block)

    return with_regions(func.with_body(rewritten(body, (tirx.For, spread))))


def _proved(func: PrimFunc) -> dict[Expr, Rows]:
    """The rows of a function, by their outermost variables, with loops made parallel that are proved to be
    independent."""
    return {_key(rows): rows for rows in rows_of(rows_at_once(func))}


def _key(rows: Rows) -> Expr:
    return rows.loops[0].loop_var


def _spread(rows: Rows) -> Stmt:
    """The nest as one parallel loop over the independent rows."""
    kinds = [loop.kind == tirx.ForKind.PARALLEL for loop in rows.loops]
    count = kinds.index(False) if False in kinds else len(kinds)
    p = Serial()
    if count == len(kinds) and are_columns(rows):
        write_columns(p, rows)
    else:
        _write_rows(p, rows, count)
    return p.body()


def _write_rows(p: Serial, rows: Rows, count: int) -> None:
    """Write the first `count` loops as one parallel loop, with the others serial inside."""
    outer, inner = rows.loops[:count], rows.loops[count:]
    extents = [loop.extent for loop in outer]
    with p.loop("row", product(extents), parallel=count > 0) as row:
        places = split_index(p, row, extents)
        with p.loops([loop.extent for loop in inner]) as rest:
            at = dict(zip(rows.axes, [*places, *rest], strict=True))
            for buffer in rows.scratch:
                p.add(tirx.AllocBuffer(buffer))
            p.add(rewritten(rows.block.body, (tvm.ir.Var, lambda var: at.get(var, var))))
