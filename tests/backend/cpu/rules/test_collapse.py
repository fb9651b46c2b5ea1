"""Axes that every access goes through in order become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.backend.cpu.rules.collapse import collapse
from relaxpy.tir.programs.loops import Program
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.tvm import te
from tests.backend.support import Kernel, compute, d, m, n, normal, over, tensor


def axes_left(
    shape: Sequence[Any], value: Callable[..., Any], *inputs: Any, shared: bool = False
) -> int:
    func = te.create_prim_func([*inputs, compute(shape, value)])
    (stage,) = s.read_stages(func) or []
    kept = frozenset([stage.buffer]) if shared else frozenset()
    return len(collapse(Program(), stage, (), kept).axes)


def test_what_can_be_joined() -> None:
    x, scale, row = tensor(n, m, d), tensor(m, name="scale"), tensor(d, name="row")
    shape = (n, m, d)
    assert axes_left(shape, lambda i, j, k: x[i, j, k], x) == 1
    assert axes_left(shape, lambda i, j, k: x[i, j, k] * row[k], x, row) == 2
    assert axes_left(shape, lambda i, j, k: x[i, j, k] * scale[j], x, scale) == 3
    assert axes_left((d, n, m), lambda k, i, j: x[i, j, k], x) == 2
    assert axes_left(shape, lambda i, j, k: x[i, j, k] * k.astype("float32"), x) == 2


@pytest.mark.parametrize("rows", [n, 3])
def test_an_axis_that_is_a_value(tmp_path: Path, rows: Any) -> None:
    """The number of a column's row, which becomes a flat axis: the value has it under its new name."""
    x = tensor(rows, 1)
    kernel = Kernel(tmp_path, [x, compute((rows, 1), lambda i, _: x[i, 0] * i.astype("float32"))])
    for size in (3,) if rows == 3 else (0, 1, 3, 16, 33):
        value = normal(size, 1)
        expected = value * np.arange(size, dtype="float32")[:, None]
        np.testing.assert_array_equal(kernel(value, out=(size, 1)), expected)


def test_a_buffer_that_others_access_stays() -> None:
    x = tensor(n, m)
    assert axes_left((n, m), lambda i, j: x[i, j], x, shared=True) == 2


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_reduced_axes_run_in_the_order_of_memory(tmp_path: Path, order: tuple[int, int]) -> None:
    x, sizes = tensor(n, m, d), (n, m, d)
    loops = {a: over(sizes[a], f"k{a}") for a in order}
    out = compute((n,), lambda i: te.sum(x[i, loops[1], loops[2]], axis=list(loops.values())))
    (stage,) = s.read_stages(te.create_prim_func([x, out])) or []
    assert len(collapse(Program(), stage).reduce_axes) == 1
    kernel = Kernel(tmp_path, [x, out])
    for shape in [(2, 0, 3), (3, 1, 1), (2, 7, 7), (1, 17, 33)]:
        value = normal(*shape)
        expected = value.sum((1, 2), dtype="float64")
        np.testing.assert_allclose(
            kernel(value, out=shape[:1]), expected.astype("float32"), rtol=1e-5, atol=1e-4
        )


def test_a_read_that_is_uneven_along_an_axis(tmp_path: Path) -> None:
    """`w` is one long array along i, though not along its last dimension; `x` is uneven along i, and one array along
    j and k: these become one axis, and i keeps its name."""
    x, w = tensor(3, m, d, name="x"), tensor(6, 1, name="w")

    def value(i: Any, j: Any, k: Any) -> Any:
        return x[i // 2, j, k] * w[i, 0]

    assert axes_left((6, m, d), value, x, w) == 2
    kernel = Kernel(tmp_path, [x, w, compute((6, m, d), value)])
    for rows, columns in ((1, 1), (4, 4), (5, 17), (0, 3)):
        first, second = normal(3, rows, columns), normal(6, 1)
        expected = first.repeat(2, axis=0) * second[:, :, None]
        np.testing.assert_array_equal(kernel(first, second, out=(6, rows, columns)), expected)
