"""Given indices: the same numbers, at addresses that are sums; other code generators see nothing of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaxpy.backend.cpu.compile import compile_source
from relaxpy.target import Target
from relaxpy.tir.lowering.given import with_given
from relaxpy.tir.programs import loops
from relaxpy.tir.tvm import tirx
from tests.backend.support import as_tensor, load, m, n

ROWS = 24
"""Rows of a tile: more than there are registers."""


def tiles(*, given: bool) -> tirx.PrimFunc:
    """A program that copies the first column, `ROWS` rows at a time, backwards."""
    x, y = (tirx.decl_buffer([n, m], "float32", name, layout=None) for name in "xy")
    p = loops.Program()
    from_, to = p.flat_view(x), p.flat_view(y)
    with p.loop("i", loops.floordiv(n, ROWS), rolled=True) as i:
        first = p.given("first", i * ROWS) if given else i * ROWS
        for row in range(ROWS):
            value = loops.load(from_, (first + (ROWS - 1 - row)) * m)
            p.store(to, (first + row) * m, value)
    return loops.finished(tirx.PrimFunc([x, y], tirx.Evaluate(0)), p.body())


@pytest.mark.parametrize("given", [False, True])
def test_the_same_numbers(given: bool, tmp_path: Path) -> None:
    kernel = load(tmp_path, {"k": tiles(given=given)})["k"]
    x = np.arange(3 * ROWS * 37, dtype=np.float32).reshape(3 * ROWS, 37)
    y = np.zeros_like(x)
    kernel(as_tensor(x), as_tensor(y))
    expected = x[:, 0].reshape(3, ROWS)[:, ::-1].ravel()
    np.testing.assert_array_equal(y[:, 0], expected)


def test_other_code_generators() -> None:
    assert "relaxpy_given" not in compile_source({"k": tiles(given=True)}, Target.parse("c"))


def test_programs_without_them_stay() -> None:
    func = tiles(given=False)
    assert with_given(func, for_llvm=True).same_as(func)
