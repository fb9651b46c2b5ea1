"""Truth values become numbers in every type, under whatever takes them."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.target import Target
from relaxpy.testing.interpret import interpret
from relaxpy.tir.lowering.truth import chosen_by_truth
from relaxpy.tir.tvm import tirx, tvm_ffi
from tests.sweeps import part, quick_target, sweep

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
TESTS = ("isnan", "isinf", "isfinite")

TRUTHS = {
    **{name: f"R.{name}(x, y)" for name in COMPARISONS},
    **{name: f"R.{name}(R.less(x, y), R.not_equal(y, x))" for name in LOGICAL},
    **{name: f"R.{name}(x)" for name in TESTS},
    "logical_not": "R.logical_not(R.less(x, y))",
    "of itself": "R.greater_equal(x, x)",
}
USES = {
    "cast": "R.astype({}, '{dtype}')",
    "consumer": "R.sqrt(R.astype({}, '{dtype}'))",
    "integer": "R.negative(R.astype(R.astype({}, 'int8'), '{dtype}'))",
    "choice": "R.where({}, x, R.negative(y))",
}


def module(dtype: str, use: str) -> str:
    functions = "".join(
        f"""
    @R.function
    def {name.replace(" ", "_")}(x: R.Tensor(("n", 20), "{dtype}"), y: R.Tensor(("n", 20), "{dtype}")):
        with R.dataflow():
            z = {USES[use].format(text, dtype=dtype)}
            R.output(z)
        return z
"""
        for name, text in TRUTHS.items()
    )
    return f"@I.ir_module\nclass Module:{functions}"


@sweep(2)
@pytest.mark.parametrize(
    ("dtype", "use"), part([*itertools.product(("bfloat16", "float16"), USES)], 2)
)
def test_truth_as_numbers(dtype: str, use: str) -> None:
    mod = relaxpy.parse(module(dtype, use))
    target = Target.host() if dtype == "bfloat16" else quick_target()
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, target=target))
    rng = np.random.default_rng(0)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    x = rng.standard_normal((3, 20)).astype(kind)
    y = np.where(rng.random((3, 20)) < 0.5, x, np.negative(x))
    x[0, :3] = [np.nan, np.inf, -np.inf]
    for name in vm.functions:
        got = vm[name](x, y).numpy().astype(np.float64)
        wanted = np.asarray(interpret(mod, name, x, y)).astype(np.float64)
        np.testing.assert_allclose(got, wanted, rtol=2e-2, err_msg=name)


def test_only_vectors_of_truth_become_choices() -> None:
    x = tirx.decl_buffer([16], "float32", "x")
    out = tirx.decl_buffer([16], "float32", "out")
    places = tirx.Ramp(tirx.const(0, "int64"), tirx.const(1, "int64"), 16)
    vector, first = tirx.BufferLoad(x, [places]), tirx.BufferLoad(x, [tirx.const(0, "int64")])
    seen = []
    for value in (
        tirx.Cast("float32x16", tirx.LT(vector, vector)),
        tirx.Broadcast(tirx.Cast("float32", tirx.LT(first, first)), 16),
        tirx.Cast("float32x16", tirx.Cast("int32x16", vector)),
    ):
        func = tirx.PrimFunc([x, out], tirx.BufferStore(out, value, [places]))
        choices: list[object] = []
        tvm_ffi.structural_walk(chosen_by_truth(func).body, (tirx.Select, choices.append))
        seen.append(len(choices))
        assert chosen_by_truth(func).same_as(func) == (not choices)
    assert seen == [1, 0, 0]
