"""Copies move bits: constants as their bits, NaNs as they are, and nothing that looks at an element."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.backend.cpu.rules.bits import as_bits
from relaxpy.tir.programs.loops import Program
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import Kernel, compute, i64, m, n, tensor


def dtype_of_copy(value: Any, *inputs: Any) -> str:
    (stage,) = s.read_stages(te.create_prim_func([*inputs, compute((n, m), value)])) or []
    return str(as_bits(Program(), stage).buffer.dtype)


def test_what_is_a_copy() -> None:
    x, flag = tensor(n, m, dtype="float16"), tensor(n, m, dtype="bool", name="flag")
    zero, one = tirx.FloatImm("float16", 0.0), tirx.FloatImm("float16", 1.0)
    assert dtype_of_copy(lambda i, j: x[i, m - i64(1) - j], x) == "uint16"
    assert dtype_of_copy(lambda i, j: tirx.Select(j < i, x[i, j], zero), x) == "uint16"
    assert dtype_of_copy(lambda i, j: flag[i, j], flag) == "uint8"
    assert dtype_of_copy(lambda i, j: x[i, j] + one, x) == "float16"
    assert dtype_of_copy(lambda i, j: tirx.Select(x[i, j] > zero, x[i, j], zero), x) == "float16"
    assert dtype_of_copy(lambda i, j: x[i, j].astype("float32"), x) == "float32"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_constants_and_nans(tmp_path: Path, dtype: str) -> None:
    x, fill = tensor(n, m, dtype=dtype), tirx.FloatImm(dtype, -1.5)
    out = compute((n, m), lambda i, j: tirx.if_then_else(j < i, x[i, j], fill))
    kernel = Kernel(tmp_path, [x, out])
    bits = f"uint{np.dtype(dtype).itemsize * 8}"
    for shape in [(0, 3), (3, 1), (5, 40), (40, 5)]:
        rng = np.random.default_rng(0)
        value = rng.integers(0, 256, (*shape[:-1], shape[-1] * np.dtype(dtype).itemsize), "uint8")
        value = value.view(dtype)
        rows, columns = np.indices(shape)
        expected = np.where(columns < rows, value.view(bits), np.array(-1.5, dtype).view(bits))
        np.testing.assert_array_equal(kernel(value, out=shape, dtype=dtype).view(bits), expected)
