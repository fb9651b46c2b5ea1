"""Dimensions as expressions over a heap."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.int_expr import int_expr
from relaxpy.errors import RelaxError
from relaxpy.ir.dim import Dim, SymVar, dim_sum, maximum
from relaxpy.runtime.bytecode import Heap, IntExpr, IntOp
from relaxpy.runtime.integers import compute

N, M = SymVar("n"), SymVar("m")
SLOTS = {N.dim: 0, M.dim: 1, N.dim * 4: 2}


def value(expr: IntExpr, heap: list[int]) -> int:
    if isinstance(expr, int):
        return expr
    if isinstance(expr, Heap):
        return heap[expr.index]
    return compute(expr.op, [value(arg, heap) for arg in expr.args])


@pytest.mark.parametrize(
    "dim",
    [Dim.of(3), N.dim, N.dim * 4, N.dim * M - 7, N.dim * N * N + 2, (N.dim + 3) // 4, maximum(N, M)],
)  # fmt: skip
def test_the_same_number(dim: Dim) -> None:
    assert value(int_expr(dim, SLOTS), [5, 9, 20]) == dim.evaluate({N: 5, M: 9})


def test_what_stands_on_the_heap_is_read() -> None:
    assert int_expr(N.dim * 4, SLOTS) == Heap(2)


@pytest.mark.parametrize("count", [32, 33, 150, 1000])
def test_a_long_sum_is_not_nested_as_deep(count: int) -> None:
    """A file, the verifier and Python take a limited depth."""
    sizes = [SymVar(f"s{i}") for i in range(count)]
    dim = dim_sum(size.dim * (-1) ** i * (i + 1) for i, size in enumerate(sizes)) + 5
    found = int_expr(dim, {size.dim: i for i, size in enumerate(sizes)})
    heap = [i * i % 7 for i in range(count)]
    assert value(found, heap) == dim.evaluate(dict(zip(sizes, heap, strict=True)))

    def depth(expr: IntExpr) -> int:
        return 1 + max(map(depth, expr.args), default=0) if isinstance(expr, IntOp) else 0

    assert depth(found) <= 40


@pytest.mark.parametrize("factor", [2**63 - 1, 2**63, 2**64 + 5, -(2**63) - 1, 3**90, -(3**90)])
def test_numbers_beyond_64_bits(factor: int) -> None:
    """They are computed of such that bytecode has."""
    for dim in (N.dim * factor + M, N.dim + factor, Dim.of(factor)):
        found = int_expr(dim, SLOTS)
        assert value(found, [5, 9, 20]) == dim.evaluate({N: 5, M: 9})
        assert all(-(2**63) <= number < 2**63 for number in numbers(found))


def numbers(expr: IntExpr) -> list[int]:
    if isinstance(expr, IntOp):
        return [number for arg in expr.args for number in numbers(arg)]
    return [expr] if isinstance(expr, int) else []


LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    "size", [f"n * {LARGEST} + {LARGEST}", f"n * {2**62} + n * n", f"n * {2**63}"]
)
@pytest.mark.parametrize(
    "call",
    [
        'R.full(R.shape([{}]), R.const(1, "float32"))',
        'R.add(R.match_cast(x, R.Tensor(({},), "float32")), x)',
    ],
)
def test_sizes_near_the_limit_are_computed_or_refused_with_the_place(size: str, call: str) -> None:
    text = f"""
@R.function
def main(x: R.Tensor(("n",), "float32")):
    n = T.int64()
    y = {call.format(size)}
    return y
"""
    with pytest.raises(RelaxError) as caught:
        relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)))["main"](np.zeros(2, "float32"))
    assert caught.value.span is not None
