"""Convolutions by cuDNN, on the emulated driver and an emulation of the library."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cuda import cudnn as patterns
from relaxpy.errors import ExecutableError, RuntimeCheckError
from relaxpy.models.resnet import TINY, ResNet, spec
from relaxpy.op.conv import Conv2d
from relaxpy.op.data_layout import padding_pairs
from relaxpy.runtime import Executable, VirtualMachine
from relaxpy.runtime.devices.cuda import cudnn
from relaxpy.runtime.devices.cuda import library as libraries
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.dtype import to_numpy
from tests.runtime.devices.cuda import compiled
from tests.runtime.devices.cuda.emulation import emulated_library
from tests.sweeps import full, quick_target, sweep

pytestmark = compiled.needs_cuda
TARGET = f"{compiled.TARGET} -libs=cudnn"
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
LEAST = 30_000
"""Multiplications, in the place of the target's threshold: images are small here."""
LAYERS = {
    "conv2d": "c",
    "conv2d_bias": "R.add(c, b)",
    "conv2d_bias_relu": "R.nn.relu(R.add(c, b))",
    "conv2d_bias_residual": "R.add(r, R.add(b, c))",
    "conv2d_bias_residual_relu": "R.nn.relu(R.add(R.add(c, b), r))",
}
WINDOWS: list[dict[str, Any]] = [
    {"padding": 1},
    {"padding": (0, 1, 2, 0), "strides": (2, 1), "dilation": (1, 2)},
    {"padding": 1, "groups": 2},
    {"padding": 2, "strides": 2, "data_layout": "NHWC", "kernel_layout": "OHWI"},
    {},
]


class Layer:
    """A convolution of images of 8 channels by a weight of 6 × 3 × 2, or 6 × 1 × 1, and what follows it."""

    def __init__(self, name: str, dtype: str, window: dict[str, Any]) -> None:
        self.name, self.dtype, self.op = name, dtype, Conv2d(**window)
        self.kernel = (1, 1) if not window else (3, 2)
        self.is_last = self.op.data_layout == "NHWC"
        inner = 8 // self.op.groups
        shape = (6, *self.kernel, inner) if self.is_last else (6, inner, *self.kernel)
        rng = np.random.default_rng(0)
        self.w = rng.standard_normal(shape).astype(to_numpy(dtype))
        self.b = rng.standard_normal((6,) if self.is_last else (1, 6, 1, 1)).astype(to_numpy(dtype))
        self.options = ", ".join(f"{key}={value!r}" for key, value in window.items())

    def text(self) -> str:
        def tensor(dims: object) -> str:
            return f'R.Tensor({dims}, "{self.dtype}")'

        x = ("n", "h", "w", 8) if self.is_last else ("n", 8, "h", "w")
        pads = [sum(pair) for pair in padding_pairs(self.op.padding, 2)]
        i, j = (
            f"({letter.lower()} + {pad - (size - 1) * dilation - 1}) // {stride} + 1"
            for (letter, stride, dilation), pad, size in zip(
                self.op.per_letter(), pads, self.kernel, strict=True
            )
        )
        r = ("n", i, j, 6) if self.is_last else ("n", 6, i, j)
        return f"""
@R.function
def main(x: {tensor(x)}, w: {tensor(self.w.shape)}, b: {tensor(self.b.shape)}, r: {tensor(r)}):
    c = R.nn.conv2d(x, w, {self.options})
    y = {LAYERS[self.name]}
    return y
"""

    def built(self, target: str = TARGET) -> Executable:
        return relaxpy.build(relaxpy.parse(self.text()), target)

    def image(self, *sizes: int) -> np.ndarray:
        n, h, w = sizes
        rng = np.random.default_rng(n)
        shape = (n, h, w, 8) if self.is_last else (n, 8, h, w)
        return rng.standard_normal(shape).astype(to_numpy(self.dtype))

    def check(self, vm: VirtualMachine, *sizes: int) -> None:
        x = self.image(*sizes)
        # The reference for narrow floats is that of float64.
        y = self.op.reference(x.astype(float), self.w.astype(float))
        r = np.linspace(-3, 3, y.size).reshape(y.shape).astype(to_numpy(self.dtype))
        if "_bias" in self.name:
            y = y + self.b.astype(float)
        if "_residual" in self.name:
            y = y + r.astype(float)
        if "_relu" in self.name:
            y = np.maximum(y, 0)
        got = vm(x, self.w, self.b, r).numpy().astype(float)
        near = TOLERANCE[self.dtype]
        np.testing.assert_allclose(got, y, rtol=near, atol=near * 8)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[CDLL]:
    monkeypatch.setattr(patterns, "_LEAST", LEAST)
    with compiled.emulated_compiled(), emulated_library("cudnn") as found:
        yield found
        found.cudnn_has_none(0)
        found.cudnn_fails(0)


