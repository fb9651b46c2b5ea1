"""TVM's conversions between float16 and float32 are in the kernels that may need them, and in no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaxpy.backend.cpu.compile import compile_object, compile_source
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.target import Target
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import HOST, as_tensor, compute, load, n, normal, tensor

SECTION = b".text.tvm.fp16.conv"
"""The section of the object in which they are."""
OLD = Target.parse("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64")
"""A processor without instructions for float16."""


def doubled(dtype: str) -> tirx.PrimFunc:
    x = tensor(n, dtype=dtype)
    return te.create_prim_func([x, compute((n,), lambda i: x[i] + x[i])])


@pytest.mark.parametrize("target", [HOST, OLD])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_left_out(dtype: str, target: Target) -> None:
    kernel = schedule_kernel(doubled(dtype), target)
    assert SECTION not in compile_object({"k": kernel.serial}, target)


def test_kept_for_float16() -> None:
    kernels = {"k": doubled("float16"), "other": doubled("float32")}
    assert SECTION in compile_object(kernels, OLD)


def test_a_scalar_of_float16_is_a_value() -> None:
    scale = tirx.Var("scale", "float16")
    y = tirx.decl_buffer([4], "float32", "y")
    body = tirx.BufferStore(y, tirx.Cast("float32", scale), [tirx.const(0, "int64")])
    assert SECTION in compile_object({"k": tirx.PrimFunc([scale, y], body)}, OLD)


@pytest.mark.parametrize("target", [HOST, OLD])
def test_float16_where_the_processor_has_none(target: Target, tmp_path: Path) -> None:
    kernel = load(tmp_path, {"k": doubled("float16")}, target)["k"]
    x = normal(37, dtype="float16")
    y = np.empty_like(x)
    kernel(as_tensor(x), as_tensor(y))
    np.testing.assert_array_equal(y, x + x)


def test_c_has_nothing_to_leave_out() -> None:
    text = compile_source({"k": doubled("float32")}, Target.parse("c"))
    assert "hfsf2" not in text
