"""Products by cuBLASLt, on the emulated driver and an emulation of the library."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import ExecutableError, RuntimeCheckError
from relaxpy.runtime import Executable, VirtualMachine
from relaxpy.runtime.devices.cuda import cublas
from relaxpy.runtime.devices.cuda import library as libraries
from relaxpy.runtime.dtype import to_numpy
from tests.models.test_llama_step import CONFIGS, Served
from tests.runtime.devices.cuda import compiled
from tests.runtime.devices.cuda.emulation import emulated_library
from tests.sweeps import FULL, full, part, sweep

pytestmark = compiled.needs_cuda
TARGET = f"{compiled.TARGET} -libs=cublas"
DEPTH, COLUMNS = 40, 24
LEAST = {"float32": 5, "float16": 2, "bfloat16": 2}
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
LAYERS = {
    "matmul": "R.matmul(x, v)",
    "matmul_nt": "R.linear(x, w)",
    "matmul_nt_bias": "R.linear(x, w, b)",
    "matmul_bias": "R.add(b, R.matmul(x, v))",
    "matmul_relu": "R.nn.relu(R.matmul(x, v))",
    "matmul_bias_relu": "R.nn.relu(R.add(R.matmul(x, v), b))",
    "matmul_nt_bias_gelu_tanh": "R.nn.gelu_tanh(R.linear(x, w, b))",
    "matmul_nt_relu": "R.nn.relu(R.matmul(x, R.permute_dims(w)))",
    "matmul_residual": "R.add(r, R.matmul(x, v))",
    "matmul_nt_bias_residual": "R.add(R.linear(x, w, b), r)",
    "matmul_nt_bias_residual_relu": "R.nn.relu(R.add(R.linear(x, w, b), r))",
}


def text(layer: str, dtype: str, shape: str = '"n", 40') -> str:
    return f"""
@R.function
def main(
    x: R.Tensor(({shape}), "{dtype}"), w: R.Tensor((24, 40), "{dtype}"),
    v: R.Tensor((40, 24), "{dtype}"), b: R.Tensor((24,), "{dtype}"), r: R.Tensor(({shape[:-4]}, 24), "{dtype}"),
):
    y = {layer}
    return y
"""


def built(layer: str, dtype: str, target: str = TARGET, **options: str) -> Executable:
    return relaxpy.build(relaxpy.parse(text(layer, dtype, **options)), target)


def arrays(dtype: str) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    w, b = (rng.standard_normal(shape) for shape in ((COLUMNS, DEPTH), (COLUMNS,)))
    return tuple(np.ascontiguousarray(each).astype(to_numpy(dtype)) for each in (w, w.T, b))


def rows(count: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, DEPTH)).astype(to_numpy(dtype))


def residual(x: np.ndarray) -> np.ndarray:
    return (
        np.linspace(-4, 4, x.size // DEPTH * COLUMNS)
        .reshape(*x.shape[:-1], COLUMNS)
        .astype(x.dtype)
    )


def expected(name: str, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    y = x.astype(float) @ w.astype(float).T
    y = y + residual(x).astype(float) if "_residual" in name else y
    y = y + b.astype(float) if "_bias" in name else y
    if "_gelu" in name:
        y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    return np.maximum(y, 0) if "_relu" in name else y


def check(vm: VirtualMachine, name: str, count: int, dtype: str) -> None:
    w, v, b = arrays(dtype)
    x = rows(count, dtype)
    got = vm(x, w, v, b, residual(x)).numpy().astype(float)
    near = TOLERANCE[dtype]
    np.testing.assert_allclose(got, expected(name, x, w, b), rtol=near, atol=near * 4)


@pytest.fixture
def library() -> Iterator[CDLL]:
    with compiled.emulated_compiled(), emulated_library("cublas") as found:
        yield found
        found.cublas_has_none(0)


NARROW = (
    LAYERS if FULL else ("matmul_bias_relu", "matmul_nt_bias_gelu_tanh", "matmul_nt_bias_residual")
)
CASES = [(name, dtype) for dtype in LEAST for name in (LAYERS if dtype == "float32" else NARROW)]


@sweep(2)
@pytest.mark.parametrize(("name", "dtype"), part(CASES, 3))
def test_products(library: CDLL, name: str, dtype: str) -> None:
    """Many rows are the library's, few the kernel's own, in one executable."""
    vm = VirtualMachine(built(LAYERS[name], dtype))
    (kernel,) = vm.executable.kernels
    assert f"cublas_{name}" in kernel.name
    least = LEAST[dtype]
    for count in (0, 1, least - 1):
        before = library.cublas_calls()
        check(vm, name, count, dtype)
        assert library.cublas_calls() == before
    for count in (least, least + 1, 131):
        before = library.cublas_calls()
        check(vm, name, count, dtype)
        assert library.cublas_calls() == before + 1


def test_several_dimensions_of_rows(library: CDLL) -> None:
    vm = VirtualMachine(built(LAYERS["matmul_nt_bias"], "float32", shape='"m", "n", 40'))
    w, v, b = arrays("float32")
    x = rows(6, "float32").reshape(2, 3, DEPTH)
    before = library.cublas_calls()
    got = vm(x, w, v, b, residual(x)).numpy()
    assert library.cublas_calls() == before + 1
    np.testing.assert_allclose(got, expected("_bias", x, w, b), rtol=1e-5, atol=1e-5)


def test_the_choice_is_kept(library: CDLL) -> None:
    vm = VirtualMachine(built(LAYERS["matmul"], "float32"))
    asked = library.cublas_asked()
    for count in (7, 9, 7, 9, 7):
        check(vm, "matmul", count, "float32")
    assert library.cublas_asked() == asked + 2


def test_old_choices_go(library: CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_MOST_PLANS", 2)
    vm = VirtualMachine(built(LAYERS["matmul_nt_bias"], "float32"))
    live = library.cublas_live()
    for count in (7, 8, 9, 10, 11, 7):
        check(vm, "matmul_nt_bias", count, "float32")
    gc.collect()
    assert library.cublas_live() <= live + 2 * 5


def test_nothing_is_left(library: CDLL) -> None:
    gc.collect()
    before = library.cublas_live()
    vm = VirtualMachine(built(LAYERS["matmul"], "float32"))
    check(vm, "matmul", 7, "float32")
    assert library.cublas_live() > before
    del vm
    gc.collect()
    assert library.cublas_live() == before


def test_without_an_algorithm_the_kernel_runs(library: CDLL) -> None:
    library.cublas_has_none(1)
    before = library.cublas_calls()
    vm = VirtualMachine(built(LAYERS["matmul_bias"], "float16"))
    for _ in range(2):
        check(vm, "matmul_bias", 70, "float16")
    assert library.cublas_calls() == before


TWO = """
@R.function
def main(x: R.Tensor(("n", 40), "float32"), w: R.Tensor((24, 40), "float32"), v: R.Tensor((24, 40), "float32")):
    y = R.nn.relu(R.linear(x, w))
    z = R.matmul(y, v)
    r = R.nn.softmax(R.add(z, x))
    return r
