"""The window rule: poolings and depthwise convolutions of every stride, padding and layout against the operators'
references, and what it leaves to other rules."""

from __future__ import annotations

from collections.abc import Mapping
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
from relaxpy.op.data_layout import inside
from relaxpy.op.deduce import deduce
from relaxpy.op.pad import Pad
from relaxpy.op.pool import AvgPool2d, MaxPool1d, MaxPool2d, MaxPool3d
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from tests.sweeps import quick_target, sweep

HOST = Target.host()
OTHERS = ("llvm -mcpu=haswell", "llvm -mcpu=x86-64")
"""AVX2, and what every x86-64 has."""
SIZES = ((1, 7, 7), (2, 4, 33), (0, 5, 5), (1, 37, 16), (3, 9, 5), (1, 5, 64))
"""Batch, height, width: parts of a vector, whole ones, and both."""
CHANNELS = 6


def program(
    op: Any, dtype: str = "float32", *, layout: str = "NCHW", known: Mapping[str, int] | None = None
) -> PrimFunc:
    """A pooling, or a depthwise convolution, of images of any number and size but for what is known."""
    letters = {letter: SymVar(letter.lower()).dim for letter in layout} | {"C": Dim.of(CHANNELS)}
    letters |= {letter: Dim.of(size) for letter, size in (known or {}).items()}
    shapes: list[tuple[Any, ...]] = [tuple(letters[letter] for letter in layout)]
    if isinstance(op, Conv2d | Conv1d):
        shapes.append((CHANNELS, 1, *(3 for _ in layout[2:])))
    arguments = [Var(f"x{n}", TensorType(shape, dtype)) for n, shape in enumerate(shapes)]
    out: Any = deduce(op(*arguments), IRModule({}))
    inputs = [te.placeholder(shape, dtype, f"x{n}") for n, shape in enumerate(shapes)]
    return PrimFunc.from_te(inputs, [op.legalize(out, *inputs)])


def convolution(op: Conv2d, data: tuple[Any, ...], weight: tuple[int, ...]) -> PrimFunc:
    """A convolution of data and a weight of these shapes."""
    shapes = data, weight
    arguments = [Var(f"x{n}", TensorType(shape, "float32")) for n, shape in enumerate(shapes)]
    inputs = [te.placeholder(shape, "float32", f"x{n}") for n, shape in enumerate(shapes)]
    out: Any = deduce(op(*arguments), IRModule({}))
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
    "depthwise, apart": Conv2d(1, 2, 2, groups=CHANNELS),
    "depthwise, every third": Conv2d(3, 1, groups=CHANNELS),
    "max 17": MaxPool2d(17, 1, 8),
}


@pytest.fixture(
    scope="module",
    params=["llvm", *(pytest.param(each, marks=[pytest.mark.slow, sweep]) for each in OTHERS)],
)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """All windows in one object. For other processors quickly compiled, unless the sweep is in full."""
    target = HOST if request.param == "llvm" else quick_target(request.param)
    programs = {f"k{n}": program(op) for n, op in enumerate(WINDOWS.values())}
    compiled = Kernels(programs, target)
    assert compiled.rules == dict.fromkeys(programs, "window")
    return compiled


@sweep(2)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("size", SIZES)
def test_every_window(kernels: Kernels, name: str, size: tuple[int, ...]) -> None:
    """Images of any number and size."""
    batch, height, width = size
    op, inputs = WINDOWS[name], [numbers(batch, CHANNELS, height, width)]
    if isinstance(op, Conv2d):
        inputs.append(numbers(CHANNELS, 1, 3, 3))
    check(kernels, f"k{list(WINDOWS).index(name)}", op, *inputs)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW16c"])
def test_channels_last(layout: str) -> None:
    """Vectors are of channels; edges are asked for once a pixel."""
    op = MaxPool2d(3, 2, 1, layout=layout)
    n, h, w = (SymVar(name).dim for name in "nhw")
    shape = (n, h, w, Dim.of(CHANNELS)) if layout == "NHWC" else (n, Dim.of(2), h, w, Dim.of(16))
    x = te.placeholder(shape, "float32", "x")
    out: Any = deduce(op(Var("x", TensorType(shape, "float32"))), IRModule({}))
    func = PrimFunc.from_te([x], [op.legalize(out, x)])
    assert schedule_kernel(func.func, HOST).rule == "window"
    sizes = (2, 7, 9, CHANNELS) if layout == "NHWC" else (2, 2, 7, 9, 16)
    check(Kernels({"k": func}), "k", op, numbers(*sizes))


def test_channels_last_of_a_convolution() -> None:
    """The weights are vectors, too; the last one ends where the tensor does."""
    op = Conv2d(padding=1, groups=CHANNELS, data_layout="NHWC", kernel_layout="HWIO")
    n, h, w = (SymVar(name).dim for name in "nhw")
    shapes = (n, h, w, Dim.of(CHANNELS)), (3, 3, 1, CHANNELS)
    func = convolution(op, *shapes)
    assert schedule_kernel(func.func, HOST).rule == "window"
    compiled = Kernels({"k": func})
    for height, width in ((1, 1), (5, 9), (4, 13)):
        check(compiled, "k", op, numbers(2, height, width, CHANNELS), numbers(3, 3, 1, CHANNELS))


