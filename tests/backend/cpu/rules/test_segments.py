"""Choices along an axis: cut where they change, whatever way the condition is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.backend.cpu.rules.segments import segments
from relaxpy.tir.programs.loops import Program, int64
from relaxpy.tir.tvm import tirx
from tests.backend.support import Kernel, compute, d, f32, i64, m, n, normal, tensor
from tests.sweeps import sweep

CONDITIONS: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "j < 7": (lambda j: j < i64(7), lambda j: j < 7),
    "j <= 7": (lambda j: j <= i64(7), lambda j: j <= 7),
    "j > 7": (lambda j: j > i64(7), lambda j: j > 7),
    "j >= 7": (lambda j: j >= i64(7), lambda j: j >= 7),
    "7 < j": (lambda j: tirx.LT(i64(7), j), lambda j: j > 7),
    "9 - j < 2": (lambda j: i64(9) - j < i64(2), lambda j: 9 - j < 2),
    "9 - j >= 2": (lambda j: i64(9) - j >= i64(2), lambda j: 9 - j >= 2),
    "3 <= j < 20": (lambda j: tirx.And(j >= i64(3), j < i64(20)), lambda j: (j >= 3) & (j < 20)),
    "j < 3 or j > 20": (lambda j: tirx.Or(j < i64(3), j > i64(20)), lambda j: (j < 3) | (j > 20)),
    "not j < 5": (lambda j: tirx.Not(j < i64(5)), lambda j: j >= 5),
}


@sweep(2)
@pytest.mark.parametrize("name", CONDITIONS)
def test_every_way_to_compare(tmp_path: Path, name: str) -> None:
    condition, expected = CONDITIONS[name]
    x, y = tensor(n, m), tensor(n, m, name="y")
    out = compute((n, m), lambda i, j: tirx.if_then_else(condition(j), x[i, j], y[i, j]))
    kernel = Kernel(tmp_path, [x, y, out])
    assert "if_then_else" not in kernel.scheduled.serial.script()
    for shape in [(0, 3), (2, 0), (3, 1), (2, 8), (1, 21), (3, 130)]:
        a, b = normal(*shape), normal(*shape, seed=1)
        want = np.where(expected(np.arange(shape[1])), a, b)
        np.testing.assert_array_equal(kernel(a, b, out=shape), want)


def test_concatenation_of_three_along_the_last_axis(tmp_path: Path) -> None:
    xs = [tensor(2, size, name=name) for size, name in ((n, "x"), (m, "y"), (d, "z"))]

    def element(i: Any, j: Any) -> Any:
        last = tirx.if_then_else(j < n + m, xs[1][i, j - n], xs[2][i, j - n - m])
        return tirx.if_then_else(j < n, xs[0][i, j], last)

    kernel = Kernel(tmp_path, [*xs, compute((2, n + m + d), element)])
    for sizes in [(0, 0, 0), (1, 1, 1), (17, 0, 33), (0, 40, 3), (100, 64, 5)]:
        parts = [normal(2, size, seed=i) for i, size in enumerate(sizes)]
        expected = np.concatenate(parts, 1)
        np.testing.assert_array_equal(kernel(*parts, out=expected.shape), expected)


def test_what_depends_on_memory_is_not_cut() -> None:
    x, j = tirx.decl_buffer([int64(8)], "int64", "x", layout=None), tirx.Var("j", "int64")
    value = tirx.Select(j < tirx.BufferLoad(x, [j]), f32(1.0), f32(2.0))
    assert len(segments(Program(), value, j, int64(0), int64(8))) == 1
    value = tirx.Select(j < i64(4), f32(1.0), f32(2.0))
    assert len(segments(Program(), value, j, int64(0), int64(8))) == 2
