"""Integers at the limits of their types in hand-written programs: TVM's simplifier computes with them as if there were
no limits, or refuses to. The processor and the interpreter agree with 64-bit arithmetic that wraps around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.testing.interpret import interpret

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
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
X = np.array([LEAST, MOST, -1, 0, 1, 2, LEAST + 1, 7, 8, 9, 10, 11, 12])
V, N = np.arange(13), np.int64(13)
VALUES: dict[str, Callable[[], Any]] = {
    f"T.abs(n + T.int64({MOST}))": lambda: np.abs(N + MOST),
    f"T.max(v + T.int64({MOST}), T.int64(0))": lambda: np.maximum(V + MOST, 0),
    f"(n + T.int64({MOST})) % T.int64(3)": lambda: (N + MOST) % 3,
    f"T.Select(v - T.int64({MOST}) - T.int64({MOST}) < 0, v, n)": lambda: np.where(
        V - MOST - MOST < 0, V, N
    ),
    f"(v * T.int64({1 << 62})) // T.int64({1 << 61})": lambda: (V * (1 << 62)) // (1 << 61),
    "(v * T.int64(1 << 20) * T.int64(1 << 20) * T.int64(1 << 20)) // T.int64(1 << 20)": lambda: (
        (V * (1 << 60)) // (1 << 20)
    ),
    f"x[v] // T.int64({LEAST})": lambda: X // LEAST,
    f"(v - 5) % T.int64({LEAST})": lambda: (V - 5) % LEAST,
    f"v // ((x[v] * T.int64({-MOST})) * T.int64({LEAST}))": lambda: np.floor_divide(
        V, X * -MOST * LEAST, out=np.zeros_like(V), where=X * -MOST * LEAST != 0
    ),
}


@pytest.mark.parametrize("value", VALUES)
def test_integers_of_64_bits(value: str) -> None:
    text = TEXT.format(dtype="int64", value=value.replace("1 << 20", str(1 << 20)))
    with np.errstate(over="ignore"):
        expected = np.broadcast_to(VALUES[value](), X.shape)
    check(text, X, expected)


@pytest.mark.parametrize("value", ['T.Cast("int32", n) % {least}', "x[v] // {least}"])
def test_divisors_of_32_bits_without_a_negative(value: str) -> None:
    least = np.iinfo(np.int32).min
    x = X.clip(least, np.iinfo(np.int32).max).astype(np.int32)
    given = value.format(least=f'T.Cast("int32", T.int32({least}))')
    expected = x // least if "x" in value.split()[0] else np.full_like(x, np.int32(13) % least)
    check(TEXT.format(dtype="int32", value=given), x, expected)


def check(text: str, x: np.ndarray, expected: np.ndarray) -> None:
    mod = relaxpy.parse(text)
    built = relaxpy.VirtualMachine(relaxpy.build(mod, cache=False))["main"](x).numpy()
    for got in (built, interpret(mod, "main", x)):
        np.testing.assert_array_equal(got, expected)