@pytest.mark.parametrize("channels", [6, 24, 32])
def test_zeros_around_a_maximum(channels: int) -> None:
    """What is outside of data counts where it is no neutral element: lines of a window are not left out."""
    n, h, w = (SymVar(name).dim for name in "nhw")
    border, pool = Pad((0, 0, 1, 1, 1, 1, 0, 0)), MaxPool2d(3, layout="NHWC")
    shape = n, h, w, Dim.of(channels)
    x = te.placeholder(shape, "float32", "x")
    padded: Any = deduce(border(Var("x", TensorType(shape, "float32"))), IRModule({}))
    out: Any = deduce(pool(Var("padded", padded)), IRModule({}))
    func = PrimFunc.from_te([x], [pool.legalize(out, border.legalize(padded, x))])
    assert schedule_kernel(func.func, HOST).rule == "window"
    compiled = Kernels({"k": func})
    for height, width in ((1, 1), (3, 9), (6, 4)):
        data = numbers(2, height, width, channels) - np.float32(2)
        got = np.empty_like(data)
        compiled.run("k", [data], [got])
        want = pool.reference(np.pad(data, ((0, 0), (1, 1), (1, 1), (0, 0))))
        np.testing.assert_array_equal(got, want)


@sweep(2)
@pytest.mark.parametrize("channels", [304, 520])
@pytest.mark.parametrize(("window", "step"), [(3, 1), (5, 2)])
def test_groups_of_channels(channels: int, window: int, step: int) -> None:
    """Tasks of several groups of channels, with a rest; images that the window leaves on all sides at once."""
    n, h, w = (SymVar(name).dim for name in "nhw")
    op = Conv2d(step, window // 2, groups=channels, data_layout="NHWC", kernel_layout="HWIO")
    weight = (window, window, 1, channels)
    func = convolution(op, (n, h, w, Dim.of(channels)), weight)
    assert schedule_kernel(func.func, HOST).rule == "window"
    kernels = Kernels({"k": func}, HOST)
    for sizes in ((1, 7, 7), (2, 1, 3), (1, 2, 14), (3, 5, 9), (1, 18, 17), (0, 7, 7)):
        check(kernels, "k", op, numbers(*sizes, channels), numbers(*weight))


@sweep(3)
@pytest.mark.parametrize("sizes", [(7, 7), (14, 14), (13, 5), (1, 28), (2, 100)], ids=str)
@pytest.mark.parametrize("name", ["max 3, every second", "depthwise", "depthwise, every second"])
def test_known_sizes(name: str, sizes: tuple[int, int]) -> None:
    """Blocks that divide the rows, or do not; vectors no longer than they need to be."""
    op, (height, width) = WINDOWS[name], sizes
    compiled = Kernels({"k": program(op, known={"H": height, "W": width})})
    inputs = [numbers(2, CHANNELS, height, width)]
    if isinstance(op, Conv2d):
        inputs.append(numbers(CHANNELS, 1, 3, 3))
    check(compiled, "k", op, *inputs)


def test_channels_in_packs() -> None:
    """Sixteen channels at the end of every position: vectors are whole, and rows are those along the width."""
    n, h, w = (SymVar(name).dim for name in "nhw")
    x = te.placeholder((n, 2, h, w, 16), "float32", "x")
    weight = te.placeholder((2, 3, 3, 16), "float32", "weight")
    y, z = (te.reduce_axis(3, name) for name in "yz")

    def element(i: Any, c: Any, row: Any, column: Any, lane: Any) -> Any:
        value = te.element(x(i, c, row - 1, column - 1, lane))
        within = inside(((row - 1, h), (column - 1, w)))
        return te.if_then_else(within, value, te.const(0, "float32"))

    def product(i: Any, c: Any, row: Any, column: Any, lane: Any) -> Any:
        value = te.element(padded(i, c, row + y, column + z, lane))
        return te.sum(value * te.element(weight(c, y, z, lane)), [y, z])

    padded = te.compute((n, 2, h + 2, w + 2, 16), element, "padded")
    func = PrimFunc.from_te([x, weight], [te.compute((n, 2, h, w, 16), product, "sums")])
    assert schedule_kernel(func.func, HOST).rule == "window"
    compiled, op = Kernels({"k": func}), Conv2d(padding=1, groups=32)
    factors = numbers(2, 3, 3, 16)
    for batch, height, width in ((1, 7, 7), (2, 1, 13), (1, 14, 4), (0, 3, 3)):
        data = numbers(batch, 2, height, width, 16)
        plain = data.transpose(0, 1, 4, 2, 3).reshape(batch, 32, height, width)
        want = op.reference(plain, factors.transpose(0, 3, 1, 2).reshape(32, 1, 3, 3))
        got = np.full_like(data, 77)
        compiled.run("k", [data, factors], [got])
        found = got.transpose(0, 1, 4, 2, 3).reshape(want.shape)
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


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
    weight = (6, 1, 3, 3)
    func = convolution(op, (n, Dim.of(3), SymVar("h").dim, SymVar("w").dim), weight)
    assert schedule_kernel(func.func, HOST).rule == "window"
    check(Kernels({"k": func}), "k", op, numbers(2, 3, 6, 21), numbers(*weight))


def test_plain_reductions_are_none() -> None:
    """What every axis walks along by itself has a rule of its own."""
    n = SymVar("n").dim
    x, k = te.placeholder((n, 8, 16), "float32", "x"), te.reduce_axis(8, "k")
    sums = te.compute((n, Dim.of(16)), lambda i, j: te.sum(x(i, k, j), k), "sums")
    assert schedule_kernel(PrimFunc.from_te([x], [sums]).func, HOST).rule == "reduction"


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("padding", [0, 1])
def test_a_line_of_each_channel_is_no_product(dtype: str, padding: int) -> None:
    """One weight that slides along a line looks like a product of one row, whose windows would be gathered."""
    func = program(Conv1d(padding=padding, groups=CHANNELS), dtype, layout="NCW")
    for target in (HOST, *map(Target.parse, OTHERS)):
        assert schedule_kernel(func.func, target).rule == "window"
