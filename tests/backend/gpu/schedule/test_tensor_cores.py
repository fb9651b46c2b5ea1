"""Products of matrices on CUDA: tensor cores for many rows of narrow numbers, vectors for few, on the emulated driver."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.backend.gpu.schedule.tensor_cores import TileShape
from relaxpy.backend.registry import backend_of
from relaxpy.build.tune import Tuner
from relaxpy.build.tuning import TuningRecords
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.tuned import FamilyRecord
from tests.e2e.devices import machine
from tests.runtime.devices.cuda import compiled as cuda
from tests.sweeps import full, part, sweep

pytestmark = cuda.needs_cuda
DTYPES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "int8": np.int8,
    "float32": np.float32,
}
TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "int8": 0, "float32": 2e-6}
"""Relative to the largest result."""


assembled = cuda.assembled


@pytest.fixture(scope="module", autouse=True)
def device() -> Iterator[None]:
    with cuda.emulated_compiled():
        yield


def program(op: str, dtype: str, depth: int, columns: int, after: str = "y") -> relaxpy.IRModule:
    """`op` of any number of rows, and what follows it."""
    weight = (columns, depth) if op == "linear" else (depth, columns)
    out = ', out_dtype="int32"' if dtype == "int8" else ""
    return relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n", {depth}), "{dtype}"), w: R.Tensor({weight}, "{dtype}")):
    y = R.{op}(x, w{out})
    z = {after}
    return z
""")


def given(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return rng.standard_normal(shape, np.float32).astype(DTYPES[dtype])


def code(mod: relaxpy.IRModule, target: str = "cuda -arch=compute_80") -> bytes:
    return b"".join(Image.decode(data).code for data in relaxpy.build(mod, target).objects)


@sweep(4)
@pytest.mark.parametrize(
    ("op", "dtype", "depth", "columns"),
    [
        ("linear", "float16", 128, 64),
        ("linear", "bfloat16", 200, 70),
        ("linear", "int8", 144, 40),
        ("linear", "float32", 36, 130),
        ("matmul", "float16", 37, 33),  # neither aligned nor along the depth
        ("matmul", "bfloat16", 0, 9),
        ("matmul", "int8", 1, 1),
    ],
)
def test_numbers(op: str, dtype: str, depth: int, columns: int) -> None:
    """Rows for every program, and one beside each of their limits."""
    vm = machine(program(op, dtype, depth, columns), cuda.TARGET)
    rng = np.random.default_rng(0)
    w = given(rng, (columns, depth) if op == "linear" else (depth, columns), dtype)
    wide = np.int64 if dtype == "int8" else np.float64
    for rows in (0, 1, 4, 5, 64, 65, 130):
        x = given(rng, (rows, depth), dtype)
        wanted = x.astype(wide) @ (w.T if op == "linear" else w).astype(wide)
        found = vm["main"](x, w).numpy().astype(wide)
        assert found.shape == wanted.shape
        bound = TOLERANCE[dtype] * np.abs(wanted).max(initial=1)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)


def test_what_follows() -> None:
    """A bias and an activation, in the same launch."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 64), "float16"), w: R.Tensor((48, 64), "float16"), b: R.Tensor((48,), "float16")):
    y = R.nn.relu(R.add(R.linear(x, w), b))
    return y
""")
    vm = machine(mod, cuda.TARGET)
    assert len(vm.executable.kernels) == 1
    rng = np.random.default_rng(1)
    x, w, b = (given(rng, shape, "float16") for shape in ((70, 64), (48, 64), (48,)))
    wanted = np.maximum(x.astype(np.float32) @ w.T.astype(np.float32) + b, 0)
    np.testing.assert_allclose(vm["main"](x, w, b).numpy(), wanted, rtol=2e-3, atol=2e-2)


def _settings() -> list[dict[str, int | str]]:
    """Settings in which each value of each knob occurs."""
    target = relaxpy.Target.parse(cuda.TARGET)
    (program_,) = Tuner(program("linear", "float16", 48, 70), [{"n": 1}], target).programs.values()
    knobs = backend_of(target).knobs(program_.func, target)["matmul"]
    assert {"few", "columns", "warps", "narrow_rows", "narrow_tile", "wide_tile"} == {*knobs}
    count = max(map(len, knobs.values()))
    return [{name: v[i % len(v)] for name, v in knobs.items()} for i in range(count)]


@full
def test_every_setting() -> None:
    """The numbers are right for few rows and for many, whatever the tiles."""
    mod = program("linear", "float16", 48, 70)
    target = relaxpy.Target.parse(cuda.TARGET)
    rng = np.random.default_rng(0)
    x, w = given(rng, (130, 48), "float16"), given(rng, (70, 48), "float16")
    wanted = x.astype(np.float32) @ w.T.astype(np.float32)
    (kernel,) = Tuner(mod, [{"n": 1}], target).programs.values()
    family = backend_of(target).family(kernel.func, target)
    for choices in part(_settings(), 4):
        record = FamilyRecord(str(target), family, choices, "linear", "none", "none")
        records = TuningRecords(families={record.key: record})
        exe = relaxpy.build(mod, target, tuning=records, cache=False)
        vm = relaxpy.VirtualMachine(exe)
        for rows in (1, 17, 130):
            found = vm["main"](x[:rows], w).numpy().astype(np.float32)
            bound = TOLERANCE["float16"] * np.abs(wanted).max()
            np.testing.assert_allclose(
                found, wanted[:rows], rtol=0, atol=bound, err_msg=str(choices)
            )


