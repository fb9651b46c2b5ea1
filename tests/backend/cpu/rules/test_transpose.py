"""Square tiles transposed and summed in registers."""

from __future__ import annotations

import numpy as np
import pytest

from relaxpy.backend.cpu.rules.transpose import summed, transposed
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer import loops
from relaxpy.tir.writer.loops import Program


def kernel(size: int, *, is_sum: bool) -> PrimFunc:
    """Of a matrix of this size: its transpose, or the sums of its rows."""
    shape = [loops.int64(size), loops.int64(size)]
    x = tirx.decl_buffer(shape, "float32", "x", layout=None)
    y = tirx.decl_buffer(shape[:1] if is_sum else shape, "float32", "y", layout=None)
    p = Program()
    source, out = p.flat_view(x), p.flat_view(y)
    rows = [loops.load(source, n * size, size) for n in range(size)]
    results = [summed(p, rows)] if is_sum else transposed(p, rows)
    for n, row in enumerate(results):
        p.store(out, n * size, row, size)
    return PrimFunc(loops.finished(tirx.PrimFunc([x, y], tirx.Evaluate(loops.int64(0))), p.body()))


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_every_element_goes_where_it_belongs(size: int) -> None:
    kernels = Kernels(
        {"transpose": kernel(size, is_sum=False), "sums": kernel(size, is_sum=True)}, schedule=False
    )
    x = np.arange(size * size, dtype=np.float32).reshape(size, size)
    y, sums = np.zeros_like(x), np.zeros(size, np.float32)
    kernels.run("transpose", [x], [y])
    np.testing.assert_array_equal(y, x.T)
    kernels.run("sums", [x], [sums])
    np.testing.assert_array_equal(sums, x.sum(1))
