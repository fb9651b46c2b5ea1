"""Arithmetic on indices: numbers after simplification are those before."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.runtime import pool, tensor
from relaxpy.testing.guard_pages import allocate, guarded, status_in_child
from relaxpy.tir.programs import loops
from relaxpy.tir.recognise.stages import substitute
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import contains
from tests.sweeps import sweep

A, B = tirx.Var("a", "int64"), tirx.Var("b", "int64")
VALUES = {
    "a": A,
    "16 - a": 16 - A,
    "35 - a - b": 35 - A - B,
    "8 * a + b": 8 * A + B,
    "8 * b + 20 - a": 8 * B + 20 - A,
    "max(a - b, 0)": tirx.max(A - B, 0),
    "24 - min(a, b)": 24 - tirx.min(A, B),
    "(20 - a) // 3 + b": tirx.floordiv(20 - A, 3) + B,
}


@pytest.mark.parametrize("divisor", [1, 3, 8])
@pytest.mark.parametrize("value", VALUES)
def test_division_of_what_is_not_negative(value: str, divisor: int) -> None:
    """The simplifier may divide negative parts of a number that is not negative itself."""
    names = {"a": A, "b": B, "min": min, "max": max}
    quotient = loops.floordiv(VALUES[value], divisor)
    rest = loops.floormod(VALUES[value], divisor)
    rounded_up = loops.ceildiv(VALUES[value], divisor)
    for a in range(17):
        for b in range(17):
            number = eval(value, {**names, "a": a, "b": b})
            if number < 0:
                continue
            found = [evaluated(each, a, b) for each in (quotient, rest, rounded_up)]
            assert found == [number // divisor, number % divisor, -(-number // divisor)], (a, b)


@pytest.mark.parametrize("divisor", ["b", "12 or 24"])
def test_a_natural_number_rounded_up_needs_no_floor(divisor: str) -> None:
    """The sum that is divided has a negative part, but both numbers have none."""
    by = B if divisor == "b" else loops.select(B < 7, 12, 24)
    found = loops.ceildiv(A, by)
    assert not contains(found, (tirx.FloorDiv, tirx.FloorMod))
    for a in range(60):
        for b in range(1, 12):
            number = b if divisor == "b" else 12 if b < 7 else 24
            assert evaluated(found, a, b) == -(-a // number)
    assert contains(loops.ceildiv(16 - A, B), tirx.FloorDiv)


def evaluated(value: loops.Expr, a: int, b: int) -> int:
    """The value of an expression for numbers in place of the variables."""
    at = {A: loops.int64(a), B: loops.int64(b)}
    found = loops.constant(loops.simplify(substitute(value, at)))
    assert found is not None
    return found


@sweep(2)
@pytest.mark.parametrize("columns", [5, 21, 37, 45])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_padding_of_a_packed_weight_ends_with_it(columns: int, dtype: str) -> None:
    """The last panel is padded to its end, and no further."""
    text = f"""
@R.function
def main(x: R.Tensor(("n", 64), "{dtype}"), w: R.Tensor(({columns}, 64), "{dtype}")):
    R.func_attr({{"num_input": 1}})
    with R.dataflow():
        y = R.matmul(x, R.permute_dims(w))
        R.output(y)
    return y
"""
    exe = relaxpy.build(relaxpy.parse(text), pack=True)
    random = np.random.default_rng(0)
    x, w = (random.integers(-3, 4, shape).astype(dtype) for shape in ((3, 64), (columns, 64)))

    def call() -> None:
        tensor.allocate = pool.allocate = allocate  # type: ignore[assignment]
        vm = relaxpy.VirtualMachine(exe)
        found = vm["main"](guarded(x), *vm.pack({"w": guarded(w)})["main"])
        np.testing.assert_array_equal(found.numpy(), x @ w.T)

    assert status_in_child(call) == 0
