"""Dimensions as expressions that the runtime evaluates over an integer heap."""

from __future__ import annotations

from collections.abc import Mapping

from relaxpy.ir.dim import Dim, SymVar, Terms
from relaxpy.runtime import bytecode as bc

_LONGEST = 32
"""A longer sum is the sum of its halves: as a chain, it would be nested as deep as it is long."""


def int_expr(dim: Dim, slots: Mapping[Dim, int]) -> bc.IntExpr:
    """Convert a dimension to an expression over the heap, in the order of its normal form. `slots` are the slots of
    known dimensions: all variables, and those computed before."""
    if dim.value is not None:
        return _number(dim.value)
    if dim in slots:
        return bc.Heap(slots[dim])
    return _sum(dim.terms, slots)


def _sum(terms: Terms, slots: Mapping[Dim, int]) -> bc.IntExpr:
    if len(terms) > _LONGEST:
        middle = len(terms) // 2
        return bc.IntOp("add", (_sum(terms[:middle], slots), _sum(terms[middle:], slots)))
    total: bc.IntExpr | None = None
    for monomial, coefficient in terms:
        term: bc.IntExpr | None = None
        for atom, power in monomial:
            if isinstance(atom, SymVar):
                base: bc.IntExpr = bc.Heap(slots[atom.dim])
            else:
                base = bc.IntOp(atom.op, tuple(int_expr(arg, slots) for arg in atom.args))
            for _ in range(power):
                term = base if term is None else bc.IntOp("mul", (term, base))
        subtracted = total is not None and coefficient < 0
        factor = -coefficient if subtracted else coefficient
        if term is None:
            term = _number(factor)
        elif factor != 1:
            term = bc.IntOp("mul", (term, _number(factor)))
        total = term if total is None else bc.IntOp("sub" if subtracted else "add", (total, term))
    assert total is not None
    return total


def _number(value: int) -> bc.IntExpr:
    """A number. Bytecode has those of 64 bits; the bytes of a size near their limit have a larger factor."""
    if -(1 << 63) <= value < 1 << 63:
        return value
    high, low = divmod(value, 1 << 32)
    return bc.IntOp("add", (bc.IntOp("mul", (_number(high), 1 << 32)), low))
