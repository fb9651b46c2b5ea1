"""Functions of one element where TVM would assume too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.dim import SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.structural import structural_equal
from relaxpy.testing.kernels import Kernels
from relaxpy.tir import te
from relaxpy.tir.numerics import scalar
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.to_python import to_python
from relaxpy.transform import LegalizeOps


@pytest.mark.parametrize(
    ("source", "target"), [("uint64", "int64"), ("uint64", "int32"), ("uint32", "int32"), ("uint8", "int8")]
)  # fmt: skip
def test_checks_of_converted_unsigned_integers_stay(source: str, target: str) -> None:
    """A huge unsigned index is negative as a signed one: the check that keeps it out of a tensor is not dropped."""
    n = SymVar("n").dim
    x = te.placeholder([n], source, "x")

    def element(i: te.Index) -> te.Tensor:
        value = scalar.cast(x(i), DType(target))
        inside = scalar.greater_equal(value, scalar.literal(0, value))
        return te.select(inside, value, scalar.literal(-7, value))

    program = PrimFunc.from_te([x], [te.compute([n], element)])
    numbers = np.array([0, 1, np.iinfo(source).max, np.iinfo(source).max // 2 + 1], source)
    want = numbers.astype(target)
    want = np.where(want >= 0, want, -7).astype(target)
    kernel, python = np.zeros_like(want), np.zeros_like(want)
    Kernels({"k": program}).run("k", [numbers], [kernel])
    to_python(program.func)(numbers, python)
    np.testing.assert_array_equal(kernel, want)
    np.testing.assert_array_equal(python, want)


def test_comparisons_of_nan_are_not_turned_around() -> None:
    """TVM's simplifier makes `a >= b` of `not a < b`, and true of `x == x`."""
    nan = np.float32("nan")
    a = np.array([nan, 1, 2, nan, 3], np.float32)
    b = np.array([1, nan, 1, nan, 5], np.float32)
    cases = {
        "not_less": (lambda x, y: scalar.logical_not(scalar.less(x, y)), ~(a < b)),
        "not_greater": (lambda x, y: scalar.logical_not(scalar.greater(x, y)), ~(a > b)),
        "not_equal": (lambda x, y: scalar.logical_not(scalar.equal(x, y)), ~(a == b)),
        "itself": (lambda x, _: scalar.equal(x, x), ~np.isnan(a)),
        "not_both": (
            lambda x, y: scalar.logical_not(
                scalar.logical_and(scalar.less(x, y), scalar.less(y, x))
            ),
            np.ones(5, bool),
        ),
    }
    n = SymVar("n").dim
    x, y = te.placeholder([n], "float32", "x"), te.placeholder([n], "float32", "y")

    def program(function: Callable[[Any, Any], Any]) -> PrimFunc:
        return PrimFunc.from_te([x, y], [te.compute([n], lambda i: function(x(i), y(i)))])

    kernels = Kernels({name: program(function) for name, (function, _) in cases.items()})
    for name, (_, want) in cases.items():
        got = np.zeros(5, bool)
        kernels.run(name, [a, b], [got])
        np.testing.assert_array_equal(got, want, name)


def test_a_value_with_names_is_cast_to_integers_once() -> None:
    """Found by `relaxpy fuzz`, seed 410: the names were defined at every copy of the value, and the text did not parse."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "int32"), y: R.Tensor(("n",), "int32")):
    return R.log_add_exp(x, y)
""")
    legal = LegalizeOps()(mod)
    assert structural_equal(relaxpy.parse(legal.script()), legal)
    x, y = np.array([1, 5, -3], np.int32), np.array([0, 0, 7], np.int32)
    run = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    np.testing.assert_array_equal(run(x, y).numpy(), np.logaddexp(x, y).astype(np.int32))


def test_a_sum_with_a_constant_is_divided_by_a_literal() -> None:
    """Found by `relaxpy fuzz`, seed 517: TVM's simplifier failed to compare `k * 4 + 3` with the smallest integer."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor((4, "k + 1"), "float32"), y: R.Tensor(("k",), "float32")):
    return R.median(x)
""")
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    found = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x, np.zeros(3, np.float32))
    assert found.numpy() == np.sort(x.reshape(-1))[7]
