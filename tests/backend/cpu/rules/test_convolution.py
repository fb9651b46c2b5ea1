"""The convolution rule: every shape of window against the operator's reference, what the rule takes, and weights in
tiles of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu.row_tiles import RowTiles, tile_height, wanted_tiles, with_tiles
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Var
from relaxpy.ir.module import IRModule
from relaxpy.op import te
from relaxpy.op.conv import Conv1d, Conv2d, Conv3d, Convolution
from relaxpy.op.deduce import deduce
from relaxpy.target import Target
from relaxpy.testing.interpret import interpret
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.convolution import read_convolution
from tests.sweeps import FULL, quick_target, sweep

HOST = Target.host()
OTHERS = ("llvm -mcpu=haswell", "llvm -mcpu=x86-64")
"""AVX2, and what every x86-64 has."""


def program(
    op: Convolution, data: tuple[Any, ...], weight: tuple[int, ...], dtype: str = "float32",
    *, finish: bool = False,
) -> PrimFunc:  # fmt: skip
    """The convolution of tensors of these shapes; with `finish` a bias for each channel, a tensor of the result's shape
    and ReLU behind it. Dimensions given by name are symbols."""
    symbols = {dim: SymVar(dim).dim for dim in data if isinstance(dim, str)}
    shape = [symbols[dim] if isinstance(dim, str) else Dim.of(dim) for dim in data]
    x, w = (Var(name, TensorType(s, dtype)) for name, s in (("x", shape), ("w", weight)))
    out = deduce(op(x, w), IRModule({}))
    assert isinstance(out, TensorType)
    assert out.dims is not None
    inputs = [te.placeholder(shape, dtype, "x"), te.placeholder(weight, dtype, "w")]
    result = op.legalize(out, *inputs)
    if finish:
        axis = op.layouts()[2].letters.index("C")
        bias = te.placeholder((out.dims[axis],), str(out.dtype), "bias")
        other = te.placeholder(out.dims, str(out.dtype), "other")
        sums = result

        def element(*i: Any) -> Any:
            value, zero = sums(*i) + bias(i[axis]) + other(*i), te.const(0, str(out.dtype))
            return te.select(te.less(zero, value), value, zero)

        result = te.compute(out.dims, element, "finished")
        inputs += [bias, other]
    return PrimFunc.from_te(inputs, [result])


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype.startswith("int"):
        return rng.integers(-9, 9, shape).astype(dtype)
    return rng.uniform(-1, 1, shape).astype(dtype)


def run(
    kernels: Kernels,
    name: str,
    op: Convolution,
    x: np.ndarray,
    w: np.ndarray,
    packed: np.ndarray | None = None,
) -> np.ndarray:
    """The kernel's numbers, which are those of the reference; it writes nothing beside them."""
    want = op.reference(x, w)
    memory = np.full(want.size + 64, 77, want.dtype)
    got = memory[: want.size].reshape(want.shape)
    kernels.run(name, [x, w if packed is None else packed], [got])
    tolerance = 2e-3 if x.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(
        got.astype("float64"), want.astype("float64"), rtol=tolerance, atol=tolerance * 10
    )
    assert (memory[want.size :] == 77).all(), "wrote beyond its output"
    return got


WINDOWS: dict[str, tuple[Convolution, tuple[int, ...]]] = {
    "3x3": (Conv2d(padding=1), (13, 5, 3, 3)),
    "3x3, every second": (Conv2d(2, 1), (8, 3, 3, 3)),
    "7x7, every second": (Conv2d(2, 3), (5, 3, 7, 7)),
    "1x1": (Conv2d(), (17, 7, 1, 1)),
    "1x1, every second": (Conv2d(2), (6, 7, 1, 1)),
    "1x1, padded": (Conv2d(padding=1), (6, 7, 1, 1)),
    "1x1, groups": (Conv2d(groups=2), (10, 3, 1, 1)),
    "patches": (Conv2d(4), (9, 3, 4, 4)),
    "apart": (Conv2d(1, 2, 2), (12, 4, 3, 3)),
    "one-sided padding": (Conv2d((1, 2), (0, 2, 1, 0)), (4, 4, 3, 2)),
    "groups": (Conv2d(padding=1, groups=2), (14, 3, 3, 3)),
    "deep": (Conv2d(padding=1), (5, 70, 3, 3)),
}
"""The operator and its weight: tiles of rows and rests of them, one block of the depth and several."""


