"""Names for the inner parts of integers whose divisions and choices are nested deeply.

The time that TVM's analyser takes for an integer doubles with every division in another one, and grows faster still
with choices in the conditions of others. Schedules, proofs and passes ask it again and again. Of names that stand for
long values it knows nothing (`relaxpy.tir.name_length`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.tir.extents import whole
from relaxpy.tir.name_length import DEEPEST, INVOLVED, Levels, has_more_levels
from relaxpy.tir.nodes import dtype_of, items, with_body
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.types import Expr, Stmt
from relaxpy.tir.walk import contains_any, rewritten, walk


def is_deep(expr: Expr) -> bool:
    """Are divisions and choices nested more deeply in an integer than the analyser should see?"""
    return has_more_levels(expr, DEEPEST)


def with_shallow_integers(func: Any) -> Any:
    """Return the function with names for parts of deeply nested integers: bound before the statement, or at their
    place if they read memory or use names that are bound there."""
    if not is_deep(func.body):
        return func
    statements = (
        ((tirx.BufferStore, tirx.Evaluate, tirx.Bind, tirx.IfThenElse), _named_before),
        (tirx.SeqStmt, _flat),
        (s_tir.SBlock, _with_whole_regions),
    )
    return with_body(func, rewritten(func.body, *statements))


def _named_before(stmt: Stmt) -> Stmt:
    names = _Names()
    match stmt:
        case tirx.BufferStore():
            made = tirx.BufferStore(stmt.buffer, names.of(stmt.value), names.each(stmt.indices))
        case tirx.Evaluate():
            made = tirx.Evaluate(names.of(stmt.value))
        case tirx.Bind():
            made = tirx.Bind(stmt.var, names.of(stmt.value))
        case _:
            made = tirx.IfThenElse(names.of(stmt.condition), stmt.then_case, stmt.else_case)
    return tirx.SeqStmt([*names.bound, made]) if names.bound else made if names.changed else stmt


class _Names:
    """Names parts of expressions."""

    def __init__(self) -> None:
        self.bound: list[Stmt] = []
        self.changed = False
        self._within: set[Any] = set()
        """Names that are bound in the expression itself."""
        self._levels = Levels()

    def each(self, exprs: Sequence[Expr]) -> list[Expr]:
        return [self.of(expr) for expr in exprs]

    def of(self, expr: Expr) -> Expr:
        if self._levels.of(expr) <= DEEPEST:
            return expr
        walk(expr, (tirx.Let, lambda let: self._within.add(let.var)))
        return rewritten(expr, (INVOLVED, self._shallow))

    def _shallow(self, node: Expr) -> Expr:
        """The division or choice, with names for its operands if they are as deep as the analyser should see."""
        inside: list[tuple[Any, Expr]] = []

        def named(part: Expr) -> Expr:
            if self._levels.of(part) < DEEPEST:
                return part
            self.changed = True
            var = tirx.Var("part", dtype_of(part))
            if self._is_free(part):
                self.bound.append(tirx.Bind(var, part))
            else:
                inside.append((var, part))
            return var

        if self._levels.of(node) <= DEEPEST:
            return node
        if isinstance(node, tirx.Select):
            parts = (node.condition, node.true_value, node.false_value)
            made = tirx.Select(*map(named, parts))
        else:
            made = type(node)(named(node.a), named(node.b))
        for var, value in reversed(inside):
            made = tirx.Let(var, value, made)
        return made

    def _is_free(self, part: Expr) -> bool:
        """May the part be computed before the statement?"""
        reads = ((tvm.ir.TensorLoad, tvm.ir.Call, tirx.Let), lambda _: True)
        return not contains_any(part, reads, (tvm.ir.Var, lambda var: var in self._within))


def _flat(seq: Any) -> Any:
    parts = items(seq.seq)
    if not any(isinstance(part, tirx.SeqStmt) for part in parts):
        return seq
    inner = [items(p.seq) if isinstance(p, tirx.SeqStmt) else [p] for p in parts]
    return tirx.SeqStmt([part for each in inner for part in each])


def _with_whole_regions(block: Any) -> Any:
    """The block, which reads and writes whole buffers where the region is deeply nested."""

    def wide(region: Any) -> Any:
        if not any(is_deep(part.min) or is_deep(part.extent) for part in region.region):
            return region
        return tirx.BufferRegion(region.source, [*map(whole, region.source.shape)])

    reads, writes = ([*map(wide, regions)] for regions in (block.reads, block.writes))
    if all(
        a.same_as(b) for a, b in zip([*reads, *writes], [*block.reads, *block.writes], strict=True)
    ):
        return block
    return s_tir.SBlock(
        block.iter_vars, reads, writes, block.name_hint, block.body, block.init, block.alloc_buffers,
        block.match_buffers, block.annotations,
    )  # fmt: skip
