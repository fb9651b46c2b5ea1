"""The default pipeline: what belongs together is in order, and every optimisation can be left out by name."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import UsageError
from tests.sweeps import sweep

NECESSARY = {
    "bind-params",
    "normalize",
    "bind-unknown-shapes",
    "legalize-ops",
    "lambda-lift",
    "lower-call-tir",
    "lower-shapes",
}
OPTIMISATIONS = sorted({step.name for step in default_pipeline().passes} - NECESSARY)
PROGRAM = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 8), "float32")) -> R.Tensor(("n", 16), "float32"):
        a = R.nn.relu(R.matmul(x, w))
        b = R.nn.relu(R.matmul(x, w))
        c = R.exp(R.add(R.const(1.0, "float32"), R.const(1.0, "float32")))
        d = R.concat((R.multiply(a, c), b), axis=1)
        return d
""")


def test_names_are_told_apart() -> None:
    """A place in the pipeline is the name of a pass or of a phase."""
    phases = [phase.name for phase in default_pipeline().phases]
    assert len(set(phases)) == len(phases)
    assert not {step.name for step in default_pipeline().passes}.intersection(phases)


def test_passes_are_left_out_by_name() -> None:
    whole = default_pipeline().passes
    rest = default_pipeline(without=["pack-weights", "fuse-ops"]).passes
    assert [step for step in whole if step.name not in ("pack-weights", "fuse-ops")] == list(rest)
    assert len(rest) == len(whole) - 2


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="no pass 'pack-wights'") as error:
        default_pipeline(without=["pack-wights"])
    assert error.value.code == "unknown-pass"
    assert error.value.help == "did you mean 'pack-weights'?"


@sweep(2)
@pytest.mark.parametrize("off", [*OPTIMISATIONS, "all"])
def test_every_optimisation_can_be_left_out(off: str) -> None:
    """The program computes the same, with a bound and with a free parameter."""
    rng = np.random.default_rng(0)
    x, w = rng.random((3, 4), np.float32), rng.random((4, 8), np.float32)
    a = np.maximum(x @ w, 0)
    want = np.concatenate([a * np.exp(np.float32(2)), a], 1)
    pipeline = default_pipeline(without=OPTIMISATIONS if off == "all" else [off])
    quick = "llvm -opt-level=0"
    free = relaxpy.VirtualMachine(relaxpy.build(PROGRAM, quick, pipeline=pipeline))["main"](x, w)
    bound = relaxpy.build(PROGRAM, quick, params={"w": w}, pipeline=pipeline)
    for got in (free, relaxpy.VirtualMachine(bound)["main"](x)):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)


def test_repeated_work_is_done_once() -> None:
    assert [
        kernel.name for kernel in relaxpy.build(PROGRAM).kernels if "matmul" in kernel.name
    ] == ["fused_matmul_relu"]
    assert relaxpy.build(PROGRAM).as_text().count("fused_matmul_relu(") == 1
