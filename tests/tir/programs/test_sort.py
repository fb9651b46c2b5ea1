"""The merge sort of `relaxpy.tir.programs.sort`, compiled and as Python, beside numpy's."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.module import IRModule
from relaxpy.ir.structural import structural_equal
from relaxpy.op.sorting import order_of
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.sort import sort_rows
from relaxpy.tir.to_python import to_python


def sorting_program(axis: int, descending: bool, dtype: str = "float32") -> PrimFunc:
    shape = (SymVar("n").dim, SymVar("m").dim)
    x = te.placeholder(shape, dtype, "x")
    return PrimFunc.from_te([x], sort_rows(x, shape, axis, descending=descending, order="int64"))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("descending", [False, True])
def test_every_length_up_to_some(axis: int, descending: bool) -> None:
    """Runs that do not come out even, with many equal elements and NaNs, and rows of none."""
    program = sorting_program(axis, descending)
    kernels = Kernels({"k": program})
    rng = np.random.default_rng(axis)
    for length in range(20):
        shape = (length, 3) if axis == 0 else (3, length)
        x = rng.choice(np.array([np.nan, 1, 2, 3, -0.0, 0, np.inf], np.float32), shape)
        order = order_of(x, axis, descending)
        want = np.take_along_axis(x, order, axis)
        for run in (lambda *a: kernels.run("k", a[:1], a[1:]), to_python(program.func)):
            values, places = np.full_like(x, 77), np.full(shape, 77, np.int64)
            run(x, values, places)
            np.testing.assert_array_equal(places, order)
            np.testing.assert_array_equal(values, want)


def test_a_long_row_takes_n_log_n() -> None:
    """300 000 elements: a quadratic sort would take minutes."""
    kernels = Kernels({"k": sorting_program(1, False)})
    x = np.random.default_rng(0).random((1, 300_000), np.float32)
    values, places = np.empty_like(x), np.empty(x.shape, np.int64)
    kernels.run("k", [x], [values, places])
    np.testing.assert_array_equal(values, np.sort(x))
    np.testing.assert_array_equal(np.take_along_axis(x, places, 1), values)


@pytest.mark.parametrize("size", [7, SymVar("m").dim], ids=["static", "symbolic"])
def test_the_program_prints_and_parses(size: int | Dim) -> None:
    """Written so that TVM's parser, which folds constants, gives the same program."""
    shape = (SymVar("n").dim, Dim.of(size))
    x = te.placeholder(shape, "float32", "x")
    mod = IRModule({"k": PrimFunc.from_te([x], sort_rows(x, shape, 1, order="int64"))})
    assert structural_equal(mod, relaxpy.parse(mod.script()))


@pytest.mark.parametrize("count", [1, 3, 64, 65])
@pytest.mark.parametrize("descending", [False, True])
def test_the_first_few_are_those_of_the_sort(count: int, descending: bool) -> None:
    """By insertion up to some number, by a whole sort above it: NaNs, zeros of both signs, equal elements, and rows in
    the order in which every element is inserted."""
    shape = (SymVar("n").dim, SymVar("m").dim)
    x = te.placeholder(shape, "float32", "x")
    found = sort_rows(x, shape, 1, descending=descending, order="int32", first=Dim.of(count))
    kernels = Kernels({"k": PrimFunc.from_te([x], found)})
    rng = np.random.default_rng(count)
    few = np.array([np.nan, 1, 2, 3, -0.0, 0, np.inf, -np.inf], np.float32)
    rows = [rng.choice(few, 300), rng.standard_normal(300).astype(np.float32)]
    given = np.stack([*rows, np.sort(rows[1]), np.sort(rows[1])[::-1], rng.choice(few[4:6], 300)])
    for length in (count, 100, 300):
        array = np.ascontiguousarray(given[:, :length])
        order = order_of(array, 1, descending)[:, :count]
        values, places = np.empty(order.shape, np.float32), np.empty(order.shape, np.int32)
        kernels.run("k", [array], [values, places])
        np.testing.assert_array_equal(places, order)
        np.testing.assert_array_equal(values, np.take_along_axis(array, order, 1))
