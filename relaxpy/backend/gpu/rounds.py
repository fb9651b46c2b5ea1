"""How many rounds of loops a thread runs, for devices that stop a thread silently after some number of them (lavapipe).

A bound: of two branches the longer one counts, and a loop whose extent depends on others runs as often as at their
ends. A loop whose extent is known only when it runs counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relaxpy.errors import PassError
from relaxpy.ir.dim import Dim, maximum, minimum
from relaxpy.tir.analyzer import VarTable
from relaxpy.tir.prim_func import read_symbols
from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.types import Expr
from relaxpy.tir.walk import contains, rewritten

_MOST = 1 << 31
"""More rounds count as these: products of two fit into 64 bits."""


_SHIFTS = tirx.LShift, tirx.RShift


def rounds_of(func: tirx.PrimFunc) -> Dim:
    """A bound of the rounds that a thread of a launch runs, over the program's symbols."""
    return _Rounds(read_symbols(func)).count(func.body, {})


class _Rounds:
    def __init__(self, table: VarTable) -> None:
        self.table = table

    def count(self, stmt: Any, ends: dict[Any, tuple[Expr, Expr]]) -> Dim:
        """The rounds of a statement; `ends` are the least and the greatest values of variables around it."""
        match stmt:
            case tirx.SeqStmt():
                return sum((self.count(each, ends) for each in stmt.seq), Dim.of(0))
            case tirx.For():
                last = stmt.min + stmt.extent - 1
                known = {**ends, stmt.loop_var: (stmt.min, last)}
                inner = self.count(stmt.body, known)
                if stmt.kind == tirx.ForKind.THREAD_BINDING:
                    return inner
                return _capped(self.extent(stmt.extent, ends) * (inner + 1))
            case tirx.While():
                return self.count(stmt.body, ends) + 1
            case tirx.IfThenElse():
                found = self.count(stmt.then_case, ends)
                other = stmt.else_case
                return found if other is None else maximum(found, self.count(other, ends))
            case s_tir.SBlockRealize():
                block = stmt.block
                values = zip(block.iter_vars, stmt.iter_values, strict=True)
                known = {**ends, **{axis.var: (value, value) for axis, value in values}}
                found = self.count(block.body, known)
                return found if block.init is None else found + self.count(block.init, known)
            case tirx.AttrStmt():
                return self.count(stmt.body, ends)
            case tirx.Bind():
                ends[stmt.var] = (stmt.value, stmt.value)
                return Dim.of(0)
            case _:
                return Dim.of(0)

    def extent(self, extent: Expr, ends: Mapping[Any, tuple[Expr, Expr]]) -> Dim:
        """The most rounds of a loop; 1 if the launch does not know. Steps that double, which shifts write, are no
        bound: the ends of nested ones do not meet."""
        try:
            at_ends = [_at(extent, ends, which) for which in (0, 1)]
            if any(contains(each, _SHIFTS) for each in at_ends):
                return Dim.of(1)
            found = [self.table.to_dim(each) for each in at_ends]
        except (PassError, RecursionError):
            return Dim.of(1)
        if not all(symbol in self.table.symbols.values() for dim in found for symbol in dim.vars):
            return Dim.of(1)
        return maximum(maximum(*found), 0)


def _at(extent: Expr, ends: Mapping[Any, tuple[Expr, Expr]], which: int) -> Expr:
    """The extent with the least or the greatest values of variables."""

    def value(var: Any) -> Expr:
        return _at(ends[var][which], ends, which) if var in ends else var

    def floor(node: Any) -> Expr:
        kind = tirx.FloorDiv if isinstance(node, tirx.Div) else tirx.FloorMod
        return kind(node.a, node.b) if "int" in str(node.ty.dtype) else node

    return rewritten(extent, (tvm.ir.Var, value), ((tirx.Div, tirx.Mod), floor))


def _capped(rounds: Dim) -> Dim:
    return rounds if rounds.value is not None else minimum(rounds, _MOST)
