"""Solving for a symbolic variable: `n * 4 + 2 == m` gives n = (m - 2) // 4, to be checked by substitution."""

from __future__ import annotations

from relaxpy.ir.dim import Dim, SymVar, dim_op


def solve_exact(expression: Dim, value: Dim, var: SymVar) -> Dim | None:
    """The value of `var` that makes `expression == value` for all values of the other variables, as in `solve_linear`,
    if the division is exact for polynomials (`n * 4 == m * 4` gives m)."""
    parts = _linear(expression, var)
    return None if parts is None else (value - parts[1]).divide_exact(parts[0])


def solve_linear(expression: Dim, value: Dim, var: SymVar) -> Dim | None:
    """The value of `var` with `expression == value`, rounded down, if `expression` is linear in it: `a * var + b` with
    a constant a ≠ 0 and b without `var`. None otherwise. The caller must check `expression` at the solution, because
    the division may not be exact."""
    parts = _linear(expression, var)
    return None if parts is None else (value - parts[1]) // parts[0]


def _linear(expression: Dim, var: SymVar) -> tuple[int, Dim] | None:
    """(a, b) with `expression == a * var + b`, a a constant other than 0 and b without `var`."""
    slope, rest = 0, Dim.of(0)
    for monomial, coefficient in expression.terms:
        term = Dim.of(coefficient)
        for atom, power in monomial:
            factor = atom.dim if isinstance(atom, SymVar) else dim_op(atom.op, *atom.args)
            for _ in range(power):
                term = term * factor
        if var not in term.vars:
            rest = rest + term
        elif monomial == ((var, 1),):
            slope = coefficient
        else:
            return None
    return (slope, rest) if slope else None
