"""Integer divisions by a 0 that is known only at run time: they give 0, as in numpy, where the processor would trap."""

from __future__ import annotations

from collections.abc import Callable

from relaxpy.tir.nodes import dtype_of, with_body
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.walk import rewritten

Expr = tvm.ir.Expr


def without_traps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with integer divisions by 0 giving 0, also in the sizes of its buffers.

    LLVM may hoist a division by a symbol before the check that the loop around it runs at all. In this way sizes of 0
    were divided by in programs that never divide by them.
    """
    divisions = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
    body = rewritten(func.body, *((kind, _guard(kind)) for kind in divisions))
    return with_body(func, body)


def _guard(kind: Callable[..., Expr]) -> Callable[[Expr], Expr]:
    def replace(node: Expr) -> Expr:
        if _may_be_zero(node.b):
            zero, one = (tirx.const(value, node.b.ty.dtype) for value in (0, 1))
            is_zero = tirx.EQ(node.b, zero)
            return tirx.Select(is_zero, zero, kind(node.a, tirx.Select(is_zero, one, node.b)))
        return node

    return replace


def _may_be_zero(divisor: Expr) -> bool:
    """Is this an integer that is neither a constant (TVM refuses 0) nor at least 1 by construction?"""
    if "int" not in dtype_of(divisor) or isinstance(divisor, (tirx.IntImm, tirx.Broadcast)):
        return isinstance(divisor, tirx.Broadcast) and _may_be_zero(divisor.value)
    if isinstance(divisor, tirx.Max):
        return not any(isinstance(e, tirx.IntImm) and e.value > 0 for e in (divisor.a, divisor.b))
    return True
