"""The rule for convolutions with contiguous channels: every shape of window against the operator's reference, in blocks
of channels and with channels last, and what the rule takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu.row_tiles import RowTiles, wanted_channel_tiles, with_tiles
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import Var
from relaxpy.ir.module import IRModule
from relaxpy.op import te
from relaxpy.op.conv import Conv1d, Conv2d, Conv3d, Convolution
from relaxpy.op.deduce import deduce
from relaxpy.runtime.host.features import host_features
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from tests.backend.cpu.rules.test_convolution import HOST, OTHERS, numbers, program, run, tried_for
from tests.sweeps import quick_target, sweep

RULE = "channel_convolution"
LAYOUTS: dict[str, Any] = {
    "blocks": ("NCHW16c", "OIHW16i16o", "NCHW16c"),
    "first": ("NCHW", "OIHW16o", "NCHW16c"),
    "last": ("NHWC", "HWIO", "NHWC"),
    "from plain": ("NCHW", "OHWI", "NHWC"),
    "to plain": ("NHWC", "OHWI", "NCHW"),
    "plain": ("NCHW", "OHWI", "NCHW"),
}

WINDOWS: dict[str, tuple[Convolution, tuple[int, ...], str]] = {
    "3x3": (Conv2d(padding=1), (48, 32, 3, 3), "blocks"),
    "3x3, every second": (Conv2d(2, 1), (16, 16, 3, 3), "blocks"),
    "7x7, every second": (Conv2d(2, 3), (32, 3, 7, 7), "first"),
    "1x1": (Conv2d(), (32, 32, 1, 1), "blocks"),
    "1x1, every second": (Conv2d(2), (32, 16, 1, 1), "blocks"),
    "patches": (Conv2d(4), (16, 3, 4, 4), "first"),
    "apart": (Conv2d(1, 2, 2), (16, 16, 3, 3), "blocks"),
    "one-sided padding": (Conv2d((1, 2), (0, 2, 1, 0)), (32, 16, 3, 2), "blocks"),
    "no padding": (Conv2d(), (16, 16, 2, 3), "blocks"),
    "channels last": (Conv2d(padding=1), (32, 5, 3, 3), "last"),
    "channels last, 1x1": (Conv2d(), (16, 5, 1, 1), "last"),
    "channels last, a part of a vector": (Conv2d(padding=1), (21, 5, 3, 3), "last"),
    "few channels transposed": (Conv2d(2, 3), (24, 3, 7, 7), "from plain"),
    "transposed": (Conv2d(padding=1), (40, 37, 3, 3), "from plain"),
    "transposed, no padding": (Conv2d(2), (16, 16, 2, 3), "from plain"),
    "to plain": (Conv2d(padding=1), (37, 9, 3, 3), "to plain"),
    "plain": (Conv2d(2, 1), (40, 32, 3, 3), "plain"),
    "plain, no padding": (Conv2d(), (24, 12, 3, 1), "plain"),
}
"""The operator, the shape of its weight in OIHW, and the layouts. An odd number of blocks, too."""
SIZES = ((1, 7, 7), (3, 7, 7), (0, 5, 5), (2, 4, 4), (1, 9, 56), (1, 37, 16), (2, 5, 33))
"""Batch, height, width: rows of one tile and of several."""


def laid_out(op: Convolution, layouts: tuple[str, str, str]) -> Convolution:
    """The operator with these layouts of data, weight and result."""
    names = ("data_layout", "kernel_layout", "out_layout")
    return dataclasses.replace(op, **dict(zip(names, layouts, strict=True)))


def of_window(name: str, sizes: Sequence[Any]) -> tuple[Convolution, list[Any], list[int]]:
    """The operator of a window, and the shapes of data and of the weight for images of this number and size."""
    op, weight, layout = WINDOWS[name]
    op = laid_out(op, LAYOUTS[layout])
    x, w, _ = op.layouts()
    known = {"C": weight[1], **dict(zip("NHW", sizes, strict=True))}
    data = [
        known[letter] // x.block(letter) if letter == "C" else {**known, "c": x.block("C")}[letter]
        for letter in x.letters
    ]
    rows = dict(zip("OIHW", weight, strict=True))
    kernel = [
        rows[letter] // w.block(letter) if letter in rows else w.block(letter)
        for letter in w.letters
    ]
    return op, data, kernel


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=[pytest.mark.slow, sweep]) for each in ("llvm", *OTHERS)],
)
def kernels(request: pytest.FixtureRequest) -> tuple[Kernels, dict[str, RowTiles]]:
    """Every window for images of any number and size, with its weight in tiles where it wants that. Quickly compiled,
    unless the sweep is in full: the tests below have their kernels optimised."""
    target = quick_target(request.param)
    assert isinstance(target, CpuTarget)
    programs: dict[str, PrimFunc] = {}
    packed: dict[str, RowTiles] = {}
    for n, name in enumerate(WINDOWS):
        if name not in tried_for(request.param, WINDOWS):
            continue
        op, data, weight = of_window(name, ("n", "h", "w"))
        func = program(op, tuple(data), tuple(weight))
        tiles = wanted_channel_tiles(func, target) if op.kernel_layout == "OHWI" else None
        if tiles is not None:
            packed[name], func = tiles, with_tiles(func, tiles)
        programs[f"k{n}"] = func
    compiled = Kernels(programs, target)
    assert compiled.rules == dict.fromkeys(programs, RULE)
    return compiled, packed


@sweep(2)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("size", SIZES)
def test_every_window(
    kernels: tuple[Kernels, dict[str, RowTiles]], name: str, size: tuple[int, ...]
) -> None:
    """Images of any number and size, none and small ones too."""
    compiled, tiles = kernels
    op, data, weight = of_window(name, size)
    number, w = list(WINDOWS).index(name), numbers(*weight, seed=1)
    if f"k{number}" not in compiled:
        pytest.skip("tried for other processors")
    packed = tiles[name].pack(w) if name in tiles else None
    run(compiled, f"k{number}", op, numbers(*data), w, packed)


@pytest.mark.parametrize(
    "name", ["3x3", "1x1", "7x7, every second", "channels last", "transposed", "plain"]
)
@pytest.mark.parametrize("size", [(2, 7, 7), (1, 15, 29)])
def test_known_sizes(name: str, size: tuple[int, ...]) -> None:
    """The width of tiles is chosen when compiling."""
    op, data, weight = of_window(name, size)
    compiled = Kernels({"k": program(op, tuple(data), tuple(weight))})
    run(compiled, "k", op, numbers(*data), numbers(*weight, seed=1))


@pytest.mark.parametrize(
    "name", ["3x3", "patches", "transposed", "plain", "few channels transposed"]
)
@pytest.mark.parametrize("size", [(1, 0, 5), (2, 6, 0), (1, 1, 1), (1, 4, 1)])
def test_degenerate_sizes(
    kernels: tuple[Kernels, dict[str, RowTiles]], name: str, size: tuple[int, ...]
) -> None:
    """Images without pixels, and with one row or column of them."""
    test_every_window(
        kernels, name, size if name != "patches" else (size[0], size[1] and 4, size[2] and 4)
    )


def test_tiles_for_several_processors() -> None:
    """All read tiles of the widest vectors; the bits are the same."""
    targets = [relaxpy.Target.parse(f"llvm -mcpu={cpu}") for cpu in ("haswell", "skylake-avx512")]
    op, data, weight = of_window("plain", ("n", "h", "w"))
    func = program(op, tuple(data), tuple(weight))
    w = numbers(*weight)
    for narrow in targets:
        assert isinstance(narrow, CpuTarget)
        tiles = RowTiles(1, 0, 16)
        if not set(narrow.required_features) <= host_features():
            continue
        compiled = Kernels({"k": with_tiles(func, tiles)}, narrow)
        run(compiled, "k", op, numbers(2, 32, 7, 9), w, tiles.pack(w))


def test_weights_that_nobody_packs() -> None:
    """Without tiles the rule for contiguous pixels reads them."""
    op, data, weight = of_window("plain", ("n", "h", "w"))
    func = program(op, tuple(data), tuple(weight))
    assert schedule_kernel(func.func, HOST).rule == "convolution"
    run(Kernels({"k": func}), "k", op, numbers(2, 32, 7, 9), numbers(*weight))


def test_an_epilogue_that_knows_its_place() -> None:
    """Values for each row and each column of pixels, in plain results and in others, also where rows are joined."""
    for name in ("plain", "transposed", "1x1"):
        op, data, weight = of_window(name, [SymVar(letter) for letter in "nhw"])
        kernel = weight
        if op.kernel_layout == "OHWI":
            op = dataclasses.replace(op, kernel_layout="HWIO")
            kernel = [*weight[1:], weight[0]]
        shapes = {"x": tuple(data), "w": tuple(kernel)}
        x, w = (te.placeholder(shape, "float32", each) for each, shape in shapes.items())
        args = [Var(each, TensorType(shape, "float32")) for each, shape in shapes.items()]
        out = deduce(op(*args), IRModule({}))
        assert isinstance(out, TensorType)
        assert out.dims is not None
        sums = op.legalize(out, x, w)
        h, v = (op.layouts()[2].letters.index(letter) for letter in "HW")
        down = te.placeholder((out.dims[h],), "float32", "down")
        along = te.placeholder((out.dims[v],), "float32", "along")
        result = te.compute(
            out.dims,
            lambda *i, s=sums, d=down, a=along, h=h, v=v: s(*i) + d(i[h]) * a(i[v]),
            "placed",
        )
        func = PrimFunc.from_te([x, w, down, along], [result])
        assert schedule_kernel(func.func, HOST).rule == RULE
        _, shape, _ = of_window(name, (2, 9, 17))
        image, filters = numbers(*shape), numbers(*kernel, seed=1)
        want = op.reference(image, filters)
        rows, columns = numbers(want.shape[h], seed=2), numbers(want.shape[v], seed=3)
        got = np.empty_like(want)
        Kernels({"k": func}).run("k", [image, filters, rows, columns], [got])
        for axis, values in ((h, rows), (v, columns)):
            assert values.shape == (want.shape[axis],)
        grid = np.multiply.outer(rows, columns)
        want = want + grid.reshape(
            [n if axis in (h, v) else 1 for axis, n in enumerate(want.shape)]
        )
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@sweep(3)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NHCW", "CNHW", "HWCN", "WHNC"])
@pytest.mark.parametrize("size", [("n", "h", "w"), ("n", 1, "w"), ("n", "h", 1), (1, 1, 20)])
def test_results_of_every_layout(layout: str, size: tuple[Any, ...]) -> None:
    """Also of images that are known to have one row or one column: then images are rows, or nothing is. A bias for each
    channel, an activation and a tensor of the result's shape follow the sums."""

    def shape(letters: str, channels: int) -> list[Any]:
        known = {"C": channels, **dict(zip("NHW", size, strict=True))}
        return [known[letter] for letter in letters]

    def text(dims: list[Any]) -> str:
        return "".join(f"{dim!r}, " for dim in dims)

    bias = [24 if letter == "C" else 1 for letter in layout]
    exe = relaxpy.build(
        relaxpy.parse(f"""
@R.function
def main(
    x: R.Tensor(({text(shape("NHWC", 8))}), "float32"),
    w: R.Tensor((3, 3, 8, 24), "float32"),
    bias: R.Tensor(({text(bias)}), "float32"),
    other: R.Tensor(({text(shape(layout, 24))}), "float32"),
):
    with R.dataflow():
        sums = R.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO", out_layout="{layout}")
        result = R.nn.relu(sums + bias) + other
        R.output(result)
    return result
"""),
        target=quick_target("llvm"),
    )
    sizes = {"n": 2, "h": 5, "w": 19}

    def made(dims: list[Any], seed: int) -> np.ndarray:
        return numbers(*(sizes.get(dim, dim) for dim in dims), seed=seed)

    x, w, b = made(shape("NHWC", 8), 0), numbers(3, 3, 8, 24, seed=1), made(bias, 2)
    other = made(shape(layout, 24), 3)
    sums = laid_out(Conv2d(padding=1), ("NHWC", "HWIO", layout)).reference(x, w)
    found = relaxpy.VirtualMachine(exe)["main"](x, w, b, other).numpy()
    np.testing.assert_allclose(found, np.maximum(sums + b, 0) + other, rtol=1e-4, atol=1e-4)


