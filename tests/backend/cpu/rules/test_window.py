"""The window rule: poolings and depthwise convolutions of every stride, padding and layout against the operators'
references, and what it leaves to other rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Var
from relaxpy.ir.module import IRModule
from relaxpy.op import te
from relaxpy.op.conv import Conv1d, Conv2d
from relaxpy.op.deduce import deduce
from relaxpy.op.pool import AvgPool2d, MaxPool1d, MaxPool2d, MaxPool3d
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc

HOST = Target.host()
OTHERS = ("llvm -mcpu=haswell", "llvm -mcpu=x86-64")
"""AVX2, and what every x86-64 has."""
SIZES = ((1, 7, 7), (2, 4, 33), (0, 5, 5), (1, 37, 16), (3, 9, 5), (1, 5, 64))
"""Batch, height, width: parts of a vector, whole ones, and both."""
CHANNELS = 6


def program(op: Any, dtype: str = "float32", *, layout: str = "NCHW") -> PrimFunc:
    """A pooling, or a depthwise convolution, of images of any number and size."""
    letters = {letter: SymVar(letter.lower()).dim for letter in layout} | {"C": Dim.of(CHANNELS)}
    shapes: list[tuple[Any, ...]] = [tuple(letters[letter] for letter in layout)]
    if isinstance(op, Conv2d | Conv1d):
        shapes.append((CHANNELS, 1, *(3 for _ in layout[2:])))
    arguments = [Var(f"x{n}", TensorType(shape, dtype)) for n, shape in enumerate(shapes)]
    out: Any = deduce(op(*arguments), IRModule({}))
    inputs = [te.placeholder(shape, dtype, f"x{n}") for n, shape in enumerate(shapes)]
    return PrimFunc.from_te(inputs, [op.legalize(out, *inputs)])


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    if dtype.startswith("int"):
        return rng.integers(-99, 99, shape).astype(dtype)
    return rng.uniform(-1, 1, shape).astype(dtype)


def check(kernels: Kernels, name: str, op: Any, *inputs: np.ndarray) -> None:
    """The kernel's numbers are those of the reference; it writes nothing beside its result."""
    want = op.reference(*inputs)
    memory = np.full(want.size + 64, 77, want.dtype)
    got = memory[: want.size].reshape(want.shape)
    kernels.run(name, inputs, [got])
    tolerance = 2e-3 if want.dtype == np.float16 else 1e-6
    np.testing.assert_allclose(
        got.astype("float64"), want.astype("float64"), rtol=tolerance, atol=tolerance
    )
    assert (memory[want.size :] == 77).all(), "wrote beyond its output"


WINDOWS: dict[str, Any] = {
    "max 3, every second": MaxPool2d(3, 2, 1),
    "max 2, every second": MaxPool2d(2, 2),
    "max 3": MaxPool2d(3, 1, 1),
    "max 2, every third": MaxPool2d(2, 3, 1, ceil_mode=True),
    "max, apart": MaxPool2d(2, 2, 1, 2),
    "mean 2": AvgPool2d(2, 2),
    "mean 3": AvgPool2d(3, 1, 1),
    "mean with padding": AvgPool2d(3, 2, 1, count_include_pad=True),
    "depthwise": Conv2d(padding=1, groups=CHANNELS),
    "depthwise, every second": Conv2d(2, 1, groups=CHANNELS),
    "depthwise, no padding": Conv2d(groups=CHANNELS),
}


@pytest.fixture(
    scope="module",
    params=["llvm", *(pytest.param(target, marks=pytest.mark.slow) for target in OTHERS)],
)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """All windows in one object."""
    target = Target.parse(request.param)
    programs = {f"k{n}": program(op) for n, op in enumerate(WINDOWS.values())}
    for func in programs.values():
        assert schedule_kernel(func.func, target).rule == "window"
    return Kernels(programs, target)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("size", SIZES)
def test_every_window(kernels: Kernels, name: str, size: tuple[int, ...]) -> None:
    """Images of any number and size."""
    batch, height, width = size
    op, inputs = WINDOWS[name], [numbers(batch, CHANNELS, height, width)]
    if isinstance(op, Conv2d):
        inputs.append(numbers(CHANNELS, 1, 3, 3))
    check(kernels, f"k{list(WINDOWS).index(name)}", op, *inputs)


def test_channels_last() -> None:
    """Vectors are of channels; edges are asked for once a pixel."""
    op = MaxPool2d(3, 2, 1, layout="NHWC")
    func = program(op, layout="NHWC")
    assert schedule_kernel(func.func, HOST).rule == "window"
    check(Kernels({"k": func}), "k", op, numbers(2, 7, 9, CHANNELS))


@pytest.mark.parametrize(
    ("op", "layout", "sizes"),
    [(MaxPool1d(3, 2, 1), "NCW", (19,)), (MaxPool3d(2, 2, 1), "NCDHW", (3, 4, 21))],
)
def test_other_axes(op: Any, layout: str, sizes: tuple[int, ...]) -> None:
    func = program(op, layout=layout)
    assert schedule_kernel(func.func, HOST).rule == "window"
    check(Kernels({"k": func}), "k", op, numbers(2, CHANNELS, *sizes))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_dtypes(dtype: str) -> None:
    op = MaxPool2d(3, 2, 1)
    compiled = Kernels({"k": program(op, dtype)})
    check(compiled, "k", op, numbers(1, CHANNELS, 9, 21, dtype=dtype))


def test_bfloat16() -> None:
    op, dtype = AvgPool2d(3, 1, 1), DType("bfloat16").numpy
    x = numbers(1, CHANNELS, 6, 19).astype(dtype)
    want, got = op.reference(x), np.empty((1, CHANNELS, 6, 19), dtype)
    Kernels({"k": program(op, "bfloat16")}).run("k", [x], [got])
    np.testing.assert_allclose(got.astype("float32"), want.astype("float32"), rtol=1e-2, atol=1e-2)


def test_a_maximum_keeps_nan() -> None:
    """Where one is in a window, at an edge too."""
    op, x = MaxPool2d(3, 1, 1), numbers(1, CHANNELS, 5, 18)
    x[0, 0, 0, 0] = x[0, 1, 4, 17] = np.nan
    x[0, 2] = -np.inf
    check(Kernels({"k": program(op)}), "k", op, x)


def test_several_channels_from_one() -> None:
    """A depthwise convolution with a multiplier."""
    op, n = Conv2d(padding=1, groups=3), SymVar("n").dim
    data, weight = (n, Dim.of(3), SymVar("h").dim, SymVar("w").dim), (6, 1, 3, 3)
    arguments = [Var(f"x{i}", TensorType(s, "float32")) for i, s in enumerate((data, weight))]
    inputs = [te.placeholder(s, "float32", f"x{i}") for i, s in enumerate((data, weight))]
    out = deduce(op(*arguments), IRModule({}))
    assert isinstance(out, TensorType)
    func = PrimFunc.from_te(inputs, [op.legalize(out, *inputs)])
    assert schedule_kernel(func.func, HOST).rule == "window"
    check(Kernels({"k": func}), "k", op, numbers(2, 3, 6, 21), numbers(*weight))


def test_plain_reductions_are_none() -> None:
    """What every axis walks along by itself has a rule of its own."""
    n = SymVar("n").dim
    x, k = te.placeholder((n, 8, 16), "float32", "x"), te.reduce_axis(8, "k")
    sums = te.compute((n, Dim.of(16)), lambda i, j: te.sum(x(i, k, j), k), "sums")
    assert schedule_kernel(PrimFunc.from_te([x], [sums]).func, HOST).rule == "reduction"
