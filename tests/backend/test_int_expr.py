"""Dimensions as expressions over a heap."""

from __future__ import annotations

import pytest

from relaxpy.backend.int_expr import int_expr
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
