"""Arithmetic of floats with a literal 0 is computed: TVM's operators fold `x * 0`, `0 / x` and `x + 0`, which is wrong
for NaN, for infinities, and in the sign of zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import ScriptError
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.testing.interpret import interpret
from tests.sweeps import sweep

TEXT = """
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "{dtype}"), y: T.Buffer(("n",), "{dtype}")):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
                y[v] = {value}
    @R.function
    def main(x: R.Tensor(("n",), "{dtype}")):
        n = T.int64()
        return R.call_tir(M.f, (x,), out_ty=R.Tensor((n,), "{dtype}"))
"""
VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "x[v] * {zero}": lambda x, zero: x * zero,
    "{zero} * x[v]": lambda x, zero: zero * x,
    "x[v] * -{zero}": lambda x, zero: x * -zero,
    "x[v] + {zero}": lambda x, zero: x + zero,
    "{zero} + x[v]": lambda x, zero: zero + x,
    "x[v] - {zero}": lambda x, zero: x - zero,
    "{zero} - x[v]": lambda x, zero: zero - x,
    "{zero} / x[v]": lambda x, zero: zero / x,
    "(x[v] + {zero}) * {zero}": lambda x, zero: (x + zero) * zero,
}
NUMBERS = (np.nan, np.inf, -np.inf, -1.5, -0.0, 0.0, 2.0)


@sweep(2)
@pytest.mark.parametrize("literal", ["T.{dtype}(0)", "0.0", "0"])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arithmetic_with_a_literal_zero(value: str, literal: str, dtype: str) -> None:
    text = TEXT.format(dtype=dtype, value=value.format(zero=literal.format(dtype=dtype)))
    mod = relaxpy.parse(text)
    assert_structural_equal(relaxpy.parse(mod.script()), mod)
    x = np.array(NUMBERS, dtype)
    # Of Python's integers there is no negative 0.
    zero = x.dtype.type(0) if literal != "0" or "-{zero}" not in value else -x.dtype.type(0)
    with np.errstate(all="ignore"):
        expected = VALUES[value](x, zero)
    built = relaxpy.VirtualMachine(relaxpy.build(mod, cache=False))["main"](x).numpy()
    for got in (interpret(mod, "main", x), built):
        np.testing.assert_array_equal(got, expected)
        numbers = ~np.isnan(expected)
        assert (np.signbit(got) == np.signbit(expected))[numbers].all()


@pytest.mark.optimised
@pytest.mark.parametrize("value", ["x[v] * {zero}", "x[v] + {zero}", "{zero} / x[v]"])
def test_optimised(value: str) -> None:
    test_arithmetic_with_a_literal_zero(value, "0.0", "float32")


def test_a_division_by_a_literal_zero_is_refused() -> None:
    with pytest.raises(ScriptError, match="divided by a literal 0") as caught:
        relaxpy.parse(TEXT.format(dtype="float32", value="x[v] / T.float32(0)"))
    assert caught.value.span is not None
