"""One file with kernels for several processors: each is run, and gives the same numbers."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import ExecutableError
from relaxpy.models.bert import SPEC, TINY, BertEncoder
from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.executable import Executable
from relaxpy.testing.differential import outcome_of
from relaxpy.testing.fuzz import calls_of
from relaxpy.testing.interpret import interpret
from relaxpy.testing.random_program import random_program
from relaxpy.transform import BindParams
from relaxpy.transform.base import PassContext
from tests.sweeps import full, part, quick_target, sweep

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="x86 processors"
)

TWO = "llvm -mcpu=x86-64-v3,x86-64-v4"
THREE = "llvm -mcpu=x86-64-v2,x86-64-v3,x86-64-v4"
MASKS = {"x86-64-v4": (), "x86-64-v3": ("avx512f",), "x86-64-v2": ("avx2",)}
"""What a machine must not use for these kernels to run."""


def machines(exe: Executable) -> dict[str, VirtualMachine]:
    """A machine for each processor of the file that is like this one's."""
    found = {}
    for requirement in exe.requirements:
        try:
            vm = VirtualMachine(exe, without_features=MASKS[requirement.name])
        except ExecutableError:
            continue
        if vm.images == (requirement.name,):
            found[requirement.name] = vm
    assert found, "this machine runs none"
    return found


def reloaded(exe: Executable, folder: Path) -> Executable:
    exe.save(folder / "variants.rxe")
    return relaxpy.load(folder / "variants.rxe")


