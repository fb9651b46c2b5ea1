"""Interval analysis of formulas, to find operations that cannot overflow.

Formulas are computed in 64 bits, and an operation that overflows is an error. Python's integers have arbitrary
precision, so the linked code compares results with the limits of 64 bits. For small sizes it need not: `SlotRanges`
finds a limit up to which no formula of a function can overflow. Sizes that a `Match` binds are compared with this limit
once, and only calls with larger sizes check every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from relaxpy.runtime.bytecode import Assert, Eval, FunctionCode, Heap, IntExpr, IntOp, Match
from relaxpy.runtime.effects import pattern_slots
from relaxpy.runtime.integers import LARGEST, SMALLEST, slots_of

Interval: TypeAlias = "tuple[int, int]"
"""The smallest and the largest value."""

INT64: Interval = (SMALLEST, LARGEST)
_LIMITS = tuple((1 << bits) - 1 for bits in (40, 31, 24, 20, 15))
"""Candidate limits for sizes. With 20 bits, a product of three sizes leaves room for further factors."""


def interval(op: str, args: list[Interval]) -> Interval:
    """The interval of the exact result of an operation, given those of its operands."""
    lows, highs = [low for low, _ in args], [high for _, high in args]
    match op:
        case "add":
            return lows[0] + lows[1], highs[0] + highs[1]
        case "sub":
            return lows[0] - highs[1], highs[0] - lows[1]
        case "mul":
            corners = [a * b for a in args[0] for b in args[1]]
            return min(corners), max(corners)
        case "floordiv":
            if lows[1] > 0:
                corners = [a // b for a in args[0] for b in args[1]]
                return min(corners), max(corners)
            most = max(abs(lows[0]), abs(highs[0]))
            return -most, most
        case "floormod":
            # The remainder has the sign of the divisor and is smaller in magnitude.
            return min(lows[1] + 1, 0), max(highs[1] - 1, 0)
        case "min":
            return min(lows), min(highs)
        case "max":
            return max(lows), max(highs)
        case "select":
            return min(lows[1:]), max(highs[1:])
        case _:
            return 0, 1


def fits(found: Interval) -> bool:
    """Whether an interval is inside the range of int64."""
    return found[0] >= SMALLEST and found[1] <= LARGEST


def within(found: Interval) -> Interval:
    """The part of an interval that is inside the range of int64."""
    return min(max(found[0], SMALLEST), LARGEST), max(min(found[1], LARGEST), SMALLEST)


class SlotRanges:
    """The intervals of a function's heap slots."""

    def __init__(self, code: FunctionCode, fold: Callable[[IntExpr], IntExpr]) -> None:
        """`fold` replaces constant slots in a formula by their values."""
        self.evals: dict[int, list[IntExpr]] = {}
        self.matched: set[int] = set()
        self.formulas = list(map(fold, code.storages))
        for instr in code.code:
            if isinstance(instr, Eval):
                expr = fold(instr.expr)
                self.evals.setdefault(instr.dst, []).append(expr)
                self.formulas.append(expr)
            elif isinstance(instr, Match):
                self.matched.update(pattern_slots(instr.pattern))
            elif isinstance(instr, Assert):
                self.formulas += [fold(instr.lhs), fold(instr.rhs)]
        self.any = self._ranges(None)
        """Slot → interval, for sizes of any value."""
        open_ = [expr for expr in self.formulas if not self.proved(expr, self.any)]
        self.guarded = frozenset(self._origins(open_))
        """Slots that a `Match` binds, and whose values must be small to exclude overflow."""
        self.limit = 0
        """The largest value that is small."""
        self.small = self.any
        """Slot → interval, for small sizes."""
        for limit in _LIMITS if self.guarded else ():
            self.limit, self.small = limit, self._ranges(limit)
            if all(self.proved(expr, self.small) for expr in open_):
                break

    def _ranges(self, limit: int | None) -> dict[int, Interval]:
        """The intervals of the written slots. `limit` is the upper bound of guarded slots."""
        found: dict[int, Interval] = {}
        for slot in self.matched:
            small = limit is not None and slot in self.guarded and slot not in self.evals
            found[slot] = (0, limit) if small and limit is not None else INT64
        for slot, exprs in self.evals.items():
            # A slot that several instructions write may hold the value of any of them.
            once = len(exprs) == 1 and slot not in self.matched
            found[slot] = within(self.of(exprs[0], found)) if once else INT64
        return found

    def of(self, expr: IntExpr, slots: dict[int, Interval]) -> Interval:
        """The interval of a formula, provided that it does not overflow."""
        if isinstance(expr, Heap):
            return slots.get(expr.index, INT64)
        if isinstance(expr, IntOp):
            return interval(expr.op, [within(self.of(arg, slots)) for arg in expr.args])
        return expr, expr

    def proved(self, expr: IntExpr, slots: dict[int, Interval]) -> bool:
        """Whether no operation of a formula can overflow."""
        if not isinstance(expr, IntOp):
            return True
        return fits(self.of(expr, slots)) and all(self.proved(arg, slots) for arg in expr.args)

    def _origins(self, formulas: list[IntExpr]) -> Iterator[int]:
        """The slots bound by `Match` that these formulas depend on."""
        todo = list(formulas)
        seen: set[int] = set()
        while todo:
            for slot in slots_of(todo.pop()):
                if slot not in seen:
                    seen.add(slot)
                    todo += self.evals.get(slot, [])
                    if slot in self.matched:
                        yield slot
