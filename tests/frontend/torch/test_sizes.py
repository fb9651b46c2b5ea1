"""Torch's expressions of sizes as dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy
from torch.utils._sympy import functions

from relaxpy.errors import RelaxError
from relaxpy.frontend.torch.sizes import Sizes
from relaxpy.ir import SymVar

N = SymVar("n")
S = sympy.Symbol("s0", integer=True, positive=True)


def as_float(value: Any) -> Any:
    return functions.ToFloat(value)


def over(above: Any, below: float) -> Any:
    return functions.FloatTrueDiv(as_float(above), sympy.Float(below))


ROUNDED: list[tuple[Any, Callable[[int], int]]] = [
    (functions.TruncToInt(sympy.Float(1.25) * as_float(S)), lambda n: math.trunc(1.25 * n)),
    (functions.TruncToInt(sympy.Rational(1, 2) * S), lambda n: n // 2),
    (functions.CeilToInt(over(-2 * S, -1.5)), lambda n: math.ceil(-2 * n / -1.5)),
    (functions.CeilToInt(over(S + 1, 8.0)), lambda n: math.ceil((n + 1) / 8)),
    (functions.FloorToInt(1.0 + over(S - 1, 3.0)), lambda n: math.floor(1 + (n - 1) / 3)),
    (functions.FloorToInt(functions.IntTrueDiv(S, 7)), lambda n: n // 7),
    (functions.RoundToInt(over(S, 2.0)), lambda n: round(n / 2)),
    (functions.RoundToInt(over(S, -8.0)), lambda n: round(n / -8)),
    (functions.RoundToInt(over(S, 3.0)), lambda n: round(n / 3)),
    (functions.Mod(-functions.Mod(S, 4), 4), lambda n: -n % 4),
    (functions.FloorDiv(S + functions.Mod(-functions.Mod(S, 4), 4), 4), lambda n: -(-n // 4)),
]


@pytest.mark.parametrize(("expr", "value"), ROUNDED)
def test_a_rounded_size_is_what_python_says(expr: Any, value: Callable[[int], int]) -> None:
    sizes = Sizes()
    sizes.define("s0", N.dim)
    found = sizes.of(expr)
    assert [found.evaluate({N: n}) for n in range(97)] == [value(n) for n in range(97)]


def test_parts_of_what_is_filled_up_to_a_multiple_have_its_size() -> None:
    sizes = Sizes()
    sizes.define("s0", N.dim)
    filled = S + functions.Mod(-functions.Mod(S, 4), 4)
    assert sizes.of(functions.FloorDiv(filled, functions.FloorDiv(filled, 4))).value == 4


def test_a_factor_that_floats_do_not_hold_is_refused() -> None:
    sizes = Sizes()
    sizes.define("s0", N.dim)
    with pytest.raises(RelaxError, match="no fraction of sizes"):
        sizes.of(functions.FloorToInt(sympy.Float(0.7) * as_float(S)))


@pytest.mark.parametrize("factor", [1.7, 1.1, 0.1, 0.6, 1.333, 2.999])
def test_a_size_times_a_factor_is_what_floats_say(factor: float) -> None:
    sizes = Sizes()
    sizes.define("s0", N.dim)
    found = sizes.of(functions.TruncToInt(sympy.Float(factor) * as_float(S)))
    for n in (*range(997), 2**31 - 1, 10**9, 30 * 10**7):
        assert found.evaluate({N: n}) == math.trunc(factor * n)
