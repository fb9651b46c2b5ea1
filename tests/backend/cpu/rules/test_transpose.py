"""Square tiles transposed and summed in registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from relaxpy.backend.cpu.rules.transpose import strip_of, summed, transposed, turned
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr, Program
from relaxpy.tir.programs.vectors import strips
from relaxpy.tir.tvm import tirx


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


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_sums_of_some_neighbouring_lanes(rows: int) -> None:
    """Those of each row beside each other, for the first lanes and then for the next."""
    size = 8
    x = tirx.decl_buffer([loops.int64(rows), loops.int64(size)], "float32", "x", layout=None)
    y = tirx.decl_buffer([loops.int64(size)], "float32", "y", layout=None)
    p = Program()
    source, out = p.flat_view(x), p.flat_view(y)
    p.store(out, 0, summed(p, [loops.load(source, n * size, size) for n in range(rows)]), size)
    func = tirx.PrimFunc([x, y], tirx.Evaluate(loops.int64(0)))
    kernels = Kernels({"sums": PrimFunc(loops.finished(func, p.body()))}, schedule=False)
    values, sums = np.arange(rows * size, dtype=np.float32) % 11, np.zeros(size, np.float32)
    kernels.run("sums", [values.reshape(rows, size)], [sums])
    expected = values.reshape(rows, size // rows, rows).sum(2).T.reshape(-1)
    np.testing.assert_array_equal(sums, expected)


def by_strips(size: int, dtype: str) -> PrimFunc:
    """Of a matrix of this size: its transpose, a strip at a time."""
    shape = [loops.int64(size), loops.int64(size)]
    x, y = (tirx.decl_buffer(shape, dtype, name, layout=None) for name in "xy")
    p = Program()
    source, out = p.flat_view(x), p.flat_view(y)
    count = strip_of(size, int(dtype[-2:]))
    with p.loop("strip", size // count) as strip:
        parts = [loops.load(source, n * size + strip * count, count) for n in range(size)]
        for n, column in enumerate(turned(p, strips(parts, count))):
            p.store(out, (strip * count + n) * size, column, size)
    return PrimFunc(loops.finished(tirx.PrimFunc([x, y], tirx.Evaluate(loops.int64(0))), p.body()))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_strips_are_the_columns_of_a_square(size: int, dtype: str) -> None:
    kernels = Kernels({"transpose": by_strips(size, dtype)}, schedule=False)
    x = np.arange(size * size).astype(dtype).reshape(size, size)
    y = np.zeros_like(x)
    kernels.run("transpose", [x], [y])
    np.testing.assert_array_equal(y, x.T)
