"""LiftTransformParams: what is made of weights only is made by a function of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.differential import Call
from relaxpy.testing.interpret import interpret
from relaxpy.testing.random_program import random_program
from relaxpy.transform import CanonicalizeBindings, LegalizeOps, LiftTransformParams, Normalize
from tests.sweeps import full

QUICK = "llvm -opt-level=0"
W = 'w: R.Tensor((8, 4), "float32")'


def module(body: str, weights: str = W, inputs: int = 1, others: str = "") -> IRModule:
    """`main` of x (n, 4) and weights."""
    text = "@I.ir_module\nclass Module:\n    @R.function\n"
    text += f'    def main(x: R.Tensor(("n", 4), "float32"), {weights}):\n'
    text += f'        R.func_attr({{"num_input": {inputs}}})\n        n = T.int64()\n        cls = Module\n'
    text += "".join(f"        {line}\n" for line in body.strip().splitlines())
    return Normalize()(relaxpy.parse(text + others))


def lifted(mod: IRModule, *weights: Any, step: LiftTransformParams | None = None) -> IRModule:
    """The module afterwards, after the numbers were compared: interpreted, and built."""
    step = step or LiftTransformParams()
    after = step(mod)
    check_well_formed(after)
    assert step(after) is after
    vm = relaxpy.VirtualMachine(relaxpy.build(after, QUICK))
    new = vm["main_transform_params"](*weights)
    again = interpret(after, "main_transform_params", *weights)
    assert isinstance(again, tuple)
    for rows in (3, 1, 0):
        x = np.random.default_rng(rows).random((rows, 4), np.float32)
        want = np.asarray(interpret(mod, "main", x, *weights))
        np.testing.assert_allclose(vm["main"](x, *new).numpy(), want, rtol=1e-5)
        np.testing.assert_allclose(np.asarray(interpret(after, "main", x, *again)), want, rtol=1e-5)
    return after


def params(mod: IRModule, name: str = "main") -> list[str]:
    function = mod[name]
    assert isinstance(function, Function)
    return [f"{param.name}: {param.annotation}" for param in function.params]


def array(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(len(shape)).random(shape).astype(dtype)


def test_example() -> None:
    check_example(LiftTransformParams())


def test_some_weights_stay_as_they_are() -> None:
    mod = module(
        "a = R.permute_dims(w)\nb = R.multiply(a, R.const(2.0))\nc = R.matmul(x, b)\nd = R.add(c, v)\nreturn d",
        W + ', v: R.Tensor((8,), "float32")',
    )
    after = lifted(mod, array(8, 4), array(8))
    assert [p.split(":")[0] for p in params(after)] == ["x", "v", "b"]
    assert [p.split(":")[0] for p in params(after, "main_transform_params")] == ["w", "v"]
    text = after.script()
    assert text.index("R.multiply(") > text.index("def main_transform_params")


def test_weights_joined_and_split() -> None:
    mod = module(
        "a = R.concat((w, v), axis=0)\nb = R.split(a, 3, axis=0)\nc = b[2]\nd = b[0]\n"
        "e = R.matmul(x, R.permute_dims(R.multiply(c, d)))\nreturn e",
        W + ', v: R.Tensor((4, 4), "float32")',
    )
    after = lifted(mod, array(8, 4), array(4, 4))
    assert len(params(after)) == 2


def test_symbols_of_weights() -> None:
    """k is known from what is made of w; m from nothing but v, which stays."""
    weights = 'w: R.Tensor(("k", 4), "float32"), v: R.Tensor(("m",), "float32")'
    mod = module(
        "k, m = T.int64(), T.int64()\na = R.permute_dims(w)\nb = R.sum(v)\nc = R.multiply(R.matmul(x, a), b)\n"
        'd = R.reshape(c, (n * k,))\ne = R.zeros((m,), "float32")\nf = R.concat((d, e), axis=0)\nreturn f',
        weights,
    )
    after = lifted(mod, array(8, 4), array(5))
    assert [p.split(":")[0] for p in params(after)] == ["x", "v", "a"]


def test_tensor_programs_are_lifted_too() -> None:
    mod = LegalizeOps()(module("a = R.permute_dims(w)\nb = R.matmul(x, a)\nreturn b"))
    after = lifted(mod, array(8, 4))
    assert "R.call_tir(cls.permute_dims, (w,)" in after.script()
    assert [p.split(":")[0] for p in params(after)] == ["x", "a"]


@pytest.mark.parametrize(
    "body",
    [
        "a = R.astype(w, 'float64')\nreturn R.matmul(R.astype(x, 'float64'), R.permute_dims(a))",
        "a = R.permute_dims(w)\nreturn (a, R.matmul(x, a))",
        "a = R.matmul(x, R.permute_dims(x))\nreturn a",
        "a = R.zeros((4, 8), 'float32')\nreturn R.matmul(x, a)",
        "m = T.int64()\na = R.match_cast(R.unique(w), R.Tensor((m,), 'float32'))\nreturn R.add(R.sum(x), a)",
    ],
    ids=["more memory", "given back", "not of weights", "a constant", "what may fail"],
)
def test_what_stays(body: str) -> None:
    mod = module(body)
    assert LiftTransformParams()(mod) is mod


def test_a_function_that_others_call_keeps_its_parameters() -> None:
    other = (
        f'\n    @R.function\n    def other(y: R.Tensor(("n", 4), "float32"), {W}):\n'
        "        cls = Module\n        z = cls.main(y, w)\n        return z\n"
    )
    mod = module("a = R.matmul(x, R.permute_dims(w))\nreturn a", others=other)
    assert LiftTransformParams()(mod) is mod


def test_weights_by_name() -> None:
    mod = relaxpy.parse(
        f"""