"""


def test_library_calls_are_recorded(library: CDLL) -> None:
    """In one graph with the kernels around them; a workspace is shared."""
    exe = relaxpy.build(relaxpy.parse(TWO), TARGET)
    vm = VirtualMachine(exe)
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal((24, 40), dtype=np.float32) for _ in range(2))
    there = vm.upload(w), vm.upload(v)
    for count in (9, 9, 9, 3, 9, 3):
        x = rng.standard_normal((count, 40), dtype=np.float32)
        before = library.cublas_calls()
        got = vm(x, *there).numpy()
        z = np.maximum(x @ w.T, 0) @ v + x
        power = np.exp(z - z.max(-1, keepdims=True))
        np.testing.assert_allclose(got, power / power.sum(-1, keepdims=True), rtol=1e-4, atol=1e-5)
        assert library.cublas_calls() - before == (2 if count > 4 else 0)
    assert vm.graphs.recordings == 2
    assert vm.graphs.replays == 4
    plan = exe.memory_plan(n=9)["main"]
    assert plan.planned < 33 << 20 < 64 << 20 < plan.unshared


def test_threads(library: CDLL) -> None:
    vm = VirtualMachine(built(LAYERS["matmul_nt_bias"], "float32"))

    def work(seed: int) -> None:
        for count in range(5, 25):
            check(vm, "matmul_nt_bias", count + seed, "float32")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


@pytest.mark.usefixtures("library")
def test_a_failure_is_told() -> None:
    """With the place in the program."""
    vm = VirtualMachine(built(LAYERS["matmul"], "float32"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libraries, "WORKSPACE_ALIGNMENT", 3 << 40)
        with pytest.raises(RuntimeCheckError, match="cuBLASLt: a workspace begins") as caught:
            check(vm, "matmul", 7, "float32")
    assert caught.value.code == "kernel-failed"
    assert caught.value.span is not None
    check(vm, "matmul", 7, "float32")


def test_without_the_library() -> None:
    with compiled.emulated_compiled():
        exe = built(LAYERS["matmul"], "float32")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cublas, "_paths", lambda: iter(["/nowhere/libcublasLt.so.13"]))
            cublas.library.cache_clear()
            with pytest.raises(ExecutableError, match=r"'cublas\.matmul' of cuBLASLt") as caught:
                VirtualMachine(exe)
        assert caught.value.code == "library-missing"
        assert "pip install 'relaxpy[cublas]'" in str(caught.value)
        cublas.library.cache_clear()


def test_batch_invariant_programs_call_no_library() -> None:
    with compiled.emulated_compiled():
        exe = built(LAYERS["matmul"], "float32", f"{TARGET} -batch-invariant=1")
        check(VirtualMachine(exe), "matmul", 9, "float32")
        assert all("cublas" not in kernel.name for kernel in exe.kernels)


@full
def test_a_decoder(library: CDLL) -> None:
    """A prompt is the library's, a token of one sequence is not; logits are those of transformers."""
    served = Served(CONFIGS["float32"], 3e-5, TARGET)
    text = np.arange(2, 14)
    wanted = served.expected(text)
    before = library.cublas_calls()
    name = served.book.add(text[:11])
    served.check(served.run({name: 11}, every=True), wanted[:11])
    products = library.cublas_calls() - before
    assert products == 7 * served.config.num_hidden_layers + 1
    served.book.append(name, text[11:])
    served.check(served.run({name: 1}), wanted[11:])
    assert library.cublas_calls() == before + products
