"""`relaxpy.build`: what it takes, what it refuses, and that the same input gives the same bytes."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.build import kernels
from relaxpy.build.codegen import Program
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import BuildError, RelaxError
from relaxpy.ir import IRModule
from relaxpy.testing.interpret import interpret
from relaxpy.transform import Pass
from relaxpy.transform.base import PassContext, module_pass
from tests.sweeps import optimised

build = importlib.import_module("relaxpy.build.build")  # the function of that name hides the module

MLP = """
@R.function
def main(
    x: R.Tensor(("n", 16), dtype="float32"),
    w: R.Tensor((16, 24), dtype="float32"),
    b: R.Tensor((24,), dtype="float32"),
) -> R.Tensor(("n", 24), dtype="float32"):
    with R.dataflow():
        h = R.matmul(x, w)
        a = R.add(h, b)
        y = R.nn.gelu(a)
        z = R.nn.softmax(y, axis=-1)
        R.output(z)
    return z
"""


def arrays(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return tuple(rng.normal(size=s).astype("float32") for s in [(n, 16), (16, 24), (24,)])  # pyright: ignore[reportReturnType]


def test_one_executable_for_every_size() -> None:
    mod = relaxpy.parse(MLP)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    for n in (0, 1, 2, 7, 64, 129):
        x, w, b = arrays(n)
        np.testing.assert_allclose(
            vm["main"](x, w, b).numpy(), interpret(mod, "main", x, w, b), rtol=2e-5, atol=1e-6
        )


def test_every_pass_keeps_the_numbers() -> None:
    mod = relaxpy.parse(MLP)
    x, w, b = arrays(5)
    expected = interpret(mod, "main", x, w, b)
    names: list[str] = []

    def compare(_: int, step: Pass, __: IRModule, after: IRModule) -> None:
        names.append(step.name)
        np.testing.assert_allclose(
            interpret(after, "main", x, w, b), expected, rtol=1e-5, atol=1e-6
        )

    relaxpy.build(mod, instruments=[compare])
    assert names[0] == "bind-params"
    assert names[-1] == "lift-graphs"


def test_parameters_bound() -> None:
    x, w, b = arrays(3)
    mod = relaxpy.parse(MLP)
    exe = relaxpy.build(mod, params={"w": w, "main.b": b})
    out = relaxpy.VirtualMachine(exe)["main"](x)
    np.testing.assert_allclose(out.numpy(), interpret(mod, "main", x, w, b), rtol=2e-5, atol=1e-6)
    assert len(exe.constants) == 2


@pytest.mark.parametrize("target", ["llvm -mcpu=haswell", "llvm -mcpu=x86-64"])
def test_another_cpu(target: str) -> None:
    mod = relaxpy.parse(MLP)
    exe = relaxpy.build(mod, target=target)
    (requirement,) = exe.requirements
    features = set(requirement.features)
    assert "avx512f" not in features
    assert ("avx2" in features) == ("haswell" in target)
    x, w, b = arrays(9)
    np.testing.assert_allclose(
        relaxpy.VirtualMachine(exe)["main"](x, w, b).numpy(),
        interpret(mod, "main", x, w, b),
        rtol=2e-5,
        atol=1e-6,
    )


@optimised
def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "mlp.py").write_text("from relaxpy.script import relax as R\n" + MLP)
    program = "import sys, relaxpy; relaxpy.build(relaxpy.parse(open(sys.argv[1]).read())).save(sys.argv[2])"
    theirs, ours = tmp_path / "theirs.rxe", tmp_path / "ours.rxe"
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "mlp.py"), str(theirs)],
        check=True,
        env={"PYTHONHASHSEED": "1", "PATH": ""},
    )
    relaxpy.build(relaxpy.parse((tmp_path / "mlp.py").read_text()), cache=False).save(ours)
    assert theirs.read_bytes() == ours.read_bytes()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("lvm", "llvm"),
        ("llvm -mcpu=haswel", "haswell"),
        ("llvm -mattr=+avx51", "avx512"),
        ("llvm -speed=fast", "mcpu"),
    ],
)
def test_wrong_target(target: str, message: str) -> None:
    with pytest.raises(RelaxError, match=message):
        relaxpy.build(relaxpy.parse(MLP), target=target)


def test_a_target_that_is_no_text() -> None:
    with pytest.raises(RelaxError, match="a target is a string, got 3"):
        relaxpy.build(relaxpy.parse(MLP), target=3)  # pyright: ignore[reportArgumentType]


def test_not_a_module() -> None:
    with pytest.raises(RelaxError, match="a module is expected, got a text"):
        relaxpy.build("main")  # pyright: ignore[reportArgumentType]


def test_a_module_that_is_not_well_formed() -> None:
    mod = relaxpy.parse(MLP)
    function = mod.graph_functions["main"]
    (block,) = function.body.blocks
    import dataclasses

    cut = dataclasses.replace(block, bindings=block.bindings[1:])
    body = dataclasses.replace(function.body, blocks=(cut,))
    broken = mod.with_function("main", dataclasses.replace(function, body=body))
    with pytest.raises(RelaxError, match="h"):
        relaxpy.build(broken)


def test_passes_run_without_the_garbage_collector() -> None:
    """And a build that fails leaves it on."""
    seen: list[bool] = []

    def looking(fails: bool) -> Pass:
        @module_pass("looking")
        def look(mod: IRModule, ctx: PassContext) -> IRModule:
            seen.append(gc.isenabled())
            if fails:
                raise ValueError("inside")
            return mod

        return look

    mod = relaxpy.parse(MLP)
    pipeline = default_pipeline()
    relaxpy.build(mod, pipeline=pipeline.before("normalize", looking(False)), cache=False)
    with pytest.raises(RelaxError, match="inside"):
        relaxpy.build(mod, pipeline=pipeline.before("normalize", looking(True)), cache=False)
    assert seen == [False, False]
    assert gc.isenabled()


def test_kernels_compile_while_bytecode_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = threading.Event()
    own, generate = kernels._compile, build.generate  # pyright: ignore[reportPrivateUsage]

    def compiling(*args: Any) -> kernels.CompiledKernel:
        try:
            return own(*args)
        finally:
            compiled.set()

    def generating(*args: Any) -> Program:
        assert compiled.wait(60), "no kernel is compiled before there is bytecode"
        return generate(*args)

    monkeypatch.setattr(kernels, "_compile", compiling)
    monkeypatch.setattr(build, "generate", generating)
    report = relaxpy.build(relaxpy.parse(MLP), cache=False).build_report
    assert report is not None
    assert [name for name, _ in report.steps[-4:]] == ["schedule", "codegen", "listing", "kernels"]


def test_bytecode_that_cannot_be_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error ends the build, though kernels are being compiled."""

    def generating(*_: Any) -> Program:
        raise BuildError("not-lowered", "no instruction")

    monkeypatch.setattr(build, "generate", generating)
    with pytest.raises(BuildError, match="no instruction"):
        relaxpy.build(relaxpy.parse(MLP), cache=False)
