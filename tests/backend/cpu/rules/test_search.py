"""Searches: the first position, wherever it is, of any property; other reductions are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.backend.cpu.rules.search import property_of
from relaxpy.target import Target
from relaxpy.tir.numerics import scalar
from relaxpy.tir.recognise.stages import stages_of
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import AVX2, HOST, Kernel, compute, f32, m, n, normal, over, tensor

NOWHERE = np.iinfo(np.int64).max


def first(x: Any, condition: Any, elsewhere: int = NOWHERE) -> Any:
    """The first position of each row where the condition holds."""
    k = over(m)
    other = tirx.IntImm("int64", elsewhere)
    return compute((n,), lambda i: te.min(tirx.Select(condition(x[i, k], k), k.var, other), axis=k))


def searched(condition: Any, elsewhere: int = NOWHERE) -> bool:
    x = tensor(n, m)
    (stage,) = stages_of(te.create_prim_func([x, first(x, condition, elsewhere)])) or ()
    return property_of(stage) is not None


def test_what_is_a_search() -> None:
    assert searched(lambda x, k: x > f32(0))
    assert not searched(lambda x, k: x > f32(0), elsewhere=-1), "the least would be -1"
    assert not searched(lambda x, k: k.var > 3), "nothing is read"


@pytest.mark.parametrize("target", [HOST, AVX2], ids=["host", "avx2"])
def test_the_first_hit_is_found_wherever_it_is(tmp_path: Path, target: Target) -> None:
    x = tensor(n, m)
    kernel = Kernel(tmp_path, [x, first(x, lambda x, k: x > f32(0))], target)
    for width in (0, 1, 7, 16, 127, 128, 129, 300):
        a = np.full((width + 1, width), -1.0, np.float32)
        for row in range(width):
            a[row, row::3] = 1  # the last row has none
        expected = [*range(width), NOWHERE]
        found = kernel(a, out=(width + 1,), dtype="int64")
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("width", [1, 5, 128, 1000])
def test_the_place_of_the_largest(tmp_path: Path, width: int) -> None:
    """The first of equal ones, or of NaNs; rows of one number."""
    x = tensor(n, m)
    k = over(m)
    best = compute((n,), lambda i: scalar.reduce_max(x[i, k], axis=k), "best")

    def is_best(i: Any, k: Any) -> Any:
        both = scalar.logical_and(scalar.isnan(x[i, k]), scalar.isnan(best[i]))
        return scalar.logical_or(scalar.equal(x[i, k], best[i]), both)

    j = over(m, "j")
    other = tirx.IntImm("int64", NOWHERE)
    place = compute((n,), lambda i: te.min(tirx.Select(is_best(i, j), j.var, other), axis=j))
    kernel = Kernel(tmp_path, [x, place])
    a = np.round(normal(40, width))
    a[1:4] = [[-np.inf], [np.inf], [0]]
    a[4, 0::2] = -0.0
    a[5:30, width // 2 :: 3] = np.nan
    found = kernel(a, out=(40,), dtype="int64")
    np.testing.assert_array_equal(found, np.argmax(a, 1))
