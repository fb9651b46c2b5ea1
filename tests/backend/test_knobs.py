"""Knobs: what rules ask for, and what is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.knobs import knob, setting
from relaxpy.backend.registry import backend_of
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.build.tuning import Record, TuningRecords, record_key
from relaxpy.ir.expr import Function
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.target import Target
from relaxpy.testing.interpret import interpret
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform import LegalizeOps
from tests.sweeps import part, quick_target, sweep


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
    rules = backend_of(target).knobs(func.func, target)
    assert next(iter(rules)) == "matmul"
    assert "fallback" in rules
    assert schedule_kernel(func.func, target).rule == "matmul"
    assert schedule_kernel(func.func, target, {"rule": "fallback"}).rule == "fallback"
    assert schedule_kernel(func.func, target, {"rule": "gone"}).rule == "matmul"


SETTINGS = {
    "R.add(x, R.expand_dims(R.sum(x, [1]), [1]))": 'x: R.Tensor(("n", "m"), dtype="float32")',
    "R.permute_dims(x)": 'x: R.Tensor(("n", "m"), dtype="float32")',
    "R.nn.max_pool2d(x, [3, 3], padding=[1, 1])": 'x: R.Tensor((1, 3, "n", "m"), dtype="float32")',
    "R.nn.conv2d(x, w, padding=[1, 1])": 'x: R.Tensor((1, 8, "n", "m"), dtype="float32"), w: R.Tensor((16, 8, 3, 3), dtype="float32")',
    "R.matmul(x, w)": 'x: R.Tensor(("n", 130), dtype="float32"), w: R.Tensor((130, 70), dtype="float32")',
}


@sweep(2)
@pytest.mark.parametrize("body", SETTINGS)
def test_every_setting_computes_the_same(body: str) -> None:
    """Of every rule that applies; sizes around those of blocks. A third of the values of a knob, unless the sweep is in
    full."""
    mod = relaxpy.parse(f"@R.function\ndef main({SETTINGS[body]}):\n    y = {body}\n    return y\n")
    legal = LegalizeOps()(mod)
    target = quick_target()
    rng = np.random.default_rng(0)
    function = mod["main"]
    assert isinstance(function, Function)
    symbols = free_sym_vars(p.annotation for p in function.params)
    sizes = {symbol: size for symbol, size in zip(symbols, (37, 70), strict=False)}
    args = [
        rng.uniform(-1, 1, [d.evaluate(sizes) for d in p.annotation.dims]).astype(np.float32)  # type: ignore[attr-defined]
        for p in function.params
    ]
    want = interpret(mod, "main", *args)
    count = 0
    for name, program in legal.prim_funcs.items():
        assert isinstance(program, PrimFunc)
        key = record_key(program, target)
        for rule, knobs in backend_of(target).knobs(program.func, target).items():
            for knob_name, values in {"rule": (rule,), **knobs}.items():
                for value in part(values, 3):
                    choices = {"rule": rule, knob_name: value}
                    records = TuningRecords({key: Record(name, choices)})
                    exe = relaxpy.build(mod, target=target, tuning=records)
                    got = relaxpy.VirtualMachine(exe)["main"](*args).numpy()
                    np.testing.assert_allclose(
                        got, want, rtol=1e-4, atol=1e-5, err_msg=str(choices)
                    )
                    count += 1
    assert count > 2
