"""Programs through all passes in random orders."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.module import IRModule
from relaxpy.testing import orders
from relaxpy.testing.differential import Call
from relaxpy.testing.fuzz import calls_of, fuzz, outcomes_in_orders
from relaxpy.testing.orders import check_orders
from relaxpy.testing.random_program import random_module
from relaxpy.transform.base import Pass, PassContext, Sequential
from tests.sweeps import part, sweep


@sweep
@pytest.mark.parametrize("seed", part(range(40), 10))
def test_the_numbers_stay(seed: int) -> None:
    calls = calls_of(random_module([seed])[1][0])
    assert not check_orders(calls, range(seed * 2, seed * 2 + 2))


class Wrong(Pass):
    name: ClassVar[str] = "wrong"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return relaxpy.parse(mod.script().replace("R.add", "R.subtract"))


def test_a_wrong_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the order, the passes, and the call."""
    mod = relaxpy.parse(
        "@R.function\ndef main(x: R.Tensor((2,), 'float32')):\n    return R.add(x, x)"
    )

    def only_wrong(seed: int) -> Sequential:
        return Sequential((Wrong(),))

    monkeypatch.setattr(orders, "random_order", only_wrong)
    call = Call(mod, "main", [np.ones(2, np.float32)])
    (failure,) = check_orders([call], [7])
    assert failure.stage == "pass"
    assert "order 7" in failure.message
    assert "passes: wrong" in failure.message


def test_in_processes() -> None:
    found = list(fuzz(2, seed=5, orders=1))
    assert [outcome.seed for outcome in found] == [5, 6]
    assert not any(outcome.failure for outcome in found)
    assert outcomes_in_orders([5], 1) == found[:1]
