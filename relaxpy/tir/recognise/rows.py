"""Rows: loops around a block whose axes are all spatial and whose statements run in order
(`relaxpy.tir.programs.rows`).

This form covers programs that are not stages (`relaxpy.tir.recognise.stages`): sorts, running totals, tree traversals,
anything with loops and memory of its own per row. The spatial axes declare that the iterations are independent; whoever
relies on that must prove it (`relaxpy.analysis.independence`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.tir.analyzer import equal
from relaxpy.tir.programs.loops import Buffer, Stmt, constant
from relaxpy.tir.tvm import s_tir, tirx


@dataclass(frozen=True)
class Rows:
    """One loop nest, in which each loop is an axis of the block, outermost first."""

    loops: tuple[tirx.For, ...]
    block: s_tir.SBlock

    @property
    def axes(self) -> list[Any]:
        """The block's variable for each loop."""
        return [axis.var for axis in self.block.iter_vars]

    @property
    def scratch(self) -> Sequence[Buffer]:
        """The buffers that each row allocates for itself."""
        return list(self.block.alloc_buffers)


def rows_of(func: tirx.PrimFunc) -> list[Rows]:
    """The row nests among the outermost statements of a function, in order; other statements are skipped."""
    root = func.body
    if not isinstance(root, s_tir.SBlockRealize) or root.block.iter_vars:
        return []
    body = root.block.body
    stmts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    return [found for found in map(read_rows, stmts) if found is not None]


def read_rows(stmt: Stmt) -> Rows | None:
    """Recognise a statement as a row nest; None for other statements, including those that store one element of one
    buffer."""
    loops: list[tirx.For] = []
    while isinstance(stmt, tirx.For):
        loops.append(stmt)
        stmt = stmt.body
    if not loops or not isinstance(stmt, s_tir.SBlockRealize) or not _is_plain(stmt):
        return None
    values, axes = list(stmt.iter_values), list(stmt.block.iter_vars)
    if len(values) != len(loops) or not all(map(_is_axis, loops, values, axes)):
        return None
    return Rows(tuple(loops), stmt.block)


def _is_plain(realize: s_tir.SBlockRealize) -> bool:
    block = realize.block
    is_stage = isinstance(block.body, tirx.BufferStore) and not block.alloc_buffers
    has_more = block.init is not None or len(block.match_buffers) > 0
    return not is_stage and not has_more and constant(realize.predicate) == 1


def _is_axis(loop: tirx.For, value: Any, axis: tirx.IterVar) -> bool:
    """Is it a loop without order over a whole spatial axis?"""
    return (
        loop.kind in (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)
        and axis.iter_type == tirx.IterVar.DataPar
        and loop.loop_var.same_as(value)
        and constant(loop.min) == 0
        and constant(axis.dom.min) == 0
        and equal(loop.extent, axis.dom.extent)
    )
