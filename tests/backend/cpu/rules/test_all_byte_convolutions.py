"""Convolutions of bytes with weights in tiles of groups: every instruction set, channels that fill no group, copies and
data in place, exactly the reference's integers; nothing is read beyond data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu.row_tiles import wanted_channel_tiles, with_tiles
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.ir.dtype import DType
from relaxpy.op.conv import Conv2d
from relaxpy.testing.guard_pages import guarded, status_in_child
from relaxpy.testing.kernels import Kernels
from tests.backend.cpu.levels import LEVELS, running
from tests.backend.cpu.rules.test_channel_convolution import RULE, laid_out
from tests.backend.cpu.rules.test_convolution import HOST
from tests.sweeps import sweep

CASES: dict[str, tuple[Conv2d, tuple[int, ...], str, str]] = {
    "in place": (Conv2d(), (17, 8, 3, 3), "uint8", "NHWC"),
    "copied": (Conv2d(1, 1), (33, 4, 3, 3), "int8", "NHWC"),
    "no whole group": (Conv2d(2, 1), (16, 18, 3, 2), "uint8", "NHWC"),
    "more than a vector, no whole group": (Conv2d(1, (0, 1)), (9, 67, 1, 3), "uint8", "NHWC"),
    "few channels of planes": (Conv2d(2, 3), (24, 3, 7, 7), "uint8", "NCHW"),
    "planes": (Conv2d(1, 2, 2), (16, 70, 3, 3), "int8", "NCHW"),
    "strided": (Conv2d(2), (40, 12, 1, 1), "int8", "NHWC"),
    "wide codes": (Conv2d(1, 1), (20, 5, 3, 3), "int16", "NHWC"),
}
SIZES = ((1, 9, 11), (2, 7, 37), (0, 8, 8), (3, 7, 7))
LEVEL_NAMES = ("SSE2", "AVX2", "AVX-VNNI", "AVX512_VNNI", "AMX", "second of three")


def operator(name: str) -> Conv2d:
    op, _, _, layout = CASES[name]
    return dataclasses.replace(
        laid_out(op, (layout, "OHWI", layout)), out_dtype=DType("int32")
    )  # the extremes of both factors meet below


def arrays(name: str, size: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Data and the weight, with the least and the largest codes."""
    _, (rows, channels, *kernel), dtype, layout = CASES[name]
    rng = np.random.default_rng(sum(size))
    sizes = dict(zip("NHWC", (*size, channels), strict=True))
    info, wide = np.iinfo(dtype), dtype == "int16"
    shape = [sizes[letter] for letter in layout]
    x = rng.integers(info.min // (8 if wide else 1), info.max + 1, shape).astype(dtype)
    w = rng.integers(-128, 128, (rows, *kernel, channels)).astype("int8")
    x[..., ::2], w[:, 0] = info.min // (8 if wide else 1), -128
    return x, w


def program(name: str) -> str:
    """The text of a function."""
    op, (rows, channels, *kernel), dtype, layout = CASES[name]
    dims = {"N": '"n"', "H": '"h"', "W": '"w"', "C": channels}
    shape = ", ".join(str(dims[letter]) for letter in layout)
    weight = (rows, *kernel, channels)
    return f"""
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor(({shape}), "{dtype}"), w: R.Tensor({weight}, "int8")):
    R.func_attr({{"num_input": 1}})
    with R.dataflow():
        y = R.nn.conv2d(
            x, w, strides={op.strides}, padding={op.padding}, dilation={op.dilation}, data_layout="{layout}",
            kernel_layout="OHWI", out_layout="{layout}", out_dtype="int32",
        )
        R.output(y)
    return y
"""


@sweep(6)
@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_every_level(level: str) -> None:
    """The sums are the reference's integers."""
    with running(LEVELS[level]) as target:
        for name in CASES:
            w = arrays(name, SIZES[0])[1]
            exe = relaxpy.build(relaxpy.parse(program(name)), target, params={"w": w})
            run: Callable[[Any], Any] = relaxpy.VirtualMachine(exe)["main"]
            for size in SIZES:
                x = arrays(name, size)[0]
                found = run(x).numpy()
                np.testing.assert_array_equal(found, operator(name).reference(x, w), name)


@sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_the_rule_and_what_it_reads(name: str) -> None:
    """Weights are in groups; nothing beyond data or the weight is read."""
    from relaxpy.ir.annotation import TensorType
    from relaxpy.ir.dim import SymVar
    from relaxpy.ir.expr import Var
    from relaxpy.ir.module import IRModule
    from relaxpy.op import te
    from relaxpy.op.deduce import deduce
    from relaxpy.tir.prim_func import PrimFunc

    op = operator(name)
    _, (rows, channels, *kernel), dtype, layout = CASES[name]
    sizes = {letter: SymVar(letter.lower()).dim for letter in "NHW"} | {"C": channels}
    shapes = [sizes[letter] for letter in layout], (rows, *kernel, channels)
    args = [
        Var(each, TensorType(tuple(shape), kind))
        for each, shape, kind in zip("xw", shapes, (dtype, "int8"), strict=True)
    ]
    out: Any = deduce(op(*args), IRModule({}))
    inputs = [
        te.placeholder(shape, kind, each)
        for each, shape, kind in zip("xw", shapes, (dtype, "int8"), strict=True)
    ]
    func = PrimFunc.from_te(inputs, [op.legalize(out, *inputs)])
    assert isinstance(HOST, CpuTarget)
    tiles = wanted_channel_tiles(func, HOST)
    assert tiles is not None
    kernels = Kernels({"k": with_tiles(func, tiles)})
    assert kernels.rules == {"k": RULE}
    x, w = arrays(name, (2, 7, 13))
    want = op.reference(x, w)

    def check() -> None:
        got = guarded(np.zeros_like(want))
        kernels.run("k", [guarded(x), guarded(tiles.pack(w))], [got])
        np.testing.assert_array_equal(got, want)

    assert status_in_child(check) == 0


@pytest.mark.parametrize("level", ["AVX2", "AVX512_BF16"])
def test_bfloat16(level: str) -> None:
    """Pairs of bfloat16, or floats where there are no products of pairs; data that is copied, and in place."""
    rng = np.random.default_rng(0)
    bfloat16 = DType("bfloat16").numpy
    with running(LEVELS[level]) as target:
        for channels, layout, padding in ((19, "NCHW", 1), (3, "NCHW", 0), (8, "NHWC", 0)):
            sizes = {"N": '"n"', "H": '"h"', "W": '"w"', "C": channels}
            shape = ", ".join(str(sizes[letter]) for letter in layout)
            text = f"""
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor(({shape}), "bfloat16"), w: R.Tensor((21, 3, 2, {channels}), "bfloat16")):
    R.func_attr({{"num_input": 1}})
    with R.dataflow():
        y = R.nn.conv2d(
            x, w, padding={padding}, data_layout="{layout}", kernel_layout="OHWI", out_layout="{layout}",
            out_dtype="float32",
        )
        R.output(y)
    return y
"""
            w = rng.standard_normal((21, 3, 2, channels)).astype(bfloat16)
            exe = relaxpy.build(relaxpy.parse(text), target, params={"w": w})
            known = {"N": 2, "H": 7, "W": 19, "C": channels}
            x = rng.standard_normal([known[letter] for letter in layout]).astype(bfloat16)
            op = laid_out(Conv2d(1, padding), (layout, "OHWI", layout))
            want = op.reference(x.astype("float32"), w.astype("float32"))
            found = relaxpy.VirtualMachine(exe)["main"](x).numpy()
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
