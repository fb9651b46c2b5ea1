"""Proof: never wrong, and strong enough for what passes ask."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest
import sympy

from relaxpy.ir.dim import Dim, SymVar, dim_op, maximum, minimum
from relaxpy.script.dims import parse_dim
from relaxpy.shape.bounds import assuming
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal, prove, settled

n, m = SymVar("n"), SymVar("m")


def random_dim(rng: random.Random, depth: int = 3) -> Dim:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice((n.dim, m.dim, Dim.of(rng.randrange(0, 5))))
    a, b = random_dim(rng, depth - 1), random_dim(rng, depth - 1)
    match rng.randrange(6):
        case 0:
            return a + b
        case 1:
            return a - b
        case 2:
            return a * b
        case 3:
            return a // rng.choice((2, 3, 4))
        case 4:
            return a % rng.choice((2, 3, 4))
        case _:
            return rng.choice((minimum, maximum))(a, b)


def test_proofs_hold() -> None:
    """What is proved is true for all values that are tried; equal and different as well."""
    rng = random.Random(1)
    values = [{n: i, m: j} for i in range(7) for j in range(7)]
    proved = 0
    for _ in range(200):
        a, b = random_dim(rng), random_dim(rng)
        condition = dim_op(rng.choice(("eq", "ne", "lt", "le")), a, b)
        if prove(condition):
            proved += 1
            assert all(condition.evaluate(v) for v in values), str(condition)
        verdict = equal(a, b)
        if verdict is Verdict.YES:
            assert all(a.evaluate(v) == b.evaluate(v) for v in values), f"{a} == {b}"
        if verdict is Verdict.NO:
            assert all(a.evaluate(v) != b.evaluate(v) for v in values), f"{a} != {b}"
    assert proved > 10


PROVED = (
    "n // 4 * 4 + n % 4 == n",
    "(4*n)//4 == n",
    "n*m == m*n",
    "ceildiv(n, 16) * 16 >= n",
    "ceildiv(n,16)*16 < n + 16",
    "(n + 15)//16*16 >= n",
    "n % 8 < 8",
    "n%8>=0",
    "n*m>=0",
    "(n*16) % 16 == 0",
    "(n*16 + 4) % 4 == 0",
    "(n*m*8) % 4 == 0",
    "(n*4 + 2) % 4 == 2",
    "(n*4+m%4)//4 == n",
    "(n*4+m%4)%4 == m%4",
    "n//2//3 == n//6",
    "min(n,m) <= max(n,m)",
    "min(n, n+1) == n",
    "max(n,0) == n",
    "min(n,m) == min(m,n)",
    "max(n,m)+min(n,m) == n+m",
    "min(n+1,m+1) == min(n,m)+1",
    "n + m >= n",
    "n*2 >= n",
    "(n+m)*(n+m) == n*n + 2*n*m + m*m",
    "(n+1)*(n-1) == n*n-1",
    "n*n >= 0",
    "n < n + 1",
    "n != n+1",
    "n // 4 <= n",
    "n % 4 <= n",
    "(n + 3) // 4 >= n // 4",
    "(n*8)//4 == n*2",
    "(n * 8 + 3) // 4 == n * 2",
    "Select(n == 1, m, m) == m",
    "Select(n == m, n, m) == m",
    "Select(n < 4, n, 4) <= 4",
    "Select(n < 4, n, 4) == min(n, 4)",
    "(n % 4 + 4) % 4 == n % 4",
    "(n//4)*4 <= n",
    "n - n//2 >= n//2",
    "ceildiv(n, 2) + n//2 == n",
    "n - n % 8 == n//8*8",
    "(n - n%8) % 8 == 0",
    "n*m//m == n",
    "(n*m)%m == 0",
    "(n//2 + n//2) <= n",
    "ceildiv(n*4,4) == n",
    "min(n//16*16, n) == n//16*16",
    "max(n - 4, 0) <= n",
    "n*4 + m*4 == (n+m)*4",
    "(n*4 + m*4)%4 == 0",
    "(n+1)//1 == n+1",
    "2*n*2*m == n*m*4",
    "n*12//6*3 == n*6",
    "ceildiv(ceildiv(n,4),4) == ceildiv(n,16)",
    "n//16*16 + 16 > n",
    "(n + 16)//16 == n//16 + 1",
    "(n+16)%16 == n%16",
    "n%2 + n//2*2 == n",
    "n % 16 // 4 < 4",
    "n % 16 % 4 == n % 4",
    "(n*2 + 1) % 2 == 1",
    "(n*6) % 4 % 2 == 0",
    "min(n, 8) <= 8",
    "max(min(n,8),4) >= 4",
    "min(max(n,4),8) == max(min(n,8),4)",
)
"""True whatever the sizes n and m are."""


def read(text: str) -> Dim:
    """A condition on n and m."""
    return parse_dim(text, {"n": n.dim, "m": m.dim}.__getitem__)


@pytest.mark.parametrize("text", PROVED)
def test_proved(text: str) -> None:
    condition = read(text)
    assert prove(condition)
    values = [{n: i, m: j} for i in range(1, 40) for j in range(1, 6)]
    assert all(condition.evaluate(v) for v in values)


@pytest.mark.parametrize(
    "text",
    [
        "0 < n",  # 0 is a size
        "n == m",
        "n % 4 == 0",
        "n // 4 * 4 == n",
        "n // 2 < n",
        "(n + m) // 2 == n // 2 + m // 2",
        "max(n, m) == n",
        "Select(n < 4, n, 4) == n",
        "n * n >= n + 1",
        "ceildiv(n, 4) == n // 4",
        f"n * {2**62} >= 0 - {2**63}",  # true, but not with 64 bits
    ],
)
def test_not_proved(text: str) -> None:
    assert not prove(read(text))


def test_bounds() -> None:
    assert prove(dim_op("lt", 0, n), {n: (1, None)})
    assert prove(dim_op("le", n.dim * 2, 16), {n: (0, 8)})
    assert not prove(dim_op("le", n.dim * 2, 16), {n: (0, 9)})
    assert prove(dim_op("le", -5, n), {n: (-5, 5)})


def test_bounds_are_part_of_the_question() -> None:
    """The same condition under other bounds is asked anew, whatever was answered before."""
    condition = dim_op("lt", m, 100)
    assert prove(condition, {m: (0, 99)})
    assert not prove(condition, {m: (0, 100)})
    assert prove(condition, {m: (0, 99)})


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (n.dim // 2 * 2 + n.dim % 2, n.dim, Verdict.YES),
        (n.dim, n.dim + 1, Verdict.NO),
        (n.dim * 2, n.dim * 2 + m.dim * 0 + 1, Verdict.NO),
        (n.dim % 4, Dim.of(4), Verdict.NO),
        (n.dim, m.dim, Verdict.MAYBE),
        (n.dim, Dim.of(3), Verdict.MAYBE),
        (n.dim, Dim.of(-1), Verdict.NO),
    ],
)
def test_equal(a: Dim, b: Dim, verdict: Verdict) -> None:
    assert equal(a, b) is verdict
    assert equal(b, a) is verdict


def test_negative_ranges() -> None:
    """What is proved of variables that may be negative holds for negative values too."""
    rng = random.Random(2)
    bounds = {n: (-9, 9), m: (-3, None)}
    values = [{n: i, m: j} for i in range(-9, 10) for j in range(-3, 8)]
    proved = 0
    for _ in range(200):
        a, b = random_dim(rng, 2), random_dim(rng, 2)
        condition = dim_op(rng.choice(("eq", "ne", "lt", "le")), a, b)
        if prove(condition, bounds):
            proved += 1
            assert all(condition.evaluate(v) for v in values), str(condition)
    assert proved > 10


def to_sympy(dim: Dim, symbols: dict[SymVar, Any]) -> Any:
    """The same expression for sympy."""
    functions = {
        "floordiv": lambda a, b: sympy.floor(a / b),
        "floormod": lambda a, b: a - b * sympy.floor(a / b),
        "min": sympy.Min,
        "max": sympy.Max,
    }
    total = sympy.Integer(0)
    for monomial, coefficient in dim.terms:
        term = sympy.Integer(coefficient)
        for atom, power in monomial:
            factor = (
                symbols[atom]
                if isinstance(atom, SymVar)
                else functions[atom.op](*(to_sympy(arg, symbols) for arg in atom.args))
            )
            term *= factor**power
        total += term
    return total


def test_agrees_with_sympy() -> None:
    """What sympy finds equal is proved equal, what it finds to differ by a number is proved different."""
    rng = random.Random(3)
    symbols = {var: sympy.Symbol(var.name, integer=True, nonnegative=True) for var in (n, m)}
    found = Counter[Verdict]()
    for _ in range(120):
        a, b, c = (random_dim(rng, 2) for _ in range(3))
        left, right = a * (b - c), a * b - c * a + rng.choice((0, 0, 1, a))
        difference = sympy.expand(to_sympy(left, symbols) - to_sympy(right, symbols))
        verdict = equal(left, right)
        found[verdict] += 1
        if difference.is_number:
            assert verdict is (Verdict.YES if difference == 0 else Verdict.NO), f"{left}, {right}"
    assert found[Verdict.YES] > 30
    assert found[Verdict.NO] > 10


def test_asked_again_costs_microseconds() -> None:
    """The answer is kept: a program of ten thousand bindings asks the same few questions."""
    condition = read("ceildiv(n, 16) * 16 >= n")
    assert prove(condition)
    start = time.perf_counter()
    for _ in range(10_000):
        prove(condition)
    assert time.perf_counter() - start < 0.5  # 50 µs each; 2 are usual


def test_equal_but_for_what_bounds_decide() -> None:
    """Found by `relaxpy fuzz --seed 412053`: the length of a slice, deduced with and without the bound of m."""
    m, u = SymVar("m"), SymVar("u")
    span = minimum(m.dim - 1, 99) - minimum(m.dim - 1, u)
    a, b = (span + 2) // 3, (maximum(0, span) + 2) // 3
    assert equal(a, b) is Verdict.MAYBE
    with assuming({m: (0, 3)}):
        assert equal(a, b) is Verdict.YES
        assert settled(b) == settled(a)
