"""Products that cuBLASLt computes: which are marked, and how images describe the calls."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.backend.cuda.backend import library_passes
from relaxpy.backend.cuda.target import CudaTarget
from relaxpy.ir.module import IRModule
from relaxpy.runtime.devices.image import Image, LibraryCall
from relaxpy.tir.prim_func import LIBRARY

TARGET = "cuda -arch=sm_80 -libs=cublas"


def module(body: str, dtype: str = "float16", rows: str = '"n"') -> IRModule:
    return relaxpy.parse(f"""
@R.function
def main(
    x: R.Tensor(({rows}, 64), "{dtype}"), w: R.Tensor((32, 64), "{dtype}"),
    b: R.Tensor((32,), "{dtype}"), r: R.Tensor(({rows}, 32), "{dtype}"), c: R.Tensor((32, 64), "int8"),
):
{body}
""")


def marked(mod: IRModule) -> list[str]:
    for each in library_passes(CudaTarget.read(TARGET)):
        mod = each(mod)
    return [f.attrs[LIBRARY] for f in mod.graph_functions.values() if LIBRARY in f.attrs]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("y = R.linear(x, w)", "matmul_nt"),
        ("y = R.nn.relu(R.linear(x, w, b))", "matmul_nt_bias_relu"),
        ("y = R.nn.gelu_tanh(R.linear(x, w, b))", "matmul_nt_bias_gelu_tanh"),
        ("y = R.nn.gelu(R.linear(x, w, b))", "matmul_nt_bias"),  # by erf
        ("y = R.add(R.linear(x, w), b)", "matmul_nt"),
        ("y = R.add(R.matmul(x, R.permute_dims(w)), b)", "matmul_nt_bias"),
        ("y = R.nn.silu(R.matmul(x, R.permute_dims(w)))", "matmul_nt"),
        ("y = R.add(r, R.linear(x, w))", "matmul_nt_residual"),
        ("y = R.add(R.linear(x, w, b), r)", "matmul_nt_bias_residual"),
        (
            "y = R.nn.relu(R.add(R.add(R.matmul(x, R.permute_dims(w)), b), r))",
            "matmul_nt_bias_residual_relu",
        ),
        ("y = R.add(R.linear(x, w), R.add(b, b))", "matmul_nt"),  # broadcast
    ],
)
def test_what_is_marked(body: str, name: str) -> None:
    mod = module(f"    {body}\n    return y")
    assert marked(mod) == [f"cublas.{name}"]


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ('    v = R.astype(c, "float16")\n    y = R.linear(x, v)', {}),  # is fused
        ('    y = R.linear(x, w, out_dtype="float32")', {}),
        ("    y = R.linear(x, w)", {"rows": "1"}),
        ("    y = R.linear(x, w)", {"dtype": "float64"}),
        ("    y = R.matmul(R.expand_dims(x, 0), R.expand_dims(R.permute_dims(w), 0))", {}),
    ],
)
def test_what_is_not(body: str, options: dict[str, str]) -> None:
    assert marked(module(f"{body}\n    return y", **options)) == []


def test_a_number_of_rows_that_is_known() -> None:
    assert marked(module("    y = R.linear(x, w)\n    return y", rows="2"))
    few = module("    y = R.linear(x, w)\n    return y", "float32", "5")
    assert marked(few) == ["cublas.matmul_nt"]
    assert marked(module("    y = R.linear(x, w)\n    return y", "float32", "4")) == []


def test_the_image() -> None:
    """It has the kernel's own code and the call; the launch says rows, columns and depth."""
    exe = relaxpy.build(module("    y = R.nn.relu(R.linear(x, w, b))\n    return y"), TARGET)
    (info,) = exe.kernels
    (data,) = exe.objects
    image = Image.decode(data)
    assert image.code.startswith(b"\x7fELF")
    assert image.library == LibraryCall(
        "cublas.matmul_nt_bias_relu", "float16",
        {"left": 0, "right": 1, "bias": 2, "workspace": 3, "out": 4}, len(info.image.launch) - 3, 3, 2, 32 << 20,
    )  # fmt: skip
    assert info.image.launch[-2:] == (32, 64)
    assert not image.misfit(info)


def test_constants_are_operands() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 2), "float32")):
    y = R.add(R.matmul(x, R.const([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float32")), R.const([1.0, 2.0, 3.0], "float32"))
    return y
"""
    exe = relaxpy.build(relaxpy.parse(text), TARGET)
    call = Image.decode(exe.objects[0]).library
    assert call is not None
    assert call.name == "cublas.matmul_bias"
    assert sorted(call.places.values()) == list(range(5))


def test_the_same_program_without_the_library_is_another_kernel() -> None:
    mod = module("    y = R.linear(x, w)\n    return y")
    with_it, without = (relaxpy.build(mod, target) for target in (TARGET, "cuda -arch=sm_80"))
    assert with_it.kernels[0].image.symbol != without.kernels[0].image.symbol
    assert Image.decode(without.objects[0]).library is None
