"""The cases of the operator benchmark are programs, and the same numbers in every process."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.drawn_cases import EACH, SEED, drawn_cases
from benchmarks.op_cases import Case, cases
from benchmarks.ops import case_module, named_cases

DRAWN = drawn_cases()


def test_keys_say_which_case_it_is() -> None:
    assert len(named_cases(SEED)) == len(cases()) + len(DRAWN)


@pytest.mark.parametrize("seed", [SEED, *range(5)])
def test_as_many_of_each_group_are_drawn(seed: int) -> None:
    drawn = drawn_cases(seed)
    assert Counter(case.group for case in drawn) == {case.group: EACH for case in cases()}
    assert len({case.key for case in drawn}) == len(drawn)
    assert [case.key for case in drawn] == [case.key for case in drawn_cases(seed)]


def test_seeds_draw_different_cases() -> None:
    first, second = ({case.key for case in drawn_cases(seed)} for seed in (1, 2))
    assert len(first & second) < len(first) // 2


@pytest.mark.parametrize("case", [*cases(), *DRAWN], ids=lambda case: case.key)
def test_programs(case: Case) -> None:
    """Every case is a program in relaxpy: what it needs fits together whatever its open dimensions are."""
    mod, params = case_module(case, [np.empty(i.shape, i.dtype) for i in case.inputs])
    assert len(params) == sum(not given.dims for given in case.inputs)
    assert list(mod.graph_functions) == ["run"]


def test_numbers_are_those_of_the_case() -> None:
    small = min(cases(), key=lambda case: sum(given.nbytes for given in case.inputs))
    for first, second in zip(small.arrays(), small.arrays(), strict=True):
        np.testing.assert_array_equal(first, second)
