"""When two results agree."""

from __future__ import annotations

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError, UsageError
from relaxpy.runtime import Shape
from relaxpy.testing.agreement import allowance, disagreement, perturb_value, perturbation

ONES = np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (ONES, ONES + 1e-7),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf])),
        ((ONES, (ONES, Shape((2,)))), (ONES, (ONES, Shape((2,))))),
        (RuntimeCheckError("check", "a"), RuntimeCheckError("check", "a")),
        (RuntimeCheckError("check", "3 and lv_0"), RuntimeCheckError("check", "3 and gv12_0")),
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
        (UsageError("check", "a"), RuntimeCheckError("check", "a"), "UsageError"),
        (RuntimeCheckError("check", "a"), RuntimeCheckError("check", "b"), "error[check]: a where"),
        (RuntimeCheckError("check", "lv_0"), RuntimeCheckError("check", "lv_1"), "lv_0 where"),
        (
            RuntimeCheckError("check", "main: add: n, m"),
            RuntimeCheckError("check", "f: add: n, m"),
            "main: add",
        ),
        (
            RuntimeCheckError("check", "main: add: n, m"),
            RuntimeCheckError("check", "main: sum: n, m"),
            "main: add",
        ),
        (
            RuntimeCheckError("check", "main: x: n"),
            RuntimeCheckError("check", "main: x: m"),
            "main: x: n",
        ),
    ],
)
def test_disagree(got: object, wanted: object, words: str) -> None:
    assert words in disagreement(got, wanted)


def test_symbols_of_a_demand() -> None:
    """A pass that proves u to be n speaks of n."""
    got, wanted = (RuntimeCheckError("check", f"main: add: {s} and 4") for s in ("n", "u"))
    assert disagreement(got, wanted) == ""


def test_errors_of_functions_that_became_parts_of_others() -> None:
    """The same operator's demand, or the same kind of error, said of the caller."""
    outer, inner, inside = (
        RuntimeCheckError("check", f"{where}: add: n, m") for where in ("main", "f", "f_g")
    )
    assert disagreement(outer, inner, private=["f"]) == ""
    assert disagreement(outer, inside, private=["f"]) == ""
    assert "main: add" in disagreement(outer, inner, private=["g"])
    assert "f: add" in disagreement(inner, outer, private=["f"])
    assert disagreement(inner, outer, made=["f"]) == ""
    assert "f: add" in disagreement(inner, outer, made=["g"])
    other = RuntimeCheckError("check", "main: sum: n, m")
    assert "main: sum" in disagreement(other, inner, private=["f"])
    assert "main: sum" in disagreement(inner, other, made=["f"])
    here, there = (RuntimeCheckError("size", f"{s}: {s[0]} is too large") for s in ("main", "f"))
    assert disagreement(here, there, private=["f"]) == ""
    assert disagreement(ONES, there, private=["f"])


def test_rounding_that_decides() -> None:
    """Elements that perturbed runs do not agree on may be anything; others may not."""
    wanted = np.array([True, False, True])
    runs = [np.array([True, True, True]), wanted]
    assert disagreement(np.array([True, True, True]), wanted, others=lambda: runs) == ""
    assert "1 of 3" in disagreement(np.array([False, True, True]), wanted, others=lambda: runs)


def test_rounding_that_grows() -> None:
    """Floats may be off as far as perturbed runs are, times a factor."""
    wanted, runs = np.array([1.0, 1.0]), [np.array([1.01, 1.0]), np.array([0.99, 1.0])]
    assert disagreement(np.array([1.05, 1.0]), wanted, others=lambda: runs) == ""
    assert disagreement(np.array([1.5, 1.0]), wanted, others=lambda: runs)
    assert disagreement(np.array([1.0, 1.05]), wanted, others=lambda: runs)
    unstable = [np.array([np.nan, 1.0])]
    assert disagreement(np.array([np.inf, 1.0]), wanted, others=lambda: unstable) == ""


def test_shapes_and_errors_that_are_not_stable() -> None:
    error = RuntimeCheckError("check", "a")
    assert disagreement(np.zeros(3), np.zeros(2), others=lambda: [np.zeros(3), error]) == ""
    assert disagreement(np.zeros(3), np.zeros(2), others=lambda: [np.zeros(2)])
    assert disagreement(error, np.zeros(2), others=lambda: [error]) == ""
    assert disagreement((np.zeros(3),), (np.zeros(2),), others=lambda: [(np.zeros(1),)]) == ""


def test_perturbation() -> None:
    """Floats move by about the error of an operator; what is no float stays."""
    x = np.linspace(-1, 1, 9, dtype=np.float32)
    moved = perturbation(0)(x)
    assert 0 < np.abs(moved - x).max() < 1e-5
    assert (perturb_value((x, 3), perturbation(0))[0] == moved).all()
    integers = np.arange(3)
    assert perturbation(0)(integers) is integers
    scalar = perturbation(0)(np.array(1, np.float32))
    assert isinstance(scalar, np.ndarray)
    assert scalar.shape == ()


def test_symbols_that_are_the_same_size() -> None:
    """A pass may write a dimension in other symbols; its values stay."""

    def error(dimension: str, value: int = 4) -> RuntimeCheckError:
        message = f"main: match_cast x: dimension 0 ({dimension}) must be {value}, got 2"
        return RuntimeCheckError("check", message)

    assert disagreement(error("(m + 1) // 2"), error("lv2_0")) == ""
    assert disagreement(error("m * 4", 8), error("lv2_0")) != ""


def test_allowance() -> None:
    """As far as the tolerances allow, or perturbed runs are; any value where these have others."""
    wanted = np.array([1.0, 100.0, np.nan, 2.0], np.float32)
    plain = allowance(wanted, (), atol=1e-6, rtol=1e-4)
    np.testing.assert_allclose(plain, [1.01e-4, 1.0001e-2, 1e-6, 2.01e-4])
    moved = np.array([1.5, 100.0, np.nan, np.inf], np.float32)
    spread = allowance(wanted, (wanted, moved), atol=1e-6, rtol=1e-4)
    np.testing.assert_allclose(spread, [8.0, 1.0001e-2, 1e-6, np.inf])
    half = allowance(wanted.astype(np.float16), ())
    np.testing.assert_allclose(half[0], 4e-3 + 1e-6)
    whole = np.array([[1, 2]])
    np.testing.assert_array_equal(allowance(whole, ()), [[0, 0]])
    np.testing.assert_array_equal(allowance(whole, (np.array([[1, 3]]),)), [[0, np.inf]])
    others: list[object] = [np.array([1, 2, 3]), RuntimeCheckError("check", "no"), (whole, whole)]
    for other in others:
        assert np.isinf(allowance(whole, (other,))).all()
    assert allowance(np.float32(2.0), ()).shape == ()
