"""Masked stores of narrow elements write these, and nothing behind them."""

from __future__ import annotations

import numpy as np
import pytest

from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Program
from relaxpy.tir.tvm import tirx

LANES = 16


@pytest.mark.parametrize("count", [1, 2, 15])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "bfloat16"])
def test_a_known_number_of_lanes(dtype: str, count: int) -> None:
    """LLVM stored one lane with the bits that were cut off it."""
    narrow = "uint16" if dtype == "bfloat16" else dtype
    size = [loops.int64(LANES)]
    source = tirx.decl_buffer(size, "float32" if dtype == "bfloat16" else "int32", "x", layout=None)
    target = tirx.decl_buffer(size, dtype, "y", layout=None)
    p = Program()
    read, out = p.flat_view(source), p.flat_view(target)
    mask = loops.first_lanes(loops.int64(count).astype("int32"), LANES)
    value = loops.load(read, 0, LANES).astype(f"{dtype}x{LANES}")
    p.store(out, 0, value, LANES, mask)
    func = tirx.PrimFunc([source, target], tirx.Evaluate(loops.int64(0)))
    kernels = Kernels({"k": PrimFunc(loops.finished(func, p.body()))}, schedule=False)
    x = np.arange(1, LANES + 1).astype(str(source.dtype))
    found = np.full(LANES, 77, narrow)
    kernels.run("k", [x], [found.view(np.dtype(narrow))])
    expected = (x.view(np.uint32) >> 16).astype(narrow) if dtype == "bfloat16" else x.astype(narrow)
    np.testing.assert_array_equal(found[:count], expected[:count])
    assert (found[count:] == 77).all()
