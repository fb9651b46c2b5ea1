"""Calls of programs as calls of their launches."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir.module import IRModule
from relaxpy.testing.interpret import interpret
from relaxpy.tir.lowering.workspace import split
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform import LegalizeOps, LowerCallTIR
from relaxpy.transform.base import PassContext, Sequential, module_pass
from relaxpy.transform.launches import with_launches

MODULE = """
@R.function
def main(x: R.Tensor(("n", 6), "float32"), y: R.Tensor(("m", 6), "float32")):
    n, m = T.int64(), T.int64()
    a = R.nn.softmax(x, axis=0)
    b = R.nn.layer_norm(y, R.ones(R.shape([6]), "float32"), R.zeros(R.shape([6]), "float32"), axes=[1])
    c = R.nn.softmax(R.concat((a, b), axis=0))
    return c
"""


@module_pass("split-everything")
def split_everything(mod: IRModule, _: PassContext) -> IRModule:
    """Each statement of a program a launch, as on a device."""
    found = {
        name: split(program)
        for name, program in mod.prim_funcs.items()
        if isinstance(program, PrimFunc)
    }
    return with_launches(mod, {name: one for name, one in found.items() if one is not None})


def test_launches_run_one_after_the_other() -> None:
    lowered = Sequential((LegalizeOps(), LowerCallTIR()))(relaxpy.parse(MODULE))
    after = split_everything(lowered)
    text = after.script()
    assert "cls.softmax_0, " in text
    assert text.count("R.vm.call_dps") > lowered.script().count("R.vm.call_dps")
    assert "sblock_alloc_buffer" not in text
    relaxpy.assert_structural_equal(relaxpy.parse(text), after)
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    y = np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)
    np.testing.assert_array_equal(interpret(after, "main", x, y), interpret(lowered, "main", x, y))


@pytest.mark.parametrize("n", [0, 1, 70])
def test_what_they_hand_on_is_planned(n: int) -> None:
    """A whole build: memory between launches lies in storages, and is not given away while a launch needs it."""
    steps = default_pipeline().before("lift-workspace", split_everything)
    mod = relaxpy.parse(MODULE)
    exe = relaxpy.build(mod, pipeline=steps)
    x = np.random.default_rng(0).normal(size=(n, 6)).astype(np.float32)
    y = np.random.default_rng(1).normal(size=(n + 1, 6)).astype(np.float32)
    expected = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x, y).numpy()
    for check in (False, True):
        got = relaxpy.VirtualMachine(exe, check_memory=check)["main"](x, y).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert exe.memory_plan(n=max(n, 1), m=n + 1)["main"].workspace > 0
