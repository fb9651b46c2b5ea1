"""Proof: never wrong, and strong enough for what passes ask."""

from __future__ import annotations

import random

import pytest

from relaxpy.ir.dim import Dim, SymVar, dim_op, maximum, minimum
from relaxpy.shape.lattice import Verdict
from relaxpy.shape.prove import equal, prove

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
    for _ in range(400):
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
    assert proved > 20


@pytest.mark.parametrize(
    "condition",
    [
        dim_op("eq", n.dim // 4 * 4 + n.dim % 4, n),
        dim_op("le", n, (n.dim + 15) // 16 * 16),
        dim_op("lt", n.dim % 8, 8),
        dim_op("le", 0, n.dim * m),
        dim_op("eq", (n.dim * m) * 4, m.dim * 4 * n),
        dim_op("le", minimum(n, m), n),
    ],
    ids=str,
)
def test_proved(condition: Dim) -> None:
    assert prove(condition)


@pytest.mark.parametrize(
    "condition", [dim_op("lt", 0, n), dim_op("eq", n, m), dim_op("eq", n.dim % 4, 0)], ids=str
)
def test_not_proved(condition: Dim) -> None:
    """0 is a size; two symbols may differ."""
    assert not prove(condition)


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