def test_large_weights() -> None:
    """The channels are divided into parts, and what is read next is fetched ahead."""
    op = laid_out(Conv2d(padding=1), LAYOUTS["blocks"])
    data, weight = ("n", 8, "h", "w", 16), (40, 8, 3, 3, 16, 16)
    compiled = Kernels({"k": program(op, data, weight)})
    for batch in (1, 3):
        run(compiled, "k", op, numbers(batch, 8, 5, 6, 16), numbers(*weight, seed=1))


@pytest.mark.parametrize(
    ("op", "layouts", "data", "weight"),
    [
        (Conv1d(2, 1), ("NCW16c", "OIW16i16o", "NCW16c"), ("n", 1, "w", 16), (2, 1, 3, 16, 16)),
        (Conv1d(1, 1), ("NWC", "WIO", "NWC"), ("n", "w", 3), (3, 3, 16)),
        (
            Conv3d(padding=1), ("NCDHW16c", "OIDHW16i16o", "NCDHW16c"),
            ("n", 1, "d", "h", "w", 16), (1, 1, 3, 2, 3, 16, 16),
        ),
        (Conv3d(padding=1), ("NCDHW", "OIDHW16o", "NCDHW16c"), ("n", 2, "d", "h", "w"), (1, 2, 3, 2, 3, 16)),
    ],
)  # fmt: skip
def test_other_axes(
    op: Convolution, layouts: tuple[str, str, str], data: tuple[Any, ...], weight: tuple[int, ...]
) -> None:
    """One and three spatial axes."""
    op = laid_out(op, layouts)
    func = program(op, data, weight)
    assert schedule_kernel(func.func, HOST).rule == RULE
    compiled = Kernels({"k": func})
    for length in (1, 6, 19):
        sizes = [length + 2 if isinstance(dim, str) else dim for dim in data[1:]]
        run(compiled, "k", op, numbers(2, *sizes), numbers(*weight))


