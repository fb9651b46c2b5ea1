"""Vectors of truth values that become numbers.

TVM's code generator tells its analyser the value of every name, and the analyser looks for the value's bounds. For a
vector of comparisons that is cast to numbers it makes an integer constant with lanes, which TVM itself refuses: the
kernel does not compile. For a choice it takes the bounds of the two numbers; LLVM makes the same instructions of both.
"""

from __future__ import annotations

from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

Expr = tvm.ir.Expr


def chosen_by_truth(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same function, with a choice between 1 and 0 for each vector of truth values that is cast."""
    body = tvm_ffi.structural_map(func.body, (tirx.Cast, _choice))
    return func if body.same_as(func.body) else func.with_body(body)


def _choice(cast: tirx.Cast) -> Expr:
    kind = tvm.DataType(str(cast.value.ty.dtype))
    if kind.lanes == 1 or str(kind.with_lanes(1)) != "bool":
        return cast
    scalar = str(tvm.DataType(str(cast.ty.dtype)).with_lanes(1))
    if scalar == "bool":
        return cast
    yes, no = (tirx.Broadcast(tirx.const(value, scalar), kind.lanes) for value in (1, 0))
    return tirx.Select(cast.value, yes, no)
