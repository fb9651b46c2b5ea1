"""Do the arguments of a call fit the parameters of the function, and what are its symbols then?"""

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
    """The dimensions that the symbols of a function's parameters are in a call; None if that, or the fit of an
    argument, is found when the program runs."""
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
