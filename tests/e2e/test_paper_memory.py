"""Figures 10 and 11 of the paper: memory shared by tensors of symbolic sizes, and the workspace of a split matrix
product in the plan. Run with `-s` to see what they show."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.build.plan import memory_plan
from relaxpy.ir import IRModule
from relaxpy.models import llama
from relaxpy.testing.interpret import interpret
from relaxpy.transform import (
    LegalizeOps,
    LiftWorkspace,
    LowerCallTIR,
    PlanMemory,
    Sequential,
    UpdateInPlace,
)

FIGURE_10 = """
@R.function
def main(x: R.Tensor((2, "n"), "float32")) -> R.Tensor(("2 * n",), "float32"):
    n = T.int64()
    lv0 = R.exp(x)
    lv1 = R.permute_dims(lv0, axes=[1, 0])
    lv2 = R.nn.relu(lv1)
    lv3 = R.reshape(lv2, (n * 2,))
    lv4 = R.exp(lv3)
    return lv4
"""

FIGURE_11 = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def split_k(
        x: T.Buffer(("n", 256), "float32"), w: T.Buffer((256, 64), "float32"), y: T.Buffer(("n", 64), "float32")
    ):
        T.func_attr({"tirx.is_scheduled": True})
        n = T.int64()
        workspace = T.alloc_buffer((4, n, 64), "float32")
        for s, i in T.grid(4, n):
            for j, k in T.grid(64, 64):
                with T.sblock("partial"):
                    vs, vi, vj, vk = T.axis.remap("SSSR", [s, i, j, k])
                    with T.init():
                        workspace[vs, vi, vj] = T.float32(0)
                    workspace[vs, vi, vj] = workspace[vs, vi, vj] + x[vi, vs * 64 + vk] * w[vs * 64 + vk, vj]
        for i in T.parallel(n):
            for j, s in T.grid(64, 4):
                with T.sblock("accumulate"):
                    vi, vj, vs = T.axis.remap("SSR", [i, j, s])
                    with T.init():
                        y[vi, vj] = T.float32(0)
                    y[vi, vj] = y[vi, vj] + workspace[vs, vi, vj]

    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((256, 64), "float32")) -> R.Tensor(("n", 64), "float32"):
        n = T.int64()
        cls = Module
        wide = R.concat((x, x, x, x), axis=1)
        sums = R.cumsum(wide, axis=0)
        lv0 = R.call_tir(cls.split_k, (sums, w), out_ty=R.Tensor((n, 64), "float32"))
        lv1 = R.cumsum(lv0, axis=0)
        lv2 = R.concat((lv1, lv1, lv1, lv1), axis=1)
        lv3 = R.call_tir(cls.split_k, (lv2, w), out_ty=R.Tensor((n, 64), "float32"))
        return lv3
"""


def storages(mod: IRModule) -> list[str]:
    """The sizes of the storages in a module's text."""
    return [
        line.split("R.prim_value(")[1].split("))")[0]
        for line in mod.script().splitlines()
        if "alloc_storage" in line
    ]


def show(title: str, mod: IRModule) -> None:
    """Print a module; pytest keeps it back but with `-s`."""
    sys.stdout.write(f"\n# {title}\n{mod.script()}\n")


def test_figure_10() -> None:
    """Four intermediate tensors of (2, n), (n, 2), (n, 2) and (n * 2,) floats lie in two storages, since all the sizes
    are proved equal. One more step than in the figure: relu and the last exp write over their inputs."""
    lowered = Sequential((LegalizeOps(), LowerCallTIR()))(relaxpy.parse(FIGURE_10))
    planned = PlanMemory(larger=False)(lowered)
    show("before", lowered)
    show("after", planned)
    assert lowered.script().count("R.memory.alloc_tensor(") == 5
    assert storages(lowered) == []
    assert storages(planned) == ["n * 8", "n * 8"]
    in_place = PlanMemory()(UpdateInPlace()(lowered))
    assert in_place.script().count("R.memory.view(") == 1
    x = np.linspace(-1, 1, 14, dtype=np.float32).reshape(2, 7)
    for mod in (planned, in_place):
        np.testing.assert_array_equal(interpret(mod, "main", x), interpret(lowered, "main", x))


@pytest.mark.parametrize("n", [0, 1, 5, 33])
def test_figure_11(n: int) -> None:
    """The workspace, (4, n, 64) floats, is a parameter of the tensor program, allocated by its caller, and lies where
    tensors of the graph lie at other times."""
    mod = relaxpy.parse(FIGURE_11)
    lifted = Sequential((LegalizeOps(), LowerCallTIR(), LiftWorkspace()))(mod)
    planned = PlanMemory()(lifted)
    show("lifted and planned", planned)
    text = planned.script()
    assert text.count("cls.split_k_lifted, ") == 2
    assert 'workspace: T.Buffer((4, "n", 64), "float32")' in text
    assert "alloc_buffer" not in text.split("def split_k_lifted")[1]
    plan = memory_plan(mod, sizes={"n": 100})["main"]
    without = memory_plan(
        mod, sizes={"n": 100}, pipeline=default_pipeline(without=["lift-workspace"])
    )["main"]
    floats = 4 * 100 * 64 * 4
    assert plan.workspace == floats
    # The kernels would allocate it beside the plan; in the plan a quarter of it is new, the rest is shared.
    assert plan.planned == without.planned + floats // 4
    assert plan.planned == plan.least
    x = np.linspace(-1, 1, n * 64, dtype=np.float32).reshape(n, 64)
    w = np.linspace(-1, 1, 256 * 64, dtype=np.float32).reshape(256, 64)
    wide = np.cumsum(np.concatenate([x] * 4, 1), 0)
    lv1 = np.cumsum(wide @ w, 0)
    expected = np.concatenate([lv1] * 4, 1) @ w
    for check in (False, True):
        vm = relaxpy.VirtualMachine(relaxpy.build(mod), check_memory=check)
        np.testing.assert_allclose(vm["main"](x, w).numpy(), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("function", "bounds", "most"),
    [
        ("prefill", {"batch": 1, "seq": 1024}, 110.0),
        ("decode", {"batch": 64, "past": 1024}, 88.2),
    ],
)
def test_table_2(function: str, bounds: dict[str, int], most: float) -> None:
    """The plan of Llama3-8B in fp16, which is the same for two layers as for 32: intermediate values and the logits in
    MiB (the paper: 149.7 and 88.2). `benchmarks/memory.py --only table2` shows all of it."""
    config = llama.LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=2, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, dtype="float16",
    )  # fmt: skip
    mod, _ = llama.Llama(config).export({function: llama.spec(config)[function]})
    plan = memory_plan(mod, bounds=bounds)[function]
    logits = bounds["batch"] * config.vocab_size * 4
    assert plan.planned <= 1.02 * plan.least
    assert (plan.planned + logits) / (1 << 20) <= most