def tried_for(target: str, windows: Iterable[str]) -> list[str]:
    """The windows that are compiled for a target: all for this processor, and for each of the others a quarter, unless
    the sweep is in full."""
    if FULL or target not in OTHERS:
        return [*windows]
    return [*windows][OTHERS.index(target) :: 2 * len(OTHERS)]


SIZES = ((1, 7, 7), (3, 7, 7), (0, 5, 5), (2, 4, 4), (1, 9, 56), (1, 37, 16), (2, 5, 33))
"""Batch, height, width: panels that end in an image, begin in one, and have several."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=[pytest.mark.slow, sweep]) for each in ("llvm", *OTHERS)],
)
def kernels(request: pytest.FixtureRequest) -> tuple[Kernels, dict[str, RowTiles]]:
    """Every window as it is and, where it wants that, with its weight in tiles; how it wants them. Quickly compiled,
    unless the sweep is in full: the tests below have their kernels optimised."""
    target = quick_target(request.param)
    programs: dict[str, PrimFunc] = {}
    wanted: dict[str, RowTiles] = {}
    for n, (name, (op, weight)) in enumerate(WINDOWS.items()):
        if name not in tried_for(request.param, WINDOWS):
            continue
        programs[f"k{n}"] = func = program(op, ("n", weight[1] * op.groups, "h", "w"), weight)
        tiles = wanted_tiles(func, target)
        if tiles is not None:
            programs[f"t{n}"] = with_tiles(func, tiles)
            wanted[name] = tiles
    compiled = Kernels(programs, target)
    assert compiled.rules == dict.fromkeys(programs, "convolution")
    return compiled, wanted


@sweep(2)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("size", SIZES)
def test_every_window(
    kernels: tuple[Kernels, dict[str, RowTiles]], name: str, size: tuple[int, ...]
) -> None:
    """Images of any number and size, none and small ones too; weights in tiles give the same bits."""
    (compiled, wanted), (op, weight) = kernels, WINDOWS[name]
    number, (batch, height, width) = list(WINDOWS).index(name), size
    if f"k{number}" not in compiled:
        pytest.skip("tried for other processors")
    x, w = numbers(batch, weight[1] * op.groups, height, width), numbers(*weight, seed=1)
    plain = run(compiled, f"k{number}", op, x, w)
    if name in wanted:
        tiled = run(compiled, f"t{number}", op, x, w, wanted[name].pack(w))
        np.testing.assert_array_equal(tiled, plain)


def test_who_wants_tiles() -> None:
    """Groups do not, nor weights that would be twice as large."""
    for name, (op, weight) in WINDOWS.items():
        func = program(op, ("n", weight[1] * op.groups, "h", "w"), weight)
        doubled = 2 * weight[0] <= tile_height(HOST)
        assert (wanted_tiles(func, HOST) is None) == ("groups" in name or doubled), name


@pytest.mark.parametrize(
    ("op", "data", "weight", "rule"),
    [
        (Conv1d(2, 1), ("n", 3, "w"), (5, 3, 3), "convolution"),
        (Conv3d(padding=1), ("n", 2, "d", "h", "w"), (4, 2, 3, 2, 3), "convolution"),
        (
            Conv2d(padding=1, kernel_layout="HWIO"),
            ("n", 3, "h", "w"),
            (3, 3, 3, 6),
            "channel_convolution",
        ),
    ],
)
def test_other_axes(
    op: Convolution, data: tuple[Any, ...], weight: tuple[int, ...], rule: str
) -> None:
    """One and three spatial axes, and weights whose rows are their last dimension, whose vectors are of channels."""
    func = program(op, data, weight)
    assert schedule_kernel(func.func, HOST).rule == rule
    compiled = Kernels({"k": func})
    for length in (1, 6, 19):
        sizes = [length + 2 if isinstance(dim, str) else dim for dim in data[1:]]
        run(compiled, "k", op, numbers(2, *sizes), numbers(*weight))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_dtypes(dtype: str) -> None:
    """Narrow floats are added up as float32, integers in the dtype of the result."""
    op = Conv2d(padding=1, out_dtype=DType("int32") if dtype == "int8" else None)
    func = program(op, ("n", 3, "h", "w"), (6, 3, 3, 3), dtype)
    assert schedule_kernel(func.func, HOST).rule == "convolution"
    compiled = Kernels({"k": func})
    x, w = numbers(2, 3, 9, 7, dtype=dtype), numbers(6, 3, 3, 3, dtype=dtype)
    run(compiled, "k", op, x, w)


def test_what_comes_after() -> None:
    """A bias, a tensor of the result's shape and an activation are written with the sums, at every edge."""
    op, weight = Conv2d(padding=1), numbers(13, 3, 3, 3)
    func = program(op, ("n", 3, "h", "w"), weight.shape, finish=True)
    assert schedule_kernel(func.func, HOST).rule == "convolution"
    compiled = Kernels({"k": func})
    for batch, height, width in SIZES:
        x, bias = numbers(batch, 3, height, width), numbers(13, seed=1)
        sums = op.reference(x, weight)
        other = numbers(*sums.shape, seed=2)
        got = np.empty_like(sums)
        compiled.run("k", [x, weight, bias, other], [got])
        want = np.maximum(sums + bias[:, None, None] + other, 0)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_batch_changes_nothing() -> None:
    """An image has the same bits wherever in a batch it stands."""
    op, w = Conv2d(padding=1), numbers(9, 4, 3, 3)
    compiled = Kernels({"k": program(op, ("n", 4, "h", "w"), w.shape)})
    x = numbers(5, 4, 7, 7)
    together = run(compiled, "k", op, x, w)
    for n in range(5):
        np.testing.assert_array_equal(run(compiled, "k", op, x[n : n + 1], w)[0], together[n])