CASES = [
    *((name, "float32", WINDOWS[0]) for name in LAYERS),
    *(("conv2d_bias_residual_relu", dtype, WINDOWS[0]) for dtype in ("float16", "bfloat16")),
    *(("conv2d_bias_relu", "float32", window) for window in WINDOWS[1:]),
    ("conv2d_bias_residual", "float16", WINDOWS[3]),
]


@sweep(2)
@pytest.mark.parametrize(("name", "dtype", "window"), CASES)
def test_convolutions(library: CDLL, name: str, dtype: str, window: dict[str, Any]) -> None:
    """Large ones are the library's, others the kernel's own, in one executable and one launch."""
    layer = Layer(name, dtype, window)
    vm = VirtualMachine(layer.built())
    (kernel,) = vm.executable.kernels
    assert f"cudnn_{name}" in kernel.name
    for sizes in ((0, 5, 6), (1, 5, 3), (2, 3, 6)):
        before = library.cudnn_calls()
        layer.check(vm, *sizes)
        assert library.cudnn_calls() == before
    for sizes in ((2, 29, 23), (1, 64, 30)):
        before = library.cudnn_calls()
        layer.check(vm, *sizes)
        assert library.cudnn_calls() == before + 1
        assert library.cudnn_uses_tensor_cores() == (dtype != "float32")


def test_the_threshold() -> None:
    """Without another one: 2^22 multiplications."""
    with compiled.emulated_compiled(), emulated_library("cudnn") as library:
        layer = Layer("conv2d", "float32", {})
        vm = VirtualMachine(layer.built())
        rows = patterns._LEAST // (6 * 8)
        for count, calls in ((rows, 0), (rows + 1, 1)):
            before = library.cudnn_calls()
            layer.check(vm, 1, count, 1)
            assert library.cudnn_calls() - before == calls


def test_a_residual_that_is_the_image(library: CDLL) -> None:
    """One argument has two places in the call."""
    text = """
@R.function
def main(x: R.Tensor(("n", 4, 6, 6), "float32"), w: R.Tensor((4, 4, 3, 3), "float32"), b: R.Tensor((4, 1, 1), "float32")):
    y = R.nn.relu(R.add(R.add(R.nn.conv2d(x, w, padding=1), b), x))
    return y
"""
    vm = VirtualMachine(relaxpy.build(relaxpy.parse(text), TARGET))
    rng = np.random.default_rng(0)
    w, b = (rng.standard_normal(s, dtype=np.float32) for s in ((4, 4, 3, 3), (4, 1, 1)))
    for n, calls in ((1, 0), (7, 1)):
        x = rng.standard_normal((n, 4, 6, 6), dtype=np.float32)
        before = library.cudnn_calls()
        got = vm(x, w, b).numpy()
        wanted = np.maximum(Conv2d(padding=1).reference(x, w) + b + x, 0)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
        assert library.cudnn_calls() - before == calls


def test_the_kernel_has_to_fit_into_the_image(library: CDLL) -> None:
    """The check of a size that is not known stands before the launch, with its place."""
    layer = Layer("conv2d_bias", "float32", {"dilation": 2})
    vm = VirtualMachine(layer.built())
    before = library.cudnn_calls()
    layer.check(vm, 1, 5, 3)
    x, r = np.ones((2, 8, 4, 3), np.float32), np.ones((2, 6, 0, 1), np.float32)
    with pytest.raises(RuntimeCheckError, match="does not fit into the padded data") as caught:
        vm(x, layer.w, layer.b, r)
    assert caught.value.span is not None
    assert library.cudnn_calls() == before


def test_the_choice_is_kept(library: CDLL) -> None:
    layer = Layer("conv2d", "float32", WINDOWS[0])
    vm = VirtualMachine(layer.built())
    asked = library.cudnn_asked()
    for n in (7, 9, 7, 9, 7):
        layer.check(vm, n, 11, 11)
    assert library.cudnn_asked() == asked + 2


