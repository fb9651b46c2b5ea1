"""Knobs: what rules ask for, and what is chosen."""

from __future__ import annotations

from typing import Any

import pytest

import relaxpy
import relaxpy.schedule
from relaxpy.schedule import knobs_of, schedule_kernel
from relaxpy.schedule.knobs import knob, setting
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.target import Target
from relaxpy.transform import LegalizeOps


def test_the_rules_own_choice_unless_another_is_made() -> None:
    assert knob("chunk", 4, (2, 8)) == 4  # nobody is scheduling
    with setting({"chunk": 8, "nobody asks": 1}) as knobs:
        assert knob("chunk", 4, (2, 4, 8)) == 8
        assert knob("order", "ij", ("ji",)) == "ij"
    assert knobs.asked == {"chunk": (4, 2, 8), "order": ("ij", "ji")}
    assert knob("chunk", 4, (2, 8)) == 4


@pytest.mark.parametrize("value", [3, "8", None])
def test_what_a_rule_does_not_know_changes_nothing(value: Any) -> None:
    with setting({"chunk": value}):
        assert knob("chunk", 4, (2, 8)) == 4


def test_rules_are_chosen_by_name() -> None:
    mod = LegalizeOps()(
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 8), dtype="float32"), w: R.Tensor((8, 8), dtype="float32")):
    y = R.matmul(x, w)
    return y
""")
    )
    func, target = mod["matmul"], Target.host()
    assert isinstance(func, PrimFunc)
    rules = knobs_of(func.func, target)
    assert next(iter(rules)) == "matmul"
    assert "fallback" in rules
    assert schedule_kernel(func.func, target).rule == "matmul"
    assert schedule_kernel(func.func, target, {"rule": "fallback"}).rule == "fallback"
    assert schedule_kernel(func.func, target, {"rule": "gone"}).rule == "matmul"
