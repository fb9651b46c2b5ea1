"""Rows that do not look at each other: one parallel loop over all of them, the statements of a row in order.

Sorts, running totals, samples of regions, integer powers: whatever is written as a block with statements, loops and
memory of its own for every row (`relaxpy.tir.forms.rows`). The form is the author's word; here it is proved, loop by
loop, and a loop of which it is not proved runs in order.

A row that goes through memory across its neighbours (a running total along an outer axis) would take one element of
each cache line, and no vectors: such rows run many at a time (`relaxpy.backend.cpu.rules.columns`).
"""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.analysis.independence import in_order
from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.rules.columns import are_columns, write_columns
from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.forms.rows import Rows, rows_of
from relaxpy.tir.lowering.workspace import handed_on
from relaxpy.tir.schedule import parallelise_outer_loops, with_kind
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.walk import rewritten
from relaxpy.tir.writer.loops import Expr, PrimFunc, Stmt
from relaxpy.tir.writer.serial import Serial, with_regions


def schedule_rows(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """A program with rows in it, and perhaps other statements, which are arranged as any others; None without rows."""
    del target  # nothing here depends on the processor
    if not rows_of(func):
        return None
    return Arrangement(lambda: _arranged(func), handed_on(func))


def _arranged(func: PrimFunc) -> PrimFunc:
    arranged = parallelise_outer_loops(func)
    loops = [loop.loop_var for rows in rows_of(arranged) for loop in rows.loops]

    def at_once(loop: tirx.For) -> tirx.For:
        return with_kind(loop, tirx.ForKind.PARALLEL) if _is_among(loop, loops) else loop

    proved = in_order(arranged.with_body(rewritten(arranged.body, (tirx.For, at_once))))
    nests = {rows.loops[0].loop_var: rows for rows in rows_of(proved)}

    def spread(loop: tirx.For) -> Stmt:
        rows = nests.get(loop.loop_var)
        return loop if rows is None else _spread(rows)

    return with_regions(proved.with_body(rewritten(proved.body, (tirx.For, spread))))


def _is_among(loop: tirx.For, variables: Sequence[Expr]) -> bool:
    return any(loop.loop_var.same_as(var) for var in variables)


def _spread(rows: Rows) -> Stmt:
    """The nest as one parallel loop over the rows that are independent, in a block without axes."""
    kinds = [loop.kind == tirx.ForKind.PARALLEL for loop in rows.loops]
    count = kinds.index(False) if False in kinds else len(kinds)
    p = Serial()
    if count == len(kinds) and are_columns(rows):
        write_columns(p, rows)
    else:
        _write_rows(p, rows, count)
    block = s_tir.SBlock([], [], [], rows.block.name_hint, p.body())
    return s_tir.SBlockRealize([], tirx.const(True, "bool"), block)


def _write_rows(p: Serial, rows: Rows, count: int) -> None:
    """The first `count` loops as one parallel loop, the others inside, in order."""
    outer, inner = rows.loops[:count], rows.loops[count:]
    extents = [loop.extent for loop in outer]
    with p.loop("row", product(extents), parallel=count > 0) as row:
        places = split_index(p, row, extents)
        with p.loops([loop.extent for loop in inner]) as rest:
            at = dict(zip(rows.axes, [*places, *rest], strict=True))
            for buffer in rows.scratch:
                p.add(tirx.AllocBuffer(buffer))
            p.add(rewritten(rows.block.body, (tvm.ir.Var, lambda var: at.get(var, var))))