@R.function
def main({W}, x: R.Tensor(("n", 4), "float32")):
    a = R.matmul(x, R.permute_dims(w))
    return a
"""
    )
    mod = Normalize()(mod)
    assert LiftTransformParams()(mod) is mod
    for name in ("w", "main.w"):
        after = LiftTransformParams((name,))(mod)
        assert [p.split(":")[0] for p in params(after)] == ["x", "lv"]


def test_a_model_in_a_build() -> None:
    """Put into the pipeline, it takes the transposition of a layer's weight out of the program."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter((8, 4), "float32")

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return nn.op.matmul(x, nn.op.permute_dims(self.weight))

    mod, _ = Layer().export({"forward": {"x": nn.spec.Tensor(("n", 4), "float32")}})
    pipeline = default_pipeline().after("simplify", LiftTransformParams())
    exe = relaxpy.build(mod, QUICK, pipeline=pipeline)
    vm = relaxpy.VirtualMachine(exe)
    w = array(8, 4)
    for rows in (0, 5):
        x = array(rows, 4)
        got = vm["forward"](x, *vm["forward_transform_params"](w))
        np.testing.assert_allclose(got.numpy(), x @ w.T, rtol=1e-5)


@full
def test_random_programs() -> None:
    """All parameters but the first as weights: what is made of them and the rest together compute the same."""
    changed = 0
    for seed in range(60):
        program = random_program(seed)
        main = program.mod[program.name]
        assert isinstance(main, Function)
        marked = replace(main, attrs={**main.attrs, "num_input": 1})
        mod = CanonicalizeBindings()(Normalize()(program.mod.with_function(program.name, marked)))
        after = LiftTransformParams()(mod)
        if after is mod:
            continue
        changed += 1
        check_well_formed(after)
        for sizes in program.bindings(2):
            args = program.arguments(sizes)
            call = Call(mod, program.name, args)
            if isinstance(call.expected, Exception):
                continue
            weights = interpret(after, f"{program.name}_transform_params", *args[1:])
            assert isinstance(weights, tuple)
            got = Call(after, program.name, [args[0], *weights]).run()
            assert call.disagreement(got) == "", f"seed {seed}\n{mod.script()}\n{after.script()}"
    assert changed > 2
