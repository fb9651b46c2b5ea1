"""Proofs of relations between dimensions: by normal form, then by TVM's arithmetic analyser, then by cases; cached.

The analyser is loaded only if the normal form does not decide. Variables are sizes, at least 0, or values of scalars
(`SymVar.signed`), unless `bounds` or an assumption (`relaxpy.shape.bounds`) says otherwise.
"""

from __future__ import annotations

from functools import lru_cache

from relaxpy.ir.dim import Dim, DimLike, DimOp, SymVar, dim_op
from relaxpy.shape.bounds import Bounds, assumed
from relaxpy.shape.cases import cases
from relaxpy.shape.lattice import Verdict

LARGEST = 1 << 40
"""Conditions with larger integers are not proved: the analyser computes in 64 bits, and may overflow."""


def prove(condition: Dim, bounds: Bounds | None = None) -> bool:
    """Is `condition` (a comparison made with `dim_op`, or any 0/1 dimension) true for all values in `bounds`?"""
    if condition.value is not None:
        return bool(condition.value)
    if condition.magnitude > LARGEST:
        return False
    return _prove(condition, _freeze(condition, bounds))


def equal(a: DimLike, b: DimLike, bounds: Bounds | None = None) -> Verdict:
    """Are two dimensions equal: always, never, or unknown?"""
    a, b = Dim.of(a), Dim.of(b)
    if a == b:
        return Verdict.YES
    if (a - b).value is not None:
        return Verdict.NO
    if prove(dim_op("eq", a, b), bounds) or settled(a, bounds) == settled(b, bounds):
        return Verdict.YES
    if prove(dim_op("lt", a, b), bounds) or prove(dim_op("lt", b, a), bounds):
        return Verdict.NO
    return Verdict.MAYBE


def settled(dim: Dim, bounds: Bounds | None = None) -> Dim:
    """The dimension with each minimum and maximum replaced by one argument, where it is proved which."""
    if not any(isinstance(atom, DimOp) for monomial, _ in dim.terms for atom, _ in monomial):
        return dim
    total = Dim.of(0)
    for monomial, coefficient in dim.terms:
        term = Dim.of(coefficient)
        for atom, power in monomial:
            factor = atom.dim if isinstance(atom, SymVar) else _settled(atom, bounds)
            for _ in range(power):
                term = term * factor
        total = total + term
    return total


def _settled(atom: DimOp, bounds: Bounds | None) -> Dim:
    args = [settled(arg, bounds) for arg in atom.args]
    if atom.op in ("min", "max"):
        a, b = args
        if prove(dim_op("le", a, b), bounds):
            return a if atom.op == "min" else b
        if prove(dim_op("le", b, a), bounds):
            return b if atom.op == "min" else a
    return dim_op(atom.op, *args)


_Frozen = tuple[tuple[SymVar, int | None, int | None], ...]


def _freeze(condition: Dim, bounds: Bounds | None) -> _Frozen:
    given = assumed() if bounds is None else {**assumed(), **bounds}
    return tuple((var, *given.get(var, (var.least, None))) for var in condition.vars)


def holds(condition: Dim, bounds: Bounds, given: tuple[Dim, ...]) -> bool:
    """Does `condition` follow from `given`, for all values in `bounds`? Assumed ranges are not used."""
    if max(each.magnitude for each in (condition, *given)) > LARGEST:
        return False
    return _decide(condition, tuple((v, *limits) for v, limits in bounds.items()), given, CASES)


@lru_cache(maxsize=16384)
def _prove(condition: Dim, bounds: _Frozen) -> bool:
    return _decide(condition, bounds, (), CASES)


CASES = 4
"""Maximum nesting depth of case splits."""


def _decide(condition: Dim, bounds: _Frozen, given: tuple[Dim, ...], depth: int) -> bool:
    """Does the condition follow from `given`, directly or in each of its cases?"""
    if condition.value is not None and condition.value != 0:
        return True
    from relaxpy.tir.analyzer import can_prove

    if condition.value is None and can_prove(condition, bounds, given):
        return True
    if given and can_prove(Dim.of(0), bounds, given):
        return True  # the case is contradictory
    if condition.value is not None or depth == 0:
        return False
    split = cases(condition, {var: (low, high) for var, low, high in bounds})
    return bool(split) and all(
        _decide(case.condition, bounds + case.ranges, _with(given, case.assumption), depth - 1)
        for case in split
    )


def _with(given: tuple[Dim, ...], assumption: Dim) -> tuple[Dim, ...]:
    return given if assumption.value else (*given, assumption)