def test_old_choices_go(library: CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer("conv2d_bias", "float32", WINDOWS[0])
    vm = VirtualMachine(layer.built())
    monkeypatch.setattr(libraries, "_MOST_PLANS", 2)
    layer.check(vm, 7, 11, 11)
    gc.collect()
    one = library.cudnn_live()
    for n in (8, 9, 10, 11, 7):
        layer.check(vm, n, 11, 11)
    gc.collect()
    assert library.cudnn_live() <= 2 * one


def test_nothing_is_left(library: CDLL) -> None:
    gc.collect()
    before = library.cudnn_live()
    layer = Layer("conv2d_bias_residual_relu", "float32", WINDOWS[0])
    vm = VirtualMachine(layer.built())
    layer.check(vm, 7, 11, 11)
    assert library.cudnn_live() > before
    del vm
    gc.collect()
    assert library.cudnn_live() == before


def test_without_an_engine_the_kernel_runs(library: CDLL) -> None:
    library.cudnn_has_none(1)
    before = library.cudnn_calls()
    layer = Layer("conv2d_bias", "float32", WINDOWS[0])
    vm = VirtualMachine(layer.built())
    for _ in range(2):
        layer.check(vm, 7, 11, 11)
    assert library.cudnn_calls() == before


def test_a_failure_is_told(library: CDLL) -> None:
    """With the place in the program; afterwards the library is asked again."""
    layer = Layer("conv2d_bias", "float32", WINDOWS[0])
    vm = VirtualMachine(layer.built())
    library.cudnn_fails(1)
    with pytest.raises(RuntimeCheckError, match="cuDNN: CUDNN_STATUS_EXECUTION_FAILED") as caught:
        layer.check(vm, 7, 11, 11)
    assert caught.value.code == "kernel-failed"
    assert caught.value.span is not None
    library.cudnn_fails(0)
    layer.check(vm, 7, 11, 11)


def test_threads(library: CDLL) -> None:
    """One handle, whose stream each call sets."""
    layer = Layer("conv2d_bias_relu", "float32", WINDOWS[0])
    vm = VirtualMachine(layer.built())

    def work(seed: int) -> None:
        for n in range(2, 8):
            layer.check(vm, n + seed, 11, 11)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


TWO = """
@R.function
def main(x: R.Tensor(("n", 8, 12, 12), "float32"), w: R.Tensor((8, 8, 3, 3), "float32"), b: R.Tensor((8, 1, 1), "float32")):
    y = R.nn.relu(R.add(R.nn.conv2d(x, w, padding=1), b))
    z = R.nn.max_pool2d(R.nn.relu(R.add(R.add(R.nn.conv2d(y, w, padding=1), b), x)), 2, 2)
    return z
"""


def test_library_calls_are_recorded(library: CDLL) -> None:
    """In one graph with the kernels around them; a workspace is shared."""
    exe = relaxpy.build(relaxpy.parse(TWO), TARGET)
    vm = VirtualMachine(exe)
    rng = np.random.default_rng(0)
    w, b = (rng.standard_normal(s, dtype=np.float32) for s in ((8, 8, 3, 3), (8, 1, 1)))
    there = vm.upload(w), vm.upload(b)
    conv = Conv2d(padding=1)
    for n in (2, 2, 2, 0, 2):
        x = rng.standard_normal((n, 8, 12, 12), dtype=np.float32)
        before = library.cudnn_calls()
        got = vm(x, *there).numpy()
        y = np.maximum(conv.reference(x, w) + b, 0)
        y = np.maximum(conv.reference(y, w) + b + x, 0)
        wanted = y.reshape(n, 8, 6, 2, 6, 2).max((3, 5))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)
        assert library.cudnn_calls() - before == (2 if n else 0)
    assert vm.graphs.recordings == 2
    assert vm.graphs.replays == 3
    plan = exe.memory_plan(n=2)["main"]
    assert plan.planned < 33 << 20 < 64 << 20 < plan.unshared


def test_both_libraries(library: CDLL) -> None:
    """A network of both: a convolution, and a product behind it."""
    text = """
@R.function
def main(x: R.Tensor(("n", 8, 12, 12), "float32"), w: R.Tensor((8, 8, 3, 3), "float32"), v: R.Tensor((5, 1152), "float32")):
    y = R.linear(R.reshape(R.nn.conv2d(x, w, padding=1), (n, 1152)), v)
    return y
""".replace("main(x", "main(x", 1)
    mod = relaxpy.parse(text.replace("    y =", "    n = T.int64()\n    y ="))
    with emulated_library("cublas") as products:
        exe = relaxpy.build(mod, f"{compiled.TARGET} -libs=cublas,cudnn")
        vm = VirtualMachine(exe)
        rng = np.random.default_rng(0)
        x, w, v = (
            rng.standard_normal(s, dtype=np.float32)
            for s in ((6, 8, 12, 12), (8, 8, 3, 3), (5, 1152))
        )
        before = library.cudnn_calls(), products.cublas_calls()
        got = vm(x, w, v).numpy()
        assert (library.cudnn_calls(), products.cublas_calls()) == tuple(n + 1 for n in before)
        wanted = Conv2d(padding=1).reference(x, w).reshape(6, 1152) @ v.T
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)
        names = {Image.decode(data).library.name for data in exe.objects if b'"library"' in data}  # pyright: ignore[reportOptionalMemberAccess]
        assert names == {"cudnn.conv2d", "cublas.matmul_nt"}


