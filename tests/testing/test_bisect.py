"""bisect: planted mistakes are found, and nothing is found where there is none."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import UsageError
from relaxpy.ir.expr import Call, Constant, VarBinding
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Rewriter
from relaxpy.op.binary import Add, Subtract
from relaxpy.testing import bisect as module
from relaxpy.testing.bisect import KERNELS, bisect
from relaxpy.testing.kernels import Kernels
from relaxpy.transform.base import Pass, PassContext

MOD = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4, 4), dtype="float32")):
        a = R.exp(x)
        b = R.matmul(a, w)
        c = R.add(b, x)
        d = R.nn.softmax(c)
        return d
""")
X = np.random.default_rng(0).uniform(-1, 1, (3, 4)).astype(np.float32)
W = np.random.default_rng(1).uniform(-1, 1, (4, 4)).astype(np.float32)


@dataclass(frozen=True)
class SubtractsInstead(Pass):
    """Wrong: `add` becomes `subtract`."""

    name: ClassVar[str] = "subtracts-instead"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return mod.map_graph_functions(lambda _, f: _Subtract().rewrite(f))


class _Subtract(Rewriter):
    def rewrite_Call(self, node: Call) -> Call:
        return dataclasses.replace(node, op=Subtract()) if isinstance(node.op, Add) else node


@dataclass(frozen=True)
class Forgets(Pass):
    """Wrong: bindings of `exp` go, their uses stay."""

    name: ClassVar[str] = "forgets"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return mod.map_graph_functions(
            lambda _, f: dataclasses.replace(
                f, body=dataclasses.replace(f.body, blocks=f.body.blocks[1:])
            )
        )


@dataclass(frozen=True)
class Crashes(Pass):
    """Wrong: it does not end well."""

    name: ClassVar[str] = "crashes"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        raise ZeroDivisionError("oh")


def test_nothing_is_wrong() -> None:
    assert bisect(MOD, "main", [X, W]) is None
    assert bisect(MOD, "main", [X], params={"w": W}) is None


@pytest.mark.parametrize("place", ["normalize", "legalize-ops"])
def test_a_wrong_pass_is_named_with_the_variable(place: str) -> None:
    finding = bisect(
        MOD, "main", [X, W], pipeline=default_pipeline().before(place, SubtractsInstead())
    )
    assert finding is not None
    assert finding.step.name == "subtracts-instead"
    assert finding.before.name != "subtracts-instead"
    assert finding.function == "main"
    assert finding.binding is not None
    assert finding.binding.var.name == "c"
    text = str(finding)
    assert "wrong after subtracts-instead" in text
    assert "before: c = R.add(b, x)" in text
    assert "after:  c = R.subtract(b, x)" in text
    assert str(finding.binding.span) in text


def test_a_pass_that_comes_late() -> None:
    """After memory is planned a variable is memory that a tensor program writes."""

    @dataclass(frozen=True)
    class WrongConstant(Pass):
        name: ClassVar[str] = "wrong-constant"

        def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
            class Change(Rewriter):
                def rewrite_Constant(self, node: Constant) -> Constant:
                    return Constant(np.asarray(node.data) * 2)

            return mod.map_graph_functions(lambda _, f: Change().rewrite(f))

    pipeline = default_pipeline().without("pack-weights").after("plan-memory", WrongConstant())
    finding = bisect(MOD, "main", [X], params={"w": W}, pipeline=pipeline)
    assert finding is not None
    assert finding.step.name == "wrong-constant"
    assert finding.binding is not None
    assert isinstance(finding.binding, VarBinding)
    assert "matmul" in finding.program


def test_a_module_that_is_not_well_formed() -> None:
    finding = bisect(MOD, "main", [X, W], pipeline=default_pipeline().after("normalize", Forgets()))
    assert finding is not None
    assert finding.step.name == "forgets"


def test_a_pass_that_crashes() -> None:
    finding = bisect(MOD, "main", [X, W], pipeline=default_pipeline().after("fuse-ops", Crashes()))
    assert finding is not None
    assert finding.step.name == "crashes"
    assert "ZeroDivisionError: oh" in finding.problem


def test_a_mistake_before_the_pass_that_crashes() -> None:
    pipeline = default_pipeline().after("fuse-ops", Crashes())
    pipeline = pipeline.before("legalize-ops", SubtractsInstead())
    finding = bisect(MOD, "main", [X, W], pipeline=pipeline)
    assert finding is not None
    assert finding.step.name == "subtracts-instead"


def test_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that are wrong only in compiled code: a schedule's mistake."""
    run = Kernels.run

    def wrong(self: Kernels, name: str, inputs: object, outputs: object, scalars: object) -> None:
        run(self, name, inputs, outputs, scalars)  # type: ignore[arg-type]
        if "softmax" in name:
            outputs[-1][...] += 1  # type: ignore[index]

    monkeypatch.setattr(module.Kernels, "run", wrong)
    finding = bisect(MOD, "main", [X, W])
    assert finding is not None
    assert finding.step.name == KERNELS
    assert "softmax" in finding.function


def test_a_call_that_does_not_fit() -> None:
    with pytest.raises(UsageError, match="lacks w"):
        bisect(MOD, "main", [X])
