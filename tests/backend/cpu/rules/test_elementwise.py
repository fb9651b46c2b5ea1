"""Element-wise programs: right at every extent, vectorised, parallel."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from relaxpy.backend.cpu.compile import compile_source
from relaxpy.target import Target
from relaxpy.tir.numerics import math as tir_math
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import (
    AVX2,
    HOST,
    Kernel,
    compute,
    d,
    f32,
    i64,
    m,
    n,
    normal,
    sizes,
    tensor,
    unaligned,
)
from tests.sweeps import sweep

erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: object, shape: tuple[object, ...]) -> object:
    scaled = compute(shape, lambda *i: tir_math.erf(x[i] * f32(0.5**0.5)), "erf")
    return compute(shape, lambda *i: x[i] * f32(0.5) * (f32(1.0) + scaled[i]))


def test_tensors_of_one_shape_run_as_one_array(tmp_path: Path) -> None:
    x, y = tensor(n, m), tensor(n, m, name="y")
    kernel = Kernel(tmp_path, [x, y, compute((n, m), lambda *i: x[i] + y[i])])
    assert kernel.rule == "elementwise"
    for shape in [*sizes(2), (70, 1000)]:
        a, b = normal(*shape), normal(*shape, seed=1)
        np.testing.assert_array_equal(kernel(a, b, out=shape), a + b)


def test_broadcast_along_the_last_axis(tmp_path: Path) -> None:
    x, bias = tensor(n, m), tensor(m, name="bias")
    kernel = Kernel(tmp_path, [x, bias, compute((n, m), lambda i, j: x[i, j] + bias[j])])
    for rows, columns in sizes(2):
        a, b = normal(rows, columns), normal(columns, seed=1)
        np.testing.assert_array_equal(kernel(a, b, out=(rows, columns)), a + b)


def test_long_last_axis_is_cut_in_chunks(tmp_path: Path) -> None:
    x, bias = tensor(n, m), tensor(n, 1, name="bias")
    out = compute((n, m), lambda i, j: x[i, j] + bias[i, i64(0)])
    kernel = Kernel(tmp_path, [x, bias, out])
    for columns in (4095, 4096, 4097, 12345):
        a, b = normal(3, columns), normal(3, 1, seed=1)
        np.testing.assert_array_equal(kernel(a, b, out=(3, columns)), a + b)


@sweep(3)
@pytest.mark.parametrize("columns", [1025, 2048, 4095, 4096, 4097, 6144, 8192, 8193, 16385])
def test_known_last_axis_around_a_chunk(tmp_path: Path, columns: int) -> None:
    """Broadcast, so that the axes are not merged: rows shorter and longer than a chunk, for each size of chunks."""
    x, bias = tensor(n, columns), tensor(columns, name="bias")
    out = compute((n, columns), lambda i, j: x[i, j] + bias[j])
    a, b = normal(5, columns), normal(columns, seed=1)
    for choices in ({}, {"chunk": 1024}, {"chunk": 2048}, {"chunk": 8192}):
        kernel = Kernel(tmp_path, [x, bias, out], choices=choices)
        for rows in (1, 5):
            out_of = kernel(a[:rows], b, out=(rows, columns))
            np.testing.assert_array_equal(out_of, a[:rows] + b)


@pytest.mark.parametrize("target", [HOST, AVX2], ids=["host", "avx2"])
def test_gelu(tmp_path: Path, target: Target) -> None:
    x = tensor(n, m)
    kernel = Kernel(tmp_path, [x, gelu(x, (n, m))], target)
    assert kernel.rule == "elementwise"
    for shape in sizes(2):
        a = normal(*shape)
        expected = a * 0.5 * (1 + erf(a * 0.5**0.5))
        np.testing.assert_allclose(kernel(a, out=shape), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("processor", "vectors"),
    [("haswell", "ymm"), ("znver4", "zmm"), ("skylake-avx512", "[yz]mm")],  # there LLVM prefers 256
)
def test_gelu_inlines_and_vectorises(tmp_path: Path, processor: str, vectors: str) -> None:
    target = Target.parse(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={processor}")
    x = tensor(n, m)
    scheduled = Kernel(tmp_path, [x, gelu(x, (n, m))], target).scheduled
    text = compile_source({"k": scheduled.serial}, target)
    assert re.search(rf"vfmadd\S+ps.*%{vectors}", text)
    assert "erf" not in text, "no call of the mathematics library"


def test_permuted_axes(tmp_path: Path) -> None:
    x = tensor(n, m, 3, d)
    kernel = Kernel(tmp_path, [x, compute((n, 3, m, d), lambda i, j, k, l: x[i, k, j, l])])
    for a, b, c in sizes(3):
        value = normal(a, b, 3, c)
        result = kernel(value, out=(a, 3, b, c))
        np.testing.assert_array_equal(result, value.transpose(0, 2, 1, 3))


def test_transposed_matrix(tmp_path: Path) -> None:
    x = tensor(n, m)
    kernel = Kernel(tmp_path, [x, compute((m, n), lambda i, j: x[j, i])])
    for rows, columns in sizes(2):
        value = normal(rows, columns)
        np.testing.assert_array_equal(kernel(value, out=(columns, rows)), value.T)


def test_reshape_by_division(tmp_path: Path) -> None:
    x = tensor(n, m)
    kernel = Kernel(
        tmp_path, [x, compute((n * m,), lambda i: x[tirx.floordiv(i, m), tirx.floormod(i, m)])]
    )
    for rows, columns in sizes(2):
        value = normal(rows, columns)
        np.testing.assert_array_equal(kernel(value, out=(rows * columns,)), value.reshape(-1))


def test_rows_by_index(tmp_path: Path) -> None:
    table, index = tensor(100, 24), tensor(n, m, dtype="int64", name="index")
    out = compute((n, m, 24), lambda i, j, k: table[index[i, j], k])
    kernel = Kernel(tmp_path, [table, index, out])
    values = normal(100, 24)
    for shape in sizes(2):
        places = unaligned(np.random.default_rng(0).integers(0, 100, shape))
        np.testing.assert_array_equal(kernel(values, places, out=(*shape, 24)), values[places])


def test_joined_rows_read_only_their_own_input(tmp_path: Path) -> None:
    x, y = tensor(n, d), tensor(m, d, name="y")

    def element(i: object, j: object) -> object:
        return tirx.if_then_else(i < n, x[i, j], y[i - n, j])

    kernel = Kernel(tmp_path, [x, y, compute((n + m, d), element)])
    for a, b, c in sizes(3):
        first, second = normal(a, c), normal(b, c, seed=1)
        result = kernel(first, second, out=(a + b, c))
        np.testing.assert_array_equal(result, np.concatenate([first, second]))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "float16"), ("float16", "float32"), ("float32", "int32"), ("int64", "float32"),
        ("bool", "float32"), ("int8", "int64"), ("float64", "float32"), ("uint8", "int8"),
    ],
)  # fmt: skip
def test_conversions(tmp_path: Path, source: str, target: str) -> None:
    x = tensor(n, dtype=source)
    kernel = Kernel(tmp_path, [x, compute((n,), lambda i: x[i].astype(target))])
    for (size,) in sizes(1):
        value = (normal(size) * 10).astype(source)
        result = kernel(value, out=(size,), dtype=target)
        np.testing.assert_array_equal(result, value.astype(target))


def test_booleans_choose(tmp_path: Path) -> None:
    x, y = tensor(n, m), tensor(n, m, name="y")
    less = compute((n, m), lambda *i: x[i] < y[i], "less")
    out = compute((n, m), lambda *i: tirx.Select(less[i], x[i], y[i]))
    kernel = Kernel(tmp_path, [x, y, out])
    for shape in sizes(2):
        a, b = normal(*shape), normal(*shape, seed=1)
        np.testing.assert_array_equal(kernel(a, b, out=shape), np.minimum(a, b))


def test_one_element(tmp_path: Path) -> None:
    x = te.placeholder((), "float32", name="x")
    kernel = Kernel(tmp_path, [x, compute((), lambda: x[()] * f32(2.0))])
    assert kernel.scheduled.parallel is kernel.scheduled.serial
    assert kernel(np.array(3.0, np.float32), out=()) == 6.0


@pytest.mark.parametrize("rows", [0, 1, 127, 128, 129, 300])
def test_a_task_runs_through_several_rows_of_an_unknown_number(tmp_path: Path, rows: int) -> None:
    x = tensor(n, m, 3, 32)
    kernel = Kernel(tmp_path, [x, compute((n, 3, m, 32), lambda i, j, k, l: x[i, k, j, l])])
    value = normal(2, rows, 3, 32)
    expected = value.transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(kernel(value, out=expected.shape), expected)


@pytest.mark.parametrize("target", [HOST, AVX2], ids=["host", "avx2"])
def test_vectors_side_by_side(tmp_path: Path, target: Target) -> None:
    """A long chain of operations, at lengths around one vector and around several."""
    x = tensor(n)
    kernel = Kernel(tmp_path, [x, compute((n,), lambda i: tir_math.exp(x[i]))], target)
    for size in (0, 1, 15, 16, 63, 64, 65, 80, 127, 128, 130):
        value = normal(size)
        np.testing.assert_allclose(kernel(value, out=(size,)), np.exp(value), rtol=1e-6)