@full
def test_a_network(library: CDLL) -> None:
    """All convolutions of a ResNet are the library's, in one graph, for images of several sizes."""
    mod, _ = ResNet(TINY).export(spec(TINY))
    rng = np.random.default_rng(0)
    params = mod["classify"].params[1:]
    shapes = [[dim.value for dim in param.annotation.dims] for param in params]
    weights = {
        param.name: rng.uniform(0.1, 0.5, shape).astype(np.float32)
        for param, shape in zip(params, shapes, strict=True)
    }
    exe = relaxpy.build(mod, TARGET, weights)
    images = [Image.decode(data) for data in exe.objects]
    called = [each.library.name for each in images if each.library is not None]
    assert {*called} == {
        "cudnn.conv2d_bias", "cudnn.conv2d_bias_relu", "cudnn.conv2d_bias_residual_relu",
    }  # fmt: skip
    assert exe.as_text().count("graph on") == 1
    vm = VirtualMachine(exe)
    host = VirtualMachine(relaxpy.build(mod, quick_target(), weights))
    for n, height, width in ((2, 40, 32), (1, 64, 48)):
        x = rng.standard_normal((n, 3, height, width), dtype=np.float32)
        before = library.cudnn_calls()
        got, wanted = vm["classify"](x).numpy(), host["classify"](x).numpy()
        assert library.cudnn_calls() > before + 3
        np.testing.assert_allclose(got, wanted, rtol=1e-4)


def test_without_the_library() -> None:
    with compiled.emulated_compiled(), pytest.MonkeyPatch.context() as patch:
        exe = Layer("conv2d", "float32", {}).built()
        patch.setattr(cudnn, "_paths", lambda: iter(["/nowhere/libcudnn.so.9"]))
        cudnn.library.cache_clear()
        with pytest.raises(ExecutableError, match=r"'cudnn\.conv2d' of cuDNN") as caught:
            VirtualMachine(exe)
        assert caught.value.code == "library-missing"
        assert "pip install 'relaxpy[cudnn]'" in str(caught.value)
    cudnn.library.cache_clear()


def test_a_library_that_is_too_old(library: CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = Layer("conv2d", "float32", {}).built()
    monkeypatch.setattr(cudnn, "_OLDEST", library.cudnnGetVersion() + 1)
    cudnn.library.cache_clear()
    with pytest.raises(ExecutableError, match="older than version 9") as caught:
        VirtualMachine(exe)
    assert caught.value.code == "library-missing"


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "change",
    [
        {"name": "cudnn.conv3d"},
        {"name": "cudnn.conv2d_bias"},
        {"name": "cudnn.conv2d_relu"},
        {"name": "cutlass.conv2d"},
        {"dtype": "float64"},
        {"count": 12},
        {"options": {}},
        {"options": {"layout": "CHWN"}},
        {"options": {"strides": [1, 1], "dilation": [1, 1], "before": [0, 0], "after": [0, -1], "layout": "NCHW"}},
        {"options": {"strides": [1, 1], "dilation": [1, 1], "before": [0, 0], "after": "00", "layout": "NCHW"}},
    ],
)  # fmt: skip
def test_calls_of_a_file_that_no_library_has(change: dict[str, Any]) -> None:
    exe = Layer("conv2d", "float32", {}).built()
    image = Image.decode(exe.objects[0])
    assert image.library is not None
    other = dataclasses.replace(image, library=dataclasses.replace(image.library, **change))
    with pytest.raises(ExecutableError) as caught:
        VirtualMachine(dataclasses.replace(exe, objects=(other.encode(),)))
    assert caught.value.code == "library-missing"


def test_batch_invariant_programs_call_no_library() -> None:
    with compiled.emulated_compiled():
        layer = Layer("conv2d_bias", "float32", WINDOWS[0])
        exe = layer.built(f"{TARGET} -batch-invariant=1")
        layer.check(VirtualMachine(exe), 2, 29, 23)
        assert all("cudnn" not in kernel.name for kernel in exe.kernels)
