"""The cases of the operator benchmark are programs, and the same numbers in every process."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.op_cases import Case, cases
from benchmarks.ops import case_module, key_of, named_cases


def test_keys_say_which_case_it_is() -> None:
    assert len(named_cases()) == len(cases())


@pytest.mark.parametrize("case", cases(), ids=key_of)
def test_programs(case: Case) -> None:
    """Every case is a program in relaxpy: what it needs fits together whatever its open dimensions are."""
    mod, params = case_module(case, [np.empty(i.shape, i.dtype) for i in case.inputs])
    assert len(params) == sum(not given.dims for given in case.inputs)
    assert list(mod.graph_functions) == ["run"]


def test_numbers_are_those_of_the_case() -> None:
    small = min(cases(), key=lambda case: sum(given.nbytes for given in case.inputs))
    for first, second in zip(small.arrays(), small.arrays(), strict=True):
        np.testing.assert_array_equal(first, second)
