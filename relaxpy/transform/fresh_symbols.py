"""Fresh symbols for programs that become separate functions, or parts of other functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relaxpy.ir.annotation import PrimType, ShapeType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Expr, PrimValue, ShapeExpr, Var
from relaxpy.ir.visitor import Rewriter


class FreshSymbols(Rewriter):
    """Replaces each symbol that is not in `syms` yet by a new one."""

    def __init__(self, name: Callable[[str], str] = lambda name: name) -> None:
        super().__init__()
        self._name = name

    def rewrite_dim(self, dim: Dim) -> Dim:
        for symbol in dim.vars:
            if symbol not in self.syms:
                self.syms[symbol] = symbol.renamed(self._name(symbol.name)).dim
        return super().rewrite_dim(dim)


def carriers(symbols: Sequence[SymVar]) -> tuple[list[Var], list[Expr]]:
    """Parameters that pass symbols into a function, and the arguments for them: one shape with the sizes, and one
    scalar for each value of a scalar."""
    sizes = [symbol for symbol in symbols if not symbol.signed]
    signed = [symbol for symbol in symbols if symbol.signed]
    params = [Var("s", ShapeType(sizes))] if sizes else []
    params += [Var(symbol.name, PrimType("int64", symbol)) for symbol in signed]
    args: list[Expr] = [ShapeExpr(sizes)] if sizes else []
    return params, args + [PrimValue(symbol) for symbol in signed]
