"""Proof by cases: the condition where a minimum is its left argument, where a division has remainder 2, and so on.

The analyser rewrites expressions and leaves `n // 4 <= n` and `select(n < 4, n, 4) == min(n, 4)` undecided. In each
case the condition is simpler, and often decided by its normal form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from relaxpy.ir.dim import Dim, DimOp, SymVar, dim_op

Range = tuple[int | None, int | None]

LARGEST_DIVISOR = 64
"""Larger divisors are not split into remainders."""


@dataclass(frozen=True, slots=True)
class Case:
    """The condition in one case, the assumption that defines the case (a 0/1 dimension), and the ranges of new
    variables."""

    condition: Dim
    assumption: Dim
    ranges: tuple[tuple[SymVar, int | None, int | None], ...] = ()


def cases(condition: Dim, ranges: dict[SymVar, Range]) -> list[Case]:
    """Exhaustive cases; none if there is nothing to split."""
    for atom in atoms(condition):
        if atom.op in ("min", "max"):
            left, right = atom.args
            first = dim_op("le", left, right)
            smaller, larger = (left, right) if atom.op == "min" else (right, left)
            return [
                Case(replace_atom(condition, atom, smaller), first),
                Case(replace_atom(condition, atom, larger), dim_op("lt", right, left)),
            ]
        if atom.op == "select":
            test, then, otherwise = atom.args
            return [
                Case(replace_atom(condition, atom, then), _truth(test)),
                Case(replace_atom(condition, atom, otherwise), _negation(test)),
            ]
    return list(_rests(condition, ranges))


def _comparison(test: Dim) -> DimOp | None:
    """The comparison, if a 0/1 dimension is a single one; else None."""
    if len(test.terms) == 1 and test.terms[0][1] == 1 and len(test.terms[0][0]) == 1:
        atom, power = test.terms[0][0][0]
        if power == 1 and isinstance(atom, DimOp) and atom.op in ("eq", "ne", "lt", "le"):
            return atom
    return None


def _truth(test: Dim) -> Dim:
    return test if _comparison(test) is not None else dim_op("ne", test, 0)


def _negation(test: Dim) -> Dim:
    found = _comparison(test)
    if found is None:
        return dim_op("eq", test, 0)
    left, right = found.args
    if found.op in ("eq", "ne"):
        return dim_op("ne" if found.op == "eq" else "eq", left, right)
    return dim_op("le" if found.op == "lt" else "lt", right, left)


def _rests(condition: Dim, ranges: dict[SymVar, Range]) -> Iterator[Case]:
    """Substitute `divisor * quotient + remainder` for a variable that is divided by constants: one case for each
    remainder."""
    divisors: dict[SymVar, int] = {}
    for atom in atoms(condition):
        divisor = atom.args[1].value if atom.op in ("floordiv", "floormod") else None
        if divisor is not None and 0 < divisor <= LARGEST_DIVISOR:
            for var in atom.args[0].vars:
                divisors[var] = lcm(divisors.get(var, 1), divisor)
    fitting = [(d, var.key, var) for var, d in divisors.items() if 1 < d <= LARGEST_DIVISOR]
    if not fitting:
        return
    divisor, _, var = min(fitting)
    low, high = ranges.get(var, (var.least, None))
    for rest in range(divisor):
        quotient = SymVar(f"{var.name}_{divisor}", var.dtype)
        least = None if low is None else -((rest - low) // divisor)
        most = None if high is None else (high - rest) // divisor
        if least is not None and most is not None and least > most:
            continue  # no value in the range has this remainder
        value = quotient.dim * divisor + rest
        yield Case(condition.substitute({var: value}), Dim.of(1), ((quotient, least, most),))


def atoms(dim: Dim) -> Iterator[DimOp]:
    """The functions in a dimension, innermost first."""
    for monomial, _ in dim.terms:
        for atom, _ in monomial:
            if isinstance(atom, DimOp):
                for arg in atom.args:
                    yield from atoms(arg)
                yield atom


def replace_atom(dim: Dim, old: DimOp, new: Dim) -> Dim:
    """Replace every occurrence of `old` by `new`."""
    total = Dim.of(0)
    for monomial, coefficient in dim.terms:
        product = Dim.of(coefficient)
        for atom, power in monomial:
            if atom is old:
                factor = new
            elif isinstance(atom, DimOp):
                factor = dim_op(atom.op, *(replace_atom(arg, old, new) for arg in atom.args))
            else:
                factor = atom.dim
            for _ in range(power):
                product = product * factor
        total = total + product
    return total