@pytest.mark.parametrize("window", ["3x3", "1x1"])
def test_what_comes_after(window: str) -> None:
    """A number for each block, a tensor of the result's shape and an activation are written with the sums."""
    op, data, weight = of_window(window, ("n", "h", "w"))
    func = program(op, tuple(data), tuple(weight), finish=True)
    assert schedule_kernel(func.func, HOST).rule == RULE
    compiled = Kernels({"k": func})
    w = numbers(*weight)
    for size in SIZES:
        _, shape, _ = of_window(window, size)
        x, bias = numbers(*shape), numbers(weight[0], seed=1)
        sums = op.reference(x, w)
        other = numbers(*sums.shape, seed=2)
        got = np.empty_like(sums)
        compiled.run("k", [x, w, bias, other], [got])
        want = np.maximum(sums + bias[:, None, None, None] + other, 0)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_dtypes() -> None:
    """Sums of doubles and of integers; a block is several vectors of doubles."""
    for dtype in ("float64", "int32"):
        op, data, weight = of_window("3x3", ("n", "h", "w"))
        func = program(op, tuple(data), tuple(weight), dtype)
        assert schedule_kernel(func.func, HOST).rule == RULE
        x, w = (numbers(*s, dtype=dtype) for s in ((2, 2, 5, 6, 16), weight))
        run(Kernels({"k": func}), "k", op, x, w)


