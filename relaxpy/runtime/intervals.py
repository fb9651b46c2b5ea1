"""Between which numbers formulas are, and where no overflow has to be looked for.

A formula is computed in 64 bits, and an operation whose result needs more is an error. Python's integers have any
number of bits, so the linked code compares. It need not where sizes are small: `SlotRanges` chooses a limit up to which
no formula of a function can overflow. What a `Match` binds is compared with the limit, once; only a call with larger
sizes compares at every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from relaxpy.runtime.bytecode import Assert, Eval, FunctionCode, Heap, IntExpr, IntOp, Match
from relaxpy.runtime.integers import LARGEST, SMALLEST, slots_of
from relaxpy.runtime.operands import pattern_slots

Interval: TypeAlias = "tuple[int, int]"
"""The smallest and the largest number."""

INT64: Interval = (SMALLEST, LARGEST)
_LIMITS = tuple((1 << bits) - 1 for bits in (40, 31, 24, 20, 15))
"""Limits of sizes to choose from: of what has three factors, 20 bits each leave room for some more."""


def interval(op: str, args: list[Interval]) -> Interval:
    """Between which numbers the exact result of an operation is."""
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
            # as large as the divisor at most, and of its sign
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
    """Are all numbers between these of 64 bits?"""
    return found[0] >= SMALLEST and found[1] <= LARGEST


def within(found: Interval) -> Interval:
    """Those of the numbers that are of 64 bits."""
    return min(max(found[0], SMALLEST), LARGEST), max(min(found[1], LARGEST), SMALLEST)


class SlotRanges:
    """Between which numbers the heap slots of a function are."""

    def __init__(self, code: FunctionCode, fold: Callable[[IntExpr], IntExpr]) -> None:
        """`fold` puts the numbers of constant slots into a formula."""
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
        """For sizes of any number: slot → interval."""
        open_ = [expr for expr in self.formulas if not self.proved(expr, self.any)]
        self.guarded = frozenset(self._origins(open_))
        """Slots that a `Match` binds, and whose numbers have to be small for formulas not to overflow."""
        self.limit = 0
        """The largest number that is small."""
        self.small = self.any
        """For small sizes: slot → interval."""
        for limit in _LIMITS if self.guarded else ():
            self.limit, self.small = limit, self._ranges(limit)
            if all(self.proved(expr, self.small) for expr in open_):
                break

    def _ranges(self, limit: int | None) -> dict[int, Interval]:
        """The intervals of what is written; `limit` is that of guarded slots."""
        found: dict[int, Interval] = {}
        for slot in self.matched:
            small = limit is not None and slot in self.guarded and slot not in self.evals
            found[slot] = (0, limit) if small and limit is not None else INT64
        for slot, exprs in self.evals.items():
            # A slot that is written in several places may hold what any of them has left.
            once = len(exprs) == 1 and slot not in self.matched
            found[slot] = within(self.of(exprs[0], found)) if once else INT64
        return found

    def of(self, expr: IntExpr, slots: dict[int, Interval]) -> Interval:
        """Between which numbers a formula is, if it does not overflow."""
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
        """The slots that values bind, of which these formulas are made."""
        todo = list(formulas)
        seen: set[int] = set()
        while todo:
            for slot in slots_of(todo.pop()):
                if slot not in seen:
                    seen.add(slot)
                    todo += self.evals.get(slot, [])
                    if slot in self.matched:
                        yield slot
