"""Cases of a proof: together they are all."""

from __future__ import annotations

import pytest

from relaxpy.ir.dim import Dim, DimOp, SymVar, dim_op, maximum, minimum
from relaxpy.shape.cases import atoms, cases, replace_atom

n, m = SymVar("n"), SymVar("m")


@pytest.mark.parametrize(
    "condition",
    [
        dim_op("le", minimum(n, m), m),
        dim_op("eq", maximum(n, 3), m),
        dim_op("lt", dim_op("select", dim_op("lt", n, m), n, 2), m),
        dim_op("eq", dim_op("select", n, n, m), m),
        dim_op("le", n.dim // 4, m),
        dim_op("eq", n.dim % 3 + m.dim // 2, 2),
    ],
    ids=str,
)
def test_one_case_is_the_condition(condition: Dim) -> None:
    """For all values some case holds, and in it the condition is what the case says."""
    split = cases(condition, {})
    assert len(split) > 1
    for i in range(9):
        for j in range(9):
            values = {n: i, m: j}
            found = []
            for case in split:
                for quotient, low, _ in case.ranges or ((None, None, None),):
                    for k in range(low or 0, 9) if quotient is not None else (0,):
                        more = {**values, **({quotient: k} if quotient is not None else {})}
                        if quotient is not None and not set(case.condition.vars) <= set(more):
                            continue
                        if case.assumption.evaluate(more):
                            found.append(case.condition.evaluate(more))
            assert bool(condition.evaluate(values)) in map(bool, found)


def test_nothing_to_tell_apart() -> None:
    assert cases(dim_op("eq", n.dim * m, 4), {}) == []
    assert cases(dim_op("eq", n.dim // 1000, 4), {}) == []
    assert cases(dim_op("eq", n.dim // m, 4), {}) == []


def test_rests_outside_the_range_are_no_case() -> None:
    assert len(cases(dim_op("eq", n.dim // 8, m), {n: (0, 2)})) == 3
    assert len(cases(dim_op("eq", n.dim // 8, m), {n: (-1, 1)})) == 3


def test_replace_atom() -> None:
    condition = minimum(n.dim // 2, m) * (n.dim // 2) + 1
    (first, *_) = atoms(condition)
    assert isinstance(first, DimOp)
    assert replace_atom(condition, first, m.dim) == m.dim * m + 1
