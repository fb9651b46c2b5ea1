"""Solving for a symbol: checked by putting the solution back, and against sympy."""

from __future__ import annotations

import random

import pytest
import sympy

from relaxpy.ir.dim import Dim, SymVar, minimum
from relaxpy.shape.solve import solve_exact, solve_linear

n, m, k = SymVar("n"), SymVar("m"), SymVar("k")


def test_put_back() -> None:
    """Where the division comes out even, the expression at the solution is the value."""
    rng = random.Random(1)
    for _ in range(300):
        slope = rng.choice((-3, -1, 1, 2, 4, 7))
        expression = n.dim * slope + m.dim * rng.randrange(-3, 4) + rng.randrange(-5, 6)
        solution = solve_linear(expression, k.dim, n)
        assert solution is not None
        for _ in range(5):
            wanted = {n: rng.randrange(50), m: rng.randrange(50)}
            value = expression.evaluate(wanted)
            assert solution.evaluate({m: wanted[m], k: value}) == wanted[n]


def test_agrees_with_sympy() -> None:
    symbols = sympy.symbols("n m k", integer=True)
    rng = random.Random(2)
    for _ in range(30):
        a, b, c = rng.choice((-4, -2, 1, 3)), rng.randrange(-3, 4), rng.randrange(-5, 6)
        (expected,) = sympy.solve(
            sympy.Eq(symbols[0] * a + symbols[1] * b + c, symbols[2]), symbols[0]
        )
        found = solve_linear(n.dim * a + m.dim * b + c, k.dim, n)
        assert found is not None
        values = dict(zip((n, m, k), (0, rng.randrange(9), rng.randrange(9)), strict=True))
        exact = expected.subs({symbols[1]: values[m], symbols[2]: values[k]})
        assert found.evaluate(values) == sympy.floor(exact)


@pytest.mark.parametrize(
    "expression",
    [n.dim * n, n.dim * m + 1, n.dim // 2, n.dim % 4 + n, minimum(n, 4), m.dim + 1, Dim.of(3)],
    ids=str,
)
def test_not_linear(expression: Dim) -> None:
    assert solve_linear(expression, k.dim, n) is None


def test_nonlinear_in_another() -> None:
    """What else is in the expression may be anything."""
    assert solve_linear(n.dim * 2 + m.dim // 3, k.dim, n) == (k.dim - m.dim // 3) // 2


def test_exact_solutions() -> None:
    assert solve_exact(n.dim * 4 + 2, m.dim * 8 + 6, n) == m.dim * 2 + 1
    assert solve_exact(n.dim + k.dim, m.dim, n) == m.dim - k.dim
    assert solve_exact(n.dim * 4, m.dim, n) is None
    assert solve_exact(n.dim * n.dim, m.dim, n) is None
    assert solve_exact(k.dim * 2, m.dim, n) is None
