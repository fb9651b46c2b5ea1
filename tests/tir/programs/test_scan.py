"""Running totals, compiled and as Python."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from relaxpy.ir.dim import SymVar
from relaxpy.ir.dtype import DType
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.scan import scan
from relaxpy.tir.to_python import to_python


@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_sums_along_each_axis(axis: int | None) -> None:
    shape = tuple(SymVar(name).dim for name in "nml")
    x = te.placeholder(shape, "int64", "x")
    out = scan(x, shape, axis, DType("int64"), operator.add, 0)
    program = PrimFunc.from_te([x], [out], [])
    kernels = Kernels({"k": program})
    for sizes in ((2, 3, 4), (1, 1, 1), (0, 2, 3), (2, 0, 3), (2, 3, 0), (2, 3, 130), (3, 2, 64)):
        values = np.random.default_rng(0).integers(-9, 9, sizes)
        want = np.cumsum(values, axis)
        for run in (lambda *a: kernels.run("k", a[:1], a[1:]), to_python(program.func)):
            got = np.full_like(want, 77)
            run(values, got)
            np.testing.assert_array_equal(got, want)


def test_exclusive_starts_with_the_result_of_nothing() -> None:
    n = SymVar("n").dim
    x = te.placeholder([n], "int64", "x")
    out = scan(x, [n], 0, DType("int64"), operator.mul, 1, exclusive=True)
    got = np.empty(4, np.int64)
    to_python(PrimFunc.from_te([x], [out]).func)(np.array([2, 3, 5, 7]), got)
    assert got.tolist() == [1, 2, 6, 30]


def test_narrow_floats_are_added_in_float32() -> None:
    """2048 + 1 is 2048 in float16: a total kept in it would stay there."""
    n = SymVar("n").dim
    x = te.placeholder([n], "float16", "x")
    program = PrimFunc.from_te([x], [scan(x, [n], 0, DType("float16"), operator.add, 0)])
    got = np.empty(4097, np.float16)
    Kernels({"k": program}).run("k", [np.ones(4097, np.float16)], [got])
    assert got[-1] == 4096
