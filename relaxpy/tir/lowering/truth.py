"""Vectors of bools that are converted to numbers.

TVM's code generator registers the value of every name with its analyser, which computes the value's bounds. For a
vector of comparisons that is cast to numbers it builds an integer constant with lanes, which TVM itself refuses: the
kernel does not compile. For a choice it uses the bounds of the two numbers; LLVM emits the same instructions for both.
"""

from __future__ import annotations

from relaxpy.tir.nodes import with_body
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import rewritten

Expr = tvm.ir.Expr


def chosen_by_truth(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with each cast of a vector of bools replaced by a choice between 1 and 0."""
    body = rewritten(func.body, (tirx.Cast, _choice))
    return with_body(func, body)


def _choice(cast: tirx.Cast) -> Expr:
    kind = tvm.DataType(str(cast.value.ty.dtype))
    if kind.lanes == 1 or str(kind.with_lanes(1)) != "bool":
        return cast
    scalar = str(tvm.DataType(str(cast.ty.dtype)).with_lanes(1))
    if scalar == "bool":
        return cast
    yes, no = (tirx.Broadcast(tirx.const(value, scalar), kind.lanes) for value in (1, 0))
    return tirx.Select(cast.value, yes, no)
