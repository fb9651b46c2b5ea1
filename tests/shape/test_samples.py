"""Sampled values refute inequalities, and only those that do not hold."""

from __future__ import annotations

import pytest

from relaxpy.ir.dim import Dim, SymVar, dim_op
from relaxpy.shape.samples import SampledDims

n, m = (Dim.of(SymVar(name)) for name in "nm")
N, M = (next(iter(dim.vars)) for dim in (n, m))


@pytest.mark.parametrize(
    ("small", "large", "possible"),
    [
        (n, n, True),
        (n, n + 1, True),
        (n + 1, n, False),
        (n, n * 4, True),
        (n, m, False),
        (m, n, False),
        (n * m, n * m * 2 + m, True),
        (dim_op("min", n, m), n, True),
        (n, dim_op("min", n, m), False),
        (dim_op("floordiv", n, 2), n, True),
        (dim_op("floormod", n, 7), Dim.of(6), True),
        (dim_op("floordiv", m, n), m, True),  # no value where n is 0
        (n * n * n * n * n * n, n * n * n * n * n * n * n, True),  # beyond int64
    ],
    ids=str,
)
def test_which_may_hold(small: Dim, large: Dim, possible: bool) -> None:
    samples = SampledDims((N, M), {})
    samples.append(large)
    assert samples.possibly_at_least(small) == ([0] if possible else [])


def test_points_are_within_bounds() -> None:
    """Under n <= 8, n may be no larger than 8."""
    free, bounded = SampledDims((N,), {}), SampledDims((N,), {N: (0, 8)})
    for samples in (free, bounded):
        samples.append(Dim.of(8))
    assert free.possibly_at_least(n) == []
    assert bounded.possibly_at_least(n) == [0]


def test_many() -> None:
    """The list grows; what is looked for is found at its place."""
    samples = SampledDims((N, M), {})
    for i in range(100):
        samples.append(n * (i + 1))
    assert samples.possibly_at_least(n * 91) == list(range(90, 100))
