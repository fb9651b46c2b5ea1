"""When two results agree."""

from __future__ import annotations

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError, UsageError
from relaxpy.runtime import Shape
from relaxpy.testing.agreement import disagreement

ONES = np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (ONES, ONES + 1e-7),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf])),
        ((ONES, (ONES, Shape((2,)))), (ONES, (ONES, Shape((2,))))),
        (RuntimeCheckError("check", "a"), RuntimeCheckError("check", "b")),
        (np.zeros((0, 3)), np.zeros((0, 3))),
    ],
)
def test_agree(got: object, wanted: object) -> None:
    assert disagreement(got, wanted) == ""


@pytest.mark.parametrize(
    ("got", "wanted", "words"),
    [
        (ONES, ONES + 1e-2, "4 of 4 elements differ, first (0, 0)"),
        (ONES, ONES.astype(np.float64), "float32[2, 2] where float64[2, 2]"),
        (ONES, ONES[:1], "where float32[1, 2]"),
        (np.array([1]), np.array([2]), "1 and 2"),
        (np.array([np.inf]), np.array([1e30]), "inf"),
        ((ONES, ONES), (ONES, ONES + 1), "field 1"),
        ((ONES,), (ONES, ONES), "tuple of 2"),
        (ONES, RuntimeCheckError("check", "no"), "RuntimeCheckError"),
        (UsageError("check", "a"), RuntimeCheckError("check", "b"), "UsageError"),
    ],
)
def test_disagree(got: object, wanted: object, words: str) -> None:
    assert words in disagreement(got, wanted)
