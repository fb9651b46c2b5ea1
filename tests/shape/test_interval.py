"""Ranges of dimensions: every value is in them, and they are tight for what sizes look like."""

from __future__ import annotations

import itertools

import pytest

from relaxpy.ir.dim import Dim, SymVar, dim_op
from relaxpy.shape.bounds import Range
from relaxpy.shape.interval import interval, upper_bound

N, M = SymVar("n"), SymVar("m")
n, m = N.dim, M.dim
RANGES: dict[SymVar, Range] = {N: (0, 7), M: (1, 5)}


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (n * m * 4, (0, 140)),
        (n + m - 1, (0, 11)),
        (n * n, (0, 49)),
        (n // 2 + 3, (3, 6)),
        ((n + 3) // 4 * 4, (0, 8)),
        (n % 4, (0, 3)),
        (n % m, (0, 4)),
        (n // m, (0, 7)),
        (dim_op("min", n, m), (0, 5)),
        (dim_op("max", n, 2 * m), (2, 10)),
        (dim_op("select", dim_op("le", n, 3), n * 2, m), (0, 14)),
        (-n * 2, (-14, 0)),
        (Dim.of(9), (9, 9)),
    ],
)
def test_ranges(dim: Dim, expected: Range) -> None:
    low, high = interval(dim, RANGES)
    assert (low, high) == expected
    assert low is not None
    assert high is not None
    for a, b in itertools.product(range(8), range(1, 6)):
        assert low <= dim.evaluate({N: a, M: b}) <= high


def test_a_variable_without_an_upper_bound_has_none() -> None:
    k = SymVar("k").dim
    assert upper_bound(k * n, RANGES) is None
    assert upper_bound(dim_op("min", k, n), RANGES) == 7
    assert upper_bound(k % 8, RANGES) == 7
    assert upper_bound(k // 2, RANGES) is None
    assert upper_bound(n // k, RANGES) is None  # k may be 0
    assert interval(0 * k + n - k, RANGES) == (None, 7)