@cache
def three_by_three() -> tuple[Convolution, list[int], Kernels]:
    """A window of images of any number and size, the shape of its weight, and its kernel, optimised."""
    op, data, weight = of_window("3x3", ("n", "h", "w"))
    return op, weight, Kernels({"k": program(op, tuple(data), tuple(weight))})


def test_a_batch_changes_nothing() -> None:
    """An image has the same bits wherever in a batch it stands."""
    op, weight, compiled = three_by_three()
    x, w = numbers(5, 2, 7, 7, 16), numbers(*weight)
    together = run(compiled, "k", op, x, w)
    for n in range(5):
        np.testing.assert_array_equal(run(compiled, "k", op, x[n : n + 1], w)[0], together[n])


def test_infinite_weights_meet_padding() -> None:
    """Zeros around data are multiplied: with an infinite weight they give NaN, as in the reference."""
    op, weight, compiled = three_by_three()
    w = numbers(*weight)
    w[1, 1, 0, 0, 3, 5] = np.inf
    run(compiled, "k", op, numbers(1, 2, 5, 6, 16), w)


def test_one_program_gives_the_same_loops_again() -> None:
    """What a schedule was asked before does not change it."""
    op, data, weight = of_window("3x3", ("n", "h", "w"))
    func = program(op, tuple(data), tuple(weight)).func
    first, second = (schedule_kernel(func, HOST).parallel.script() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("op", "data", "weight"),
    [
        (Conv2d(padding=1), ("n", 4, "h", "w"), (8, 4, 3, 3)),
        (laid_out(Conv2d(), ("NHWC", "OHWI", "NHWC")), ("n", "h", "w", 4), (16, 3, 3, 4)),
        (
            laid_out(Conv2d(groups=16), ("NCHW16c", "OIHW16o", "NCHW16c")),
            ("n", 1, "h", "w", 16), (1, 1, 3, 3, 16),
        ),
    ],
    ids=["plain", "rows apart", "depthwise"],
)  # fmt: skip
def test_what_it_leaves_to_others(
    op: Convolution, data: tuple[Any, ...], weight: tuple[int, ...]
) -> None:
    func = program(op, data, weight)
    assert schedule_kernel(func.func, HOST).rule != RULE