def test_factors_are_copied_past_the_registers() -> None:
    """Where reads of 16 bytes are aligned: of rows along the depth whose length is a multiple of them."""
    for op, depth, copies in (("linear", 128, True), ("linear", 132, False), ("matmul", 128, True)):
        text = code(program(op, "float16", depth, 64)).decode()
        assert ("cp.async.cg.shared.global" in text.partition(".visible")[2]) == copies
        assert "ldmatrix" in text


def test_a_computed_factor_beside_one_that_is_copied() -> None:
    """A weight of 8 bits is made float16 on the way; the other factor is copied. Several blocks of the depth."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 144), "float16"), w: R.Tensor((40, 144), "int8")):
    y = R.linear(x, R.astype(w, "float16"))
    return y
""")
    vm = machine(mod, cuda.TARGET)
    assert len(vm.executable.kernels) == 1
    rng = np.random.default_rng(2)
    w = given(rng, (40, 144), "int8")
    for rows in (1, 65, 130):
        x = given(rng, (rows, 144), "float16")
        wanted = x.astype(float) @ w.astype(float).T
        bound = TOLERANCE["float16"] * np.abs(wanted).max()
        found = vm["main"](x, w).numpy().astype(float)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)


def test_a_tile_fits() -> None:
    """Squares of warps and reads of threads are whole, and shared memory suffices."""
    assert TileShape(64, 32, 64, 2).fits(8)
    assert not TileShape(16, 32, 64, 1).fits(8)  # a warp would have 4 columns
    assert TileShape(16, 32, 64, 1).fits(4)
    assert not TileShape(64, 32, 8, 2).fits(8)  # threads without a read
    assert not TileShape(64, 32, 64, 3).fits(8)
    assert not TileShape(128, 128, 64, 2).fits(8)  # 69 KiB
    assert TileShape(128, 128, 16, 2).stages == 2
    assert TileShape(128, 128, 32, 2).stages == 1


def test_batches() -> None:
    """Each product of a batch has tiles of its own."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("b", "n", 32), "bfloat16"), y: R.Tensor(("b", 32, "m"), "bfloat16")):
    z = R.matmul(x, y)
    return z
""")
    vm = machine(mod, cuda.TARGET)
    rng = np.random.default_rng(2)
    for b, n, m in ((3, 66, 10), (2, 5, 130), (1, 2, 1), (0, 3, 3)):
        x, y = given(rng, (b, n, 32), "bfloat16"), given(rng, (b, 32, m), "bfloat16")
        wanted = x.astype(np.float32) @ y.astype(np.float32)
        found = vm["main"](x, y).numpy().astype(np.float32)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-2 * np.abs(wanted).max(initial=1))


def test_equal_bits_in_any_batch() -> None:
    """With `-batch-invariant=1`, a row among others is the row alone, in every shape of tiles."""
    vm = machine(program("linear", "float16", 80, 40), f"{cuda.TARGET} -batch-invariant=1")
    rng = np.random.default_rng(3)
    x, w = given(rng, (150, 80), "float16"), given(rng, (40, 80), "float16")
    all_rows = vm["main"](x, w).numpy()
    for rows in (1, 3, 64, 65):
        np.testing.assert_array_equal(vm["main"](x[:rows], w).numpy(), all_rows[:rows])


@sweep(3)
@pytest.mark.parametrize(
    ("dtype", "instruction"),
    [
        ("float16", b"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
        ("bfloat16", b"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
        ("int8", b"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"),
    ],
)
def test_instructions(dtype: str, instruction: bytes) -> None:
    """The code has them, and reads 16 bytes at once."""
    found = code(program("linear", dtype, 256, 64))
    assert instruction in found
    assert b"ld.global.v4." in found


@pytest.mark.parametrize(
    ("dtype", "target"),
    [("float32", "cuda -arch=compute_80"), ("float16", "cuda -arch=compute_80 -threads=128")],
)
def test_products_without_tensor_cores(dtype: str, target: str) -> None:
    """float32 is not rounded, and an instruction is for groups of 256 threads."""
    assert b"mma.sync" not in code(program("linear", dtype, 64, 64), target)


@pytest.mark.usefixtures("assembled")
@pytest.mark.parametrize("arch", part(["sm_80", "sm_90"], 2))
def test_registers(arch: str) -> None:
    """Nothing is spilled in the shapes of a Llama, and two groups fit a multiprocessor; with a short depth, too, whose
    blocks the compiler would unroll."""
    for depth, columns in ((4096, 14336), (512, 2048)):
        mod = program("linear", "bfloat16", depth, columns, "R.nn.silu(y)")
        (image,) = (Image.decode(o) for o in relaxpy.build(mod, f"cuda -arch={arch}").objects)
        assert image.resources["spills"] == image.resources["stack"] == 0
        assert image.resources["registers"] <= 128
        assert image.resources["shared"] <= 48 * 1024
