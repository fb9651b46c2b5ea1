"""Powers that are weights: softmax has them, whatever its axis; other exponentials stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu.rules.weights import with_weights
from relaxpy.tir.numerics.elementary import function_of
from relaxpy.tir.tvm import te, tirx, tvm
from relaxpy.tir.walk import contains
from tests.backend.support import compute, m, n, over, tensor


def powers(x: Any, argument: Any, reduce: Any = te.max) -> Any:
    k = over(m)
    largest = compute((n,), lambda i: reduce(x[i, k], axis=k), "largest")
    return compute((n, m), lambda i, j: tirx.exp(argument(x, largest, i, j)))


def is_replaced(argument: Any, reduce: Any = te.max) -> bool:
    x = tensor(n, m)
    func = te.create_prim_func([x, powers(x, argument, reduce)])
    return not contains(with_weights(func).body, tvm.ir.Call, lambda call: function_of(call))


def test_which_powers_are_weights() -> None:
    assert is_replaced(lambda x, largest, i, j: x[i, j] - largest[i])
    assert not is_replaced(lambda x, largest, i, j: x[i, j] - largest[i], te.min)
    assert not is_replaced(lambda x, largest, i, j: largest[i] - x[i, j])
    assert not is_replaced(lambda x, largest, i, j: x[i, j] * x[i, j] - largest[i])
    assert not is_replaced(lambda x, largest, i, j: x[i, j] - largest[j]), "of another row"
    assert not is_replaced(lambda x, largest, i, j: x[i, j])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_the_sum_is_1_and_nothing_is_lost(name: str, axis: int) -> None:
    vm = relaxpy.VirtualMachine(
        relaxpy.build(
            relaxpy.parse(
                f"""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("a", "b", "c"), "float32")):
        y = R.nn.{name}(x, axis={axis})
        return y
"""
            )
        )
    )
    for scale in (1, 30, 1e4):
        x = (np.random.default_rng(0).standard_normal((5, 33, 20)) * scale).astype(np.float32)
        x[1, 2, 3], x[2, :, 5] = np.nan, -np.inf
        found = vm["main"](x).numpy().astype(np.float64)
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):
            distance = wide - wide.max(axis, keepdims=True)
            total = np.exp(distance).sum(axis, keepdims=True)
            exact = distance - np.log(total)
        if name == "softmax":
            exact = np.exp(exact)
            # Relative to a weight, the error grows with the distance, which a float32 rounds as well.
            bound = 4e-7 + 1e-7 * np.abs(np.nan_to_num(distance, neginf=0))
            np.testing.assert_array_less(
                np.abs(found - exact)[exact > 1e-37], (bound * exact)[exact > 1e-37]
            )
            assert (np.nan_to_num(found[exact <= 1e-37]) <= 1e-37).all()
        else:
            np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
