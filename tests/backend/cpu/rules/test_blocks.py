"""Long reductions in blocks: right on both sides of the length from which on there are blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaxpy.backend.cpu.rules.blocks import _LONG, _SPAN, _STREAM, BLOCK, ROWS, RUN
from relaxpy.target import Target
from relaxpy.tir.numerics import scalar
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import AVX2, HOST, Kernel, compute, m, n, normal, over, tensor
from tests.sweeps import sweep


@pytest.mark.parametrize("size", [0, 1, BLOCK, _LONG - 1, _LONG, _LONG + BLOCK - 1, 3 * _LONG + 5])
def test_all_elements(tmp_path: Path, size: int) -> None:
    x, k = tensor(n), over(n)
    kernel = Kernel(tmp_path, [x, compute((1,), lambda _: te.sum(x[k], axis=k))])
    value = normal(size)
    expected = value.sum(dtype="float64")
    np.testing.assert_allclose(kernel(value, out=(1,))[0], expected, rtol=1e-4, atol=1e-2)


def test_the_largest_of_all_elements_passes_a_nan_on(tmp_path: Path) -> None:
    x, k, l = tensor(n, m), over(n, "k"), over(m, "l")
    out = compute((1,), lambda _: scalar.reduce_max(x[k, l], axis=[k, l]))
    kernel = Kernel(tmp_path, [x, out])
    for shape in [(3, 5), (_LONG // 64, 65), (2, _LONG)]:
        value = normal(*shape)
        assert kernel(value, out=(1,))[0] == value.max()
        value[-1, -1] = np.nan
        assert np.isnan(kernel(value, out=(1,))[0])


@sweep(2)
@pytest.mark.parametrize("columns", [1, 17, 128, 1030, _STREAM, _SPAN + 17])
def test_columns(tmp_path: Path, columns: int) -> None:
    x, k = tensor(n, m), over(n)
    kernel = Kernel(tmp_path, [x, compute((m,), lambda j: te.sum(x[k, j], axis=k))])
    for rows in (0, 1, ROWS + 1, _LONG // columns, _LONG // columns + ROWS + RUN + 1):
        value = normal(rows, columns)
        expected = value.sum(0, dtype="float64")
        np.testing.assert_allclose(kernel(value, out=(columns,)), expected, rtol=1e-4, atol=2e-2)


@pytest.mark.parametrize("columns", [3, _SPAN + 17])
def test_columns_of_what_is_no_vector(tmp_path: Path, columns: int) -> None:
    x, k = tensor(n, m), over(n)
    out = compute((m,), lambda j: te.sum(tirx.hypot(x[k, j], x[k, j]), axis=k))
    kernel = Kernel(tmp_path, [x, out])
    value = normal(_LONG // columns + RUN + 1, columns)
    expected = np.hypot(value, value).sum(0, dtype="float64")
    np.testing.assert_allclose(kernel(value, out=(columns,)), expected, rtol=1e-4)


@pytest.mark.parametrize("target", [HOST, AVX2], ids=["host", "avx2"])
def test_the_largest_of_a_column_passes_a_nan_on(tmp_path: Path, target: Target) -> None:
    x, k = tensor(n, m), over(n)
    out = compute((m,), lambda j: scalar.reduce_max(x[k, j], axis=[k]))
    kernel = Kernel(tmp_path, [x, out], target)
    for rows in (5, _LONG // 150 + 1):
        value = normal(rows, 150)
        value[0, 1] = value[-1, 2] = value[rows // 2, 149] = np.nan
        np.testing.assert_array_equal(kernel(value, out=(150,)), value.max(0))
