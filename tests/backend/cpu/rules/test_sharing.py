"""Programs whose kernels may hand memory on: told apart from those that never do."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.backend.cpu.rules import CPU_RULES
from relaxpy.backend.cpu.rules.sharing import may_have_workspaces
from relaxpy.backend.schedule import launches_by_rules
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform import FuseOps, FuseTensorIR, LegalizeOps
from relaxpy.transform.base import Sequential

HOST = Target.host()
NEVER = ("R.nn.relu(R.exp(x))", "R.nn.softmax(x)", "R.nn.gelu(R.matmul(x, x))", "R.permute_dims(x)")
WIDE = "R.broadcast_to(R.reshape(x, R.shape([n * n, 1])), R.shape([n * n, 20000]))"
SOMETIMES = (
    "R.nn.softmax(x, axis=0)",
    "R.sum(x)",
    "R.sort(R.reshape(x, R.shape([n * n])))",
    f"R.nn.softmax({WIDE})",
    f"R.max({WIDE}, axis=-1)",
)


def programs(call: str) -> list[PrimFunc]:
    mod = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n", "n"), "float32")):
    n = T.int64()
    with R.dataflow():
        y = {call}
        R.output(y)
    return y
""")
    found = Sequential((LegalizeOps(), FuseOps(), FuseTensorIR()))(mod).prim_funcs.values()
    return [program for program in found if isinstance(program, PrimFunc)]


@pytest.mark.parametrize("call", NEVER)
def test_never(call: str) -> None:
    for program in programs(call):
        assert not may_have_workspaces(program.func)
        assert launches_by_rules(program, HOST, CPU_RULES) is None


@pytest.mark.parametrize("call", SOMETIMES)
def test_sometimes(call: str) -> None:
    found = [launches_by_rules(program, HOST, CPU_RULES) for program in programs(call)]
    asked = [may_have_workspaces(program.func) for program in programs(call)]
    assert any(launches is not None for launches in found)
    assert all(may for may, launches in zip(asked, found, strict=True) if launches is not None)
