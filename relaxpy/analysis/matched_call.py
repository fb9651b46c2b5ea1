"""Match the arguments of a call with the parameters of a function, and solve for the function's symbols."""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Expr, Function
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.op.deduce import deduce
from relaxpy.shape.lattice import Verdict, accepts, rounds
from relaxpy.shape.prove import equal


def matched_symbols(
    function: Function, args: Sequence[Expr], mod: IRModule
) -> dict[SymVar, Dim] | None:
    """The dimensions of the symbols of a function's parameters in a call; None if these, or the fit of an argument, are
    known only at run time."""
    bound: dict[SymVar, Dim] = {}
    fit = Verdict.NO
    for _ in rounds(bound):
        fit = min(
            (
                accepts(param.annotation, deduce(arg, mod), bound, equal)
                for param, arg in zip(function.params, args, strict=True)
            ),
            default=Verdict.YES,
        )
    needed = set(free_sym_vars(param.annotation for param in function.params))
    return bound if fit is Verdict.YES and needed <= bound.keys() else None
