"""Sizes: what is proved of them is true for numbers."""

from __future__ import annotations

import random
from itertools import product

from relaxpy.runtime.bytecode import INT_OPS, Heap, IntExpr, IntOp
from relaxpy.runtime.integers import ARITY, compute
from relaxpy.runtime.sizes import Sizes, number, plus, value_of


def random_expr(rng: random.Random, depth: int) -> IntExpr:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([Heap(0), Heap(1), Heap(2), rng.randrange(-3, 9)])
    op = rng.choice(INT_OPS)
    count = abs(ARITY.get(op, 2))
    return IntOp(op, tuple(random_expr(rng, depth - 1) for _ in range(count)))


def value(expr: IntExpr, heap: tuple[int, ...]) -> int:
    if isinstance(expr, Heap):
        return heap[expr.index]
    return expr if isinstance(expr, int) else compute(expr.op, [value(a, heap) for a in expr.args])


HEAPS = [*product((0, 1, 2, 5, 7), repeat=3), (64, 3, 1000), (1 << 40, 1, 12)]


def holds(heap: tuple[int, ...], *exprs: IntExpr) -> list[int] | None:
    try:
        return [value(expr, heap) for expr in exprs]
    except ZeroDivisionError:
        return None


def test_what_is_proved_is_true() -> None:
    """Equalities and signs of random formulas, with what a random check has established and without."""
    proved = 0
    for seed in range(1500):
        rng = random.Random(seed)
        sizes = Sizes()
        slots = [sizes.fresh(0) for _ in range(3)]
        a, b = random_expr(rng, 3), random_expr(rng, 3)
        left, right = sizes.of(a, slots.__getitem__), sizes.of(b, slots.__getitem__)
        known = random_expr(rng, 2)
        condition = IntOp(rng.choice(["le", "lt", "eq"]), (known, random_expr(rng, 1)))
        mark = sizes.mark()
        if seed % 3:
            sizes.assume(condition, slots.__getitem__)
        heaps = [h for h in HEAPS if not seed % 3 or (holds(h, condition) or [0])[0]]
        low, high = sizes.limits(left)
        equal, ordered = sizes.are_equal(left, right), sizes.is_at_least_0(plus(left, right, -1))
        proved += equal + ordered + (low is not None) + (high is not None)
        for heap in heaps:
            found = holds(heap, a, b)
            if found is not None:
                x, y = found
                case = (seed, a, b, condition, heap)
                assert not equal or x == y, case
                assert not ordered or x >= y, case
                assert low is None or x >= low, case
                assert high is None or x <= high, case
        sizes.undo(mark)
    assert proved > 700


def test_normal_form() -> None:
    sizes = Sizes()
    n, m = sizes.fresh(0), sizes.fresh(0)

    def of(expr: IntExpr) -> object:
        return sizes.of(expr, [n, m].__getitem__)

    one = IntOp("mul", (IntOp("add", (Heap(0), 1)), 4))
    assert of(one) == of(IntOp("add", (4, IntOp("mul", (4, Heap(0))))))
    assert of(IntOp("mul", (Heap(0), Heap(1)))) == of(IntOp("mul", (Heap(1), Heap(0))))
    assert of(IntOp("floordiv", (one, 4))) == of(IntOp("add", (1, Heap(0))))
    assert of(IntOp("floormod", (one, 4))) == number(0)
    assert of(IntOp("max", (Heap(0), 0))) == n
    assert value_of(sizes.of(IntOp("sub", (3, 3)), [n].__getitem__)) == 0


def test_facts_end_with_their_branch() -> None:
    sizes = Sizes()
    n, m = sizes.fresh(0), sizes.fresh(0)
    mark = sizes.mark()
    sizes.assume(
        IntOp("and", (IntOp("eq", (Heap(0), Heap(1))), IntOp("le", (Heap(0), 8)))),
        [n, m].__getitem__,
    )
    assert sizes.are_equal(n, m)
    assert sizes.is_at_least_0(plus(number(64), sizes.times(m, number(8)), -1))
    # An operation that is first met here is not limited for good.
    half = sizes.apply("floordiv", (n, number(2)))
    assert sizes.limits(half) == (0, 4)
    sizes.undo(mark)
    assert not sizes.are_equal(n, m)
    assert sizes.limits(half) == (0, None)


def test_what_grows_becomes_an_atom() -> None:
    """Squares of squares, and sums of ever more terms, stay small."""
    sizes = Sizes()
    size = plus(sizes.fresh(0), sizes.fresh(0))
    for _ in range(200):
        size = sizes.times(size, size)
        assert len(size) < 100
    for _ in range(200):
        size = sizes.apply("add", (size, sizes.fresh(0)))
        assert len(size) < 100
    assert sizes.is_at_least_0(size) in (True, False)
