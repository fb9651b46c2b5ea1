"""Square tiles transposed and summed in registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relaxpy.backend.cpu.rules.transpose import summed, transposed
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer import loops
from relaxpy.tir.writer.loops import Expr, Program


def kernel(size: int, join: Callable[[Expr, Expr], Expr] | None = None) -> PrimFunc:
    """Of a matrix of this size: its transpose, or its rows joined: their sums, say."""
    shape = [loops.int64(size), loops.int64(size)]
    x = tirx.decl_buffer(shape, "float32", "x", layout=None)
    y = tirx.decl_buffer(shape if join is None else shape[:1], "float32", "y", layout=None)
    p = Program()
    source, out = p.flat_view(x), p.flat_view(y)
    rows = [loops.load(source, n * size, size) for n in range(size)]
    results = transposed(p, rows) if join is None else [summed(p, rows, join)]
    for n, row in enumerate(results):
        p.store(out, n * size, row, size)
    return PrimFunc(loops.finished(tirx.PrimFunc([x, y], tirx.Evaluate(loops.int64(0))), p.body()))


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_every_element_goes_where_it_belongs(size: int) -> None:
    programs = {
        "transpose": kernel(size),
        "sums": kernel(size, tirx.Add),
        "largest": kernel(size, tirx.Max),
    }
    kernels = Kernels(programs, schedule=False)
    x = np.arange(size * size, dtype=np.float32)[::-1].reshape(size, size) % 11
    y, sums = np.zeros_like(x), np.zeros(size, np.float32)
    kernels.run("transpose", [x], [y])
    np.testing.assert_array_equal(y, x.T)
    kernels.run("sums", [x], [sums])
    np.testing.assert_array_equal(sums, x.sum(1))
    kernels.run("largest", [x], [sums])
    np.testing.assert_array_equal(sums, x.max(1))
