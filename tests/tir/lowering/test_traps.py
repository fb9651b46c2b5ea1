"""Divisions by sizes that are 0 when the program runs: they give 0, and the process lives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaxpy.script.parser import parse
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import te
from tests.backend.support import Kernel, compute, n, over, tensor


@pytest.mark.parametrize("divisor", [0, 1, 3])
def test_divisions_by_a_size(divisor: int) -> None:
    """In a program that divides by it though no loop runs, and one whose buffer has that size."""
    mod = parse("""
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func
    def main(x: T.Buffer(("n",), "float32"), y: T.Buffer((7,), "int64"), k: T.int64):
        n = T.int64()
        parts = T.sblock_alloc_buffer((7 // k,), "float32")
        for i in range(7 // k):
            with T.sblock("parts"):
                v = T.axis.spatial(7 // k, i)
                parts[v] = T.Cast("float32", v)
        for i in range(7):
            with T.sblock("y"):
                v = T.axis.spatial(7, i)
                y[v] = v // n + v % n
""")
    program = mod["main"]
    assert isinstance(program, PrimFunc)
    out = np.full(7, -1)
    for schedule in (True, False):
        Kernels({"main": program}, schedule=schedule).run(
            "main", [np.ones(divisor, "float32")], [out], [divisor]
        )
        expected = [v // divisor + v % divisor if divisor else 0 for v in range(7)]
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("size", [0, 1, 5, 363])
def test_a_buffer_of_a_condition_whose_size_divides(tmp_path: Path, size: int) -> None:
    """A long reduction, in blocks: TVM allocates their results outside of the condition that it is long."""
    x, y = tensor(2, n, n), tensor(n, n, name="y")
    i, j, k = over(2, "i"), over(n, "j"), over(n, "k")
    total = compute((), lambda: te.sum(x[i, j, k] * y[j, k], axis=[i, j, k]))
    kernel = Kernel(tmp_path, [x, y, total], Target.parse("llvm -opt-level=0"))
    a, b = np.ones((2, size, size), "float32"), np.ones((size, size), "float32")
    np.testing.assert_array_equal(kernel(a, b, out=()), np.float32(2 * size * size))
