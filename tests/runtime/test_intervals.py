"""Intervals of formulas: every result is in one, and what is proved not to overflow does not."""

from __future__ import annotations

from typing import Any

import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.bytecode import (
    Eval,
    Heap,
    If,
    IntExpr,
    IntOp,
    MakePrim,
    Match,
    PrimPattern,
    Return,
)
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.integers import LARGEST, SMALLEST, evaluate
from relaxpy.runtime.intervals import Interval, SlotRanges, interval, within
from tests.machine.formulas import RandomFormulas, int_expr_of
from tests.runtime.support import f32, function

N, M = Heap(0), Heap(1)


def intervals_of(expr: IntExpr, slots: list[Interval]) -> Interval:
    if isinstance(expr, Heap):
        return slots[expr.index]
    if isinstance(expr, IntOp):
        return within(interval(expr.op, [intervals_of(arg, slots) for arg in expr.args]))
    return expr, expr


def overflows(expr: IntExpr, heap: list[int]) -> bool:
    try:
        evaluate(expr, heap.__getitem__)
    except OverflowError:
        return True
    except ZeroDivisionError:
        return False
    return False


def test_a_result_is_in_its_interval() -> None:
    rng = RandomFormulas(1)
    tried = 0
    for _ in range(3000):
        ends = [sorted((rng.number(), rng.number())) for _ in range(5)]
        slots = [(low, high) for low, high in ends]
        expr = int_expr_of(rng.formula(3))
        low, high = intervals_of(expr, slots)
        for _ in range(5):
            heap = [
                a + rng.below(b - a + 1) if b - a < 1 << 50 else rng.choice((a, b))
                for a, b in slots
            ]
            try:
                value = evaluate(expr, heap.__getitem__)
            except ArithmeticError:
                continue
            tried += 1
            assert low <= value <= high, (expr, heap)
    assert tried > 5000


def ranges(*exprs: IntExpr) -> SlotRanges:
    body = [*(Eval(0, 2 + i, expr) for i, expr in enumerate(exprs)), Return(0, 0)]
    code = function("main", [("x", f32(N, M))], body, heap=[0] * (2 + len(exprs)))
    return SlotRanges(code, lambda expr: expr)


def test_the_limit_is_as_large_as_formulas_allow() -> None:
    assert ranges(IntOp("min", (N, M))).guarded == frozenset()
    assert ranges(IntOp("mul", (N, 4))).guarded == {0}
    limits = [
        ranges(expr).limit.bit_length()
        for expr in (
            IntOp("mul", (N, 4)),
            IntOp("mul", (N, M)),
            IntOp("mul", (IntOp("mul", (N, M)), N)),
            IntOp("mul", (IntOp("mul", (IntOp("mul", (N, M)), N)), M)),
        )
    ]
    assert limits == [40, 31, 20, 15]


def test_what_is_proved_never_overflows() -> None:
    rng = RandomFormulas(2)
    proved = 0
    for _ in range(2000):
        expr = int_expr_of(rng.formula(3))
        body = [Eval(0, 5, expr), Return(0, 0)]
        slots = [(f"p{i}", PrimPattern("int64", Heap(i))) for i in range(5)]
        found = SlotRanges(function("main", slots, body, heap=[0] * 6), lambda each: each)
        for where, limit in ((found.any, LARGEST), (found.small, found.limit)):
            if not found.proved(expr, where):
                continue
            proved += 1
            for _ in range(4):
                small = [
                    rng.choice((0, 1, limit, rng.below(limit + 1) if limit < 1 << 50 else limit))
                    for _ in range(5)
                ]
                any_ = [rng.choice((SMALLEST, LARGEST, -1, 0)) for _ in range(5)]
                heap = [
                    small[i] if where is found.small and i in found.guarded else any_[i]
                    for i in range(5)
                ]
                assert not overflows(expr, heap), (expr, heap)
    assert proved > 500


def main_of(*body: Any, **fields: Any) -> Any:
    code = function(
        "main", [("a", PrimPattern("int64", N)), ("b", PrimPattern("int64", M))], body, **fields
    )
    return VirtualMachine(Executable((code,)))["main"]


def test_large_sizes_are_compared_and_small_ones_not() -> None:
    main = main_of(Eval(0, 2, IntOp("mul", (N, M))), MakePrim(0, 2, Heap(2), "int64"), Return(0, 2))
    assert main.source.count("wide = True") == 2
    assert main(3, -5) == -15
    assert main(2**40, 2**22) == 2**62
    for args in ((2**40, 2**23), (-(2**63), -1), (2**62, -3)):
        with pytest.raises(RuntimeCheckError) as caught:
            main(*args)
        assert caught.value.code == "shape-arithmetic"
        assert caught.value.span is not None
    plain = main_of(
        Eval(0, 2, IntOp("min", (N, M))), MakePrim(0, 2, Heap(2), "int64"), Return(0, 2)
    )
    assert "wide" not in plain.source


def test_a_slot_that_is_bound_in_an_arm() -> None:
    """Formulas in the arm know that a size is large."""
    body = [
        MakePrim(0, 2, 0, "int64"),
        If(0, 0, 3, 0),
        Match(0, 1, PrimPattern("int64", M), 1),
        Eval(0, 2, IntOp("mul", (IntOp("mul", (M, M)), M))),
        MakePrim(0, 2, Heap(2), "int64"),
        Return(0, 2),
    ]
    params = [("c", PrimPattern("bool")), ("b", PrimPattern("int64"))]
    main = VirtualMachine(Executable((function("main", params, body),)))["main"]
    assert [main(False, 2**62), main(True, 2**20)] == [0, 2**60]
    with pytest.raises(RuntimeCheckError, match="does not fit into 64 bits"):
        main(True, 2**21)


def deep(op: str, levels: int, last: IntExpr) -> IntExpr:
    expr = last
    for _ in range(levels):
        expr = IntOp(op, (IntOp("min", (expr, 10**6)), 1))
    return expr


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        (IntOp("select", (IntOp("eq", (M, 0)), 7, deep("add", 60, IntOp("floordiv", (N, M))))), [7, 65]),
        (IntOp("and", (M, deep("add", 60, IntOp("floordiv", (N, M))))), [0, 1]),
        (IntOp("or", (IntOp("eq", (M, 0)), deep("add", 60, IntOp("floordiv", (N, M))), 1)), [1, 1]),
        (IntOp("select", (IntOp("eq", (M, 0)), deep("sub", 60, N), deep("add", 60, IntOp("floordiv", (N, M))))), [-50, 65]),
    ],
)  # fmt: skip
def test_what_is_not_asked_for_is_not_computed_however_deep(
    expr: IntExpr, wanted: list[int]
) -> None:
    """Deep formulas are computed piece by piece, on lines of their own: a division there must not come first."""
    main = main_of(Eval(0, 2, expr), MakePrim(0, 2, Heap(2), "int64"), Return(0, 2))
    assert [main(10, 0), main(10, 2)] == wanted
