"""Convolutions that cuDNN computes: which are marked, and how images describe the calls."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.backend.cuda.backend import library_passes
from relaxpy.backend.cuda.target import CudaTarget
from relaxpy.ir.module import IRModule
from relaxpy.runtime.devices.image import Image, LibraryCall
from relaxpy.tir.prim_func import LIBRARY

pytest.importorskip("cuda.bindings.nvrtc")
TARGET = "cuda -arch=sm_80 -libs=cudnn"


def module(body: str, dtype: str = "float16", rows: str = '"n"') -> IRModule:
    return relaxpy.parse(f"""
@R.function
def main(
    x: R.Tensor(({rows}, 16, 20, 20), "{dtype}"), w: R.Tensor((16, 16, 3, 3), "{dtype}"),
    b: R.Tensor((1, 16, 1, 1), "{dtype}"), r: R.Tensor(({rows}, 16, 20, 20), "{dtype}"),
    c: R.Tensor((16, 16, 3, 3), "int8"), v: R.Tensor((16, 1, 3, 3), "{dtype}"), s: R.Tensor((1, 1, 20, 1), "{dtype}"),
):
    {body}
    return y
""")


def marked(mod: IRModule) -> list[str]:
    for each in library_passes(CudaTarget.read(TARGET)):
        mod = each(mod)
    return [f.attrs[LIBRARY] for f in mod.graph_functions.values() if LIBRARY in f.attrs]


CONV = "R.nn.conv2d(x, w, padding=1)"


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (f"y = {CONV}", "conv2d"),
        (f"y = R.add({CONV}, b)", "conv2d_bias"),
        (f"y = R.nn.relu(R.add(b, {CONV}))", "conv2d_bias_relu"),
        (f"y = R.add(R.add({CONV}, r), b)", "conv2d_bias_residual"),
        (f"y = R.nn.relu(R.add(R.add({CONV}, b), r))", "conv2d_bias_residual_relu"),
        (f"y = R.nn.relu({CONV})", "conv2d"),
        (f"y = R.add({CONV}, r)", "conv2d"),
        (f"y = R.add({CONV}, s)", "conv2d"),
        (f"y = R.nn.silu(R.add({CONV}, b))", "conv2d_bias"),
        ('y = R.nn.conv2d(x, R.reshape(w, (16, 3, 3, 16)), data_layout="NCHW", kernel_layout="OHWI")', ""),
        ('y = R.nn.conv2d(x, w, out_layout="NHWC")', ""),
        ("y = R.nn.conv2d(x, v, groups=16)", ""),  # depthwise
        ('y = R.nn.conv2d(x, w, out_dtype="float32")', ""),
        ('y = R.nn.conv2d(x, R.astype(c, "float16"))', ""),  # is fused
    ],
)  # fmt: skip
def test_what_is_marked(body: str, name: str) -> None:
    assert marked(module(body)) == ([f"cudnn.{name}"] if name else [])


def test_sizes_that_are_known() -> None:
    assert marked(module(f"y = {CONV}", rows="4")) == []  # 3.7 million multiplications
    assert marked(module(f"y = {CONV}", rows="5")) == ["cudnn.conv2d"]
    assert marked(module(f"y = {CONV}", "float64")) == []


def test_the_image() -> None:
    """It has the kernel's own code, with padding, and the call; the launch says the multiplications and all extents."""
    exe = relaxpy.build(module(f"y = R.nn.relu(R.add({CONV}, b))"), TARGET)
    (info,) = exe.kernels
    (data,) = exe.objects
    image = Image.decode(data)
    assert image.code.startswith(b"\x7fELF")
    first = len(info.image.launch) - 13
    places = {"data": 0, "weight": 1, "out": 4, "bias": 2, "workspace": 3}
    options = {
        "strides": [1, 1],
        "dilation": [1, 1],
        "before": [1, 1],
        "after": [1, 1],
        "layout": "NCHW",
    }
    assert image.library == LibraryCall(
        "cudnn.conv2d_bias_relu", "float16", places, first, 13, 1 << 22, 32 << 20, options
    )  # fmt: skip
    assert info.image.launch[-12:-8][1:] == (16, 20, 20)
    assert info.image.launch[-8:-4] == (16, 16, 3, 3)
    assert not image.misfit(info)