def test_infinite_weights_meet_padding() -> None:
    """Zeros around data are multiplied: with an infinite weight they give NaN, as in the reference."""
    op, w = Conv2d(padding=1), numbers(8, 2, 3, 3)
    w[3, 1, 0, 0] = np.inf
    compiled = Kernels({"k": program(op, ("n", 2, "h", "w"), w.shape)})
    run(compiled, "k", op, numbers(1, 2, 5, 6), w)


@pytest.mark.parametrize(
    ("op", "data", "weight"),
    [
        (Conv2d(groups=4), ("n", 4, "h", "w"), (4, 1, 3, 3)),
        (Conv2d(data_layout="NHWC"), ("n", "h", "w", 4), (8, 4, 3, 3)),
    ],
)
def test_what_it_leaves_to_others(
    op: Convolution, data: tuple[Any, ...], weight: tuple[int, ...]
) -> None:
    """Depthwise convolutions gather nothing twice; with channels last the pixels are not contiguous."""
    assert read_convolution(program(op, data, weight).func) is None


def test_matrix_products_are_none() -> None:
    """A product of two matrices is left to its own rule."""
    n = SymVar("n").dim
    a, b = te.placeholder((n, 8), "float32", "a"), te.placeholder((8, 16), "float32", "b")
    k = te.reduce_axis(8, "k")
    product = te.compute((n, Dim.of(16)), lambda i, j: te.sum(a(i, k) * b(k, j), k), "product")
    assert read_convolution(PrimFunc.from_te([a, b], [product]).func) is None


@pytest.mark.parametrize(
    ("layout", "weight"),
    [
        ("OIHW", '("f", "c", "kh", "kw")'),
        ("OIHW", '(16, "c", 3, 3)'),
        ("OIHW", '("f", 4, 3, "kw")'),
        ("HWIO", '("kh", "kw", "c", 16)'),
    ],
)
def test_unknown_channels_and_windows(layout: str, weight: str) -> None:
    """Strides of the weight are symbols; one build serves two sizes."""
    channels = "4" if "4" in weight else '"c"'
    mod = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n", {channels}, "h", 9), dtype="float32"), w: R.Tensor({weight}, dtype="float32")):
    return R.nn.conv2d(x, w, padding=1, kernel_layout="{layout}")
""")
    run = relaxpy.VirtualMachine(relaxpy.build(mod, target=quick_target()))["main"]
    rng = np.random.default_rng(0)
    for batch, height, inputs, outputs in ((1, 8, 4, 16), (3, 5, 4 if "4" in weight else 7, 16)):
        sizes = {"O": outputs, "I": inputs, "H": 3, "W": 3}
        x = rng.integers(-4, 5, (batch, inputs, height, 9)).astype("float32")
        w = rng.integers(-4, 5, [sizes[letter] for letter in layout]).astype("float32")
        np.testing.assert_array_equal(run(x, w).numpy(), interpret(mod, "main", x, w))
