"""Transpositions in squares: every type, edges of every width, and what is computed beside."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.backend.cpu.compile import compile_source
from relaxpy.backend.cpu.rules.permute import BLOCK, crossed_axis
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.target import Target
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import AVX2, HOST, Kernel, compute, d, m, n, normal, tensor
from tests.sweeps import sweep

BASELINE = Target.parse("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64")
SHAPES = [(0, 5), (5, 0), (1, 1), (1, 70), (16, 16), (15, 17), (33, 64), (BLOCK + 1, 2 * BLOCK - 1)]


@sweep(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "bool"])
def test_every_type(tmp_path: Path, dtype: str) -> None:
    x = tensor(n, m, dtype=dtype)
    kernel = Kernel(tmp_path, [x, compute((m, n), lambda i, j: x[j, i])])
    for shape in SHAPES:
        value = normal(*shape).astype(dtype)
        result = kernel(value, out=shape[::-1], dtype=dtype)
        np.testing.assert_array_equal(result, value.T)


@pytest.mark.parametrize("target", [HOST, AVX2, BASELINE], ids=["host", "avx2", "baseline"])
def test_what_is_computed_on_the_turned_vectors(tmp_path: Path, target: Target) -> None:
    x, y, bias = tensor(n, m), tensor(m, n, name="y"), tensor(n, name="bias")
    out = compute((m, n), lambda i, j: x[j, i] * y[i, j] + bias[j])
    kernel = Kernel(tmp_path, [x, y, bias, out], target)
    for rows, columns in SHAPES:
        a, b, c = normal(rows, columns), normal(columns, rows, seed=1), normal(rows, seed=2)
        result = kernel(a, b, c, out=(columns, rows))
        np.testing.assert_allclose(result, a.T * b + c, rtol=1e-6, atol=1e-6)


@sweep(2)
@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
def test_three_axes(tmp_path: Path, order: tuple[int, ...]) -> None:
    x, sizes = tensor(n, m, d), (n, m, d)

    def element(*i: Any) -> Any:
        return x[tuple(i[order.index(a)] for a in range(3))]

    kernel = Kernel(tmp_path, [x, compute([sizes[a] for a in order], element)])
    for shape in [(2, 3, 5), (1, 17, 33), (4, 1, 70), (3, 65, 16), (0, 4, 4)]:
        value = normal(*shape)
        expected = value.transpose(order)
        np.testing.assert_array_equal(kernel(value, out=expected.shape), expected)


@pytest.mark.parametrize(
    ("index", "crossed"),
    [(lambda i, j: (i, j), False), (lambda i, j: (j, i), True), (lambda i, j: (j, j), False)],
)
def test_an_axis_is_crossed_where_neighbours_lie_along_another(index: Any, crossed: bool) -> None:
    x = tensor(n, n)
    func = te.create_prim_func([x, compute((n, n), lambda i, j: x[index(i, j)])])
    (stage,) = s.read_stages(func) or []
    assert (crossed_axis(stage) is not None) is crossed


def test_a_guarded_read_is_not_made_elsewhere() -> None:
    x = tensor(n, m)
    out = compute((m, n), lambda i, j: tirx.if_then_else(i < j, x[j, i], tirx.const(0, "float32")))
    (stage,) = s.read_stages(te.create_prim_func([x, out])) or []
    assert crossed_axis(stage) is None


def test_neighbours_that_lie_in_two_dimensions(tmp_path: Path) -> None:
    """A reshape in between (patches of an image, made tokens): there is no vector of them, so no square."""
    x, bias = tensor(n, 64, 4, 4), tensor(64, name="bias")
    out = compute((n, 16, 64), lambda b, i, j: x[b, j, i // 4, i % 4] + bias[j])
    kernel = Kernel(tmp_path, [x, bias, out])
    value, summand = normal(3, 64, 4, 4), normal(64, seed=1)
    expected = value.reshape(3, 64, 16).transpose(0, 2, 1) + summand
    np.testing.assert_array_equal(kernel(value, summand, out=expected.shape), expected)


def test_no_pointers_in_memory_are_moved_on() -> None:
    """Of the rows of a tile, of which there are more than registers: their addresses are sums."""
    wide = Target.parse("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v4")
    func = te.create_prim_func([x := tensor(n, m), compute((m, n), lambda i, j: x[j, i])])
    text = compile_source({"k": schedule_kernel(func, wide).serial}, wide)
    assert "vpermt2d" in text
    assert len(re.findall(r"\taddq\t%\w+, -?\d*\(%rsp\)", text)) < 8