def registers(code: bytes, folder: Path) -> str:
    """The disassembly of an object file."""
    objdump = shutil.which("objdump") or shutil.which("llvm-objdump")
    if objdump is None:
        pytest.skip("objdump shows which registers a kernel uses")
    (folder / "kernel.o").write_bytes(code)
    command = [objdump, "-d", str(folder / "kernel.o")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@full
def test_a_transformer_runs_with_each(tmp_path: Path) -> None:
    """The encoder of MiniLM, small; weights are packed once, for all. Quickly compiled, unless the sweep is in full."""
    rng = np.random.default_rng(0)
    model = BertEncoder(TINY)
    model.load(
        {
            name: rng.standard_normal(weight.shape).astype(np.float32) * 0.2
            for name, weight in model.named_tensors()
        }
    )
    mod, params = model.export(SPEC)
    exe = reloaded(relaxpy.build(mod, quick_target(TWO), params=params), tmp_path)
    assert [r.name for r in exe.requirements] == ["x86-64-v4", "x86-64-v3"]
    assert all(len(info.images) == 2 for info in exe.kernels)
    assert any("packed" in info.name for info in exe.kernels)
    bound = BindParams().run(mod, PassContext(params=params))
    found = machines(exe)
    for batch, seq in ((1, 1), (2, 7), (3, 16), (1, 33)):
        ids = rng.integers(0, TINY.vocab_size, (batch, seq))
        mask = np.ones_like(ids)
        wanted = interpret(bound, "embed", ids, mask)
        for name, vm in found.items():
            got = vm["embed"](ids, mask).numpy()
            np.testing.assert_allclose(got, wanted, atol=2e-5, rtol=0, err_msg=name)


def test_the_code_is_for_each_processor(tmp_path: Path) -> None:
    """AVX-512's registers are in the images for it and in no others."""
    text = """
@R.function
def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 96), "float32")):
    y = R.nn.softmax(R.matmul(x, w))
    return y
"""
    w = np.zeros((64, 96), np.float32)
    exe = relaxpy.build(relaxpy.parse(text), target=THREE, params={"w": w})
    for info in exe.kernels:
        wide, middle, narrow = (registers(exe.objects[i.object], tmp_path) for i in info.images)
        assert "%zmm" in wide
        assert "%zmm" not in middle
        assert "%ymm" in middle
        assert "%ymm" not in narrow
        assert "%xmm" in narrow


def test_one_processor_is_compiled_for_as_before() -> None:
    """What a kernel is does not depend on what else there is kernels for, where no weights are packed."""
    text = """
@R.function
def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, "m"), "float32")):
    y = R.nn.softmax(R.matmul(x, w))
    return y
"""
    mod = relaxpy.parse(text)
    both = relaxpy.build(mod, target=TWO)
    for number, name in enumerate(("x86-64-v4", "x86-64-v3")):
        alone = relaxpy.build(mod, target=f"llvm -mcpu={name}")
        own = [info.images[number] for info in both.kernels]
        assert [i.symbol for i in own] == [info.image.symbol for info in alone.kernels]
        assert {both.objects[i.object] for i in own} == {
            alone.objects[info.image.object] for info in alone.kernels
        }


@sweep(3)
@pytest.mark.parametrize("columns", part([24, 16, 130, 80, 96], 2))
def test_packed_weights(columns: int, tmp_path: Path) -> None:
    """Panels of a product, tiles of a convolution: one layout that each reads."""
    text = f"""
@R.function
def main(x: R.Tensor(("n", 19), "float32"), w: R.Tensor((19, {columns}), "float32"),
         v: R.Tensor(({columns}, 19), "float32"), d: R.Tensor((19, {columns}), "float64"),
         k: R.Tensor((20, 3, 3, 3), "float32"), i: R.Tensor(("n", 3, 9, 11), "float32")):
    a = R.nn.relu(R.matmul(x, w))
    b = R.linear(x, v)
    c = R.matmul(R.astype(x, "float64"), d)
    e = R.nn.conv2d(i, k, padding=1)
    return (a, b, c, e, R.sum(a, axis=0))
"""
    rng = np.random.default_rng(columns)
    shapes = {"w": (19, columns), "v": (columns, 19), "d": (19, columns), "k": (20, 3, 3, 3)}
    params = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    params["d"] = params["d"].astype(np.float64)
    mod = relaxpy.parse(text)
    exe = reloaded(relaxpy.build(mod, quick_target(THREE), params=params), tmp_path)
    bound = BindParams().run(mod, PassContext(params=params))
    for n in (0, 1, 2, 4, 5, 8, 9, 50):
        x = rng.standard_normal((n, 19)).astype(np.float32)
        i = rng.standard_normal((n, 3, 9, 11)).astype(np.float32)
        wanted = interpret(bound, "main", x, i)
        for name, vm in machines(exe).items():
            for got, each in zip(vm["main"](x, i), wanted, strict=True):
                np.testing.assert_allclose(
                    got.numpy(), each, rtol=1e-4, atol=1e-4, err_msg=f"{name}, {n} rows"
                )


def test_weights_that_are_read_in_different_groups_are_not_packed() -> None:
    """One processor multiplies four bytes at a time, the other does not."""
    text = """
@R.function
def main(x: R.Tensor(("n", 32), "uint8"), w: R.Tensor((32, 64), "int8")):
    y = R.matmul(x, w, out_dtype="int32")
    return y
"""
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, (32, 64)).astype(np.int8)
    x = rng.integers(0, 256, (9, 32)).astype(np.uint8)
    target = "llvm -mcpu=x86-64-v3; llvm -mcpu=x86-64-v4 -mattr=+avx512vnni"
    exe = relaxpy.build(relaxpy.parse(text), target=target, params={"w": w})
    (info,) = exe.kernels
    assert "packed" not in info.name
    for without in ((), ("avx512f",)):
        try:
            vm = VirtualMachine(exe, without_features=without)
        except ExecutableError:
            continue
        np.testing.assert_array_equal(
            vm["main"](x).numpy(), x.astype(np.int32) @ w.astype(np.int32)
        )


@sweep
@pytest.mark.parametrize("seed", part(range(4), 2))
def test_random_programs(seed: int) -> None:
    program = random_program(seed)
    exe = relaxpy.build(program.mod, target=TWO)
    for name, vm in machines(exe).items():
        for call in calls_of(program):
            problem = call.disagreement(outcome_of(vm, call))
            assert not problem, f"{name}: {problem}"
