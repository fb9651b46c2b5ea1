"""Programs that become functions of their own, or parts of others, get symbols of their own."""

from __future__ import annotations

from collections.abc import Callable

from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.visitor import Rewriter


class FreshSymbols(Rewriter):
    """Rewrites with a new symbol for each that is not in `syms` yet."""

    def __init__(self, name: Callable[[str], str] = lambda name: name) -> None:
        super().__init__()
        self._name = name

    def rewrite_dim(self, dim: Dim) -> Dim:
        for symbol in dim.vars:
            if symbol not in self.syms:
                self.syms[symbol] = SymVar(self._name(symbol.name), symbol.dtype).dim
        return super().rewrite_dim(dim)
