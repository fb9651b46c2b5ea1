"""What is too large to be computed while a script is read."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from relaxpy.ir.python_operator import is_too_large


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (operator.pow, (2, 1000), False),
        (operator.pow, (9, 9**9), True),
        (operator.pow, (0.5, 10**9), False),
        (operator.pow, (2, -(10**9)), False),
        (operator.pow, (1, 10**12), True),
        (operator.lshift, (1, 63), False),
        (operator.lshift, (1, 10**12), True),
        (operator.mul, (10**40, 10**40), False),
        (operator.mul, (1 << 40_000, 1 << 40_000), True),
        (operator.mul, ("ab", 3), False),
        (operator.mul, (10**12, [0]), True),
        (operator.mul, ((0, 1), 10**12), True),
        (operator.mul, ((), 10**12), False),
        (operator.add, (10**40, 1), False),
    ],
)
def test_is_too_large(function: Any, args: tuple[Any, Any], expected: bool) -> None:
    assert is_too_large(function, args) is expected
