"""Ten thousand formulas, each with its value on three heaps, and each operation on pairs of numbers.

A formula is a number, the name of a slot (`"h2"`), or a list of an operation and its operands. A number that float64
does not represent exactly is a string. The expected values are computed by `value_of`, which shares no code with the
virtual machine.
"""

from __future__ import annotations

import random
from typing import Any, TypeAlias

from relaxpy.runtime.bytecode import Heap, IntExpr, IntOp
from tests.machine.values import integer

Formula: TypeAlias = Any
"""A formula as JSON."""

COUNT = 10_000
OVERFLOW, DIVISION = "overflow", "division by zero"
SLOTS = 5
_LOW, _HIGH = -(2**63), 2**63 - 1
EDGES = (
    0, 1, -1, 2, -2, 3, 7, -7, 16, 63, 64, 100, 4096, -4096, 2**20 - 1, 2**20, 2**31 - 1, 2**31, -(2**31), 2**32,
    3037000499, 3037000500, 2**53 - 1, 2**53 + 1, 2**62, -(2**62), _HIGH - 1, _HIGH, _LOW, _LOW + 1,
)  # fmt: skip
"""Edge cases: the limits of 32 bits, of float64, of 64 bits, and of products (3037000500 squared is more than
2**63)."""
_ARITHMETIC = ("add", "sub", "mul", "floordiv", "floormod")
_BINARY = (*_ARITHMETIC, "eq", "ne", "lt", "le")
_ANY = ("min", "max", "and", "or")


def value_of(formula: Formula, heap: list[int]) -> int | str:
    """The value of a formula, or `OVERFLOW` or `DIVISION`."""
    if isinstance(formula, int):
        return formula
    if isinstance(formula, str):
        return heap[int(formula[1:])] if formula.startswith("h") else int(formula)
    op, *operands = formula
    values: list[int] = []
    for operand in operands:
        if op == "select" and len(values) == 1:
            return value_of(operands[1] if values[0] != 0 else operands[2], heap)
        found = value_of(operand, heap)
        if isinstance(found, str):
            return found
        if op == "and" and found == 0:
            return 0
        if op == "or" and found != 0:
            return 1
        values.append(found)
    if op in ("floordiv", "floormod") and values[1] == 0:
        return DIVISION
    result = _result(op, values)
    return result if _LOW <= result <= _HIGH else OVERFLOW


def _result(op: str, values: list[int]) -> int:
    a, b = values[0], values[-1]
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "floordiv":
            return (a - a % b) // b
        case "floormod":
            rest = abs(a) % abs(b)
            if rest and (a < 0) != (b < 0):
                rest = abs(b) - rest
            return rest if b > 0 else -rest
        case "min":
            return sorted(values)[0]
        case "max":
            return sorted(values)[-1]
        case "eq" | "ne":
            return 1 if (a == b) == (op == "eq") else 0
        case "lt":
            return 1 if a < b else 0
        case "le":
            return 0 if b < a else 1
        case "and":
            return 1
        case "or":
            return 0
        case "not":
            return 0 if a else 1
        case _:
            raise AssertionError(f"there is no operation {op}")


class RandomFormulas:
    """A random number generator with the same results in every version of Python."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def below(self, count: int) -> int:
        return int(self.random() * count)

    def choice(self, items: Any) -> Any:
        return items[self.below(len(items))]

    def number(self) -> int:
        kind = self.random()
        if kind < 0.4:
            return self.below(20) - 4
        if kind < 0.6:
            return self.choice(EDGES)
        bits = 1 + self.below(63)
        value = self.below(1 << min(bits, 30)) << max(bits - 30, 0) | self.below(1 << min(bits, 30))
        return -value if self.random() < 0.4 else value

    def formula(self, depth: int) -> Formula:
        if depth == 0 or self.random() < 0.15:
            if self.random() < 0.6:
                return f"h{self.below(SLOTS)}"
            return integer(self.number())
        kind = self.random()
        inner = depth - 1
        if kind < 0.72:
            ops = _ARITHMETIC if self.random() < 0.7 else _BINARY
            return [self.choice(ops), self.formula(inner), self.formula(inner)]
        if kind < 0.88:
            count = 2 if self.random() < 0.8 else 3
            return [self.choice(_ANY), *(self.formula(inner) for _ in range(count))]
        if kind < 0.93:
            return ["not", self.formula(inner)]
        return ["select", *(self.formula(inner) for _ in range(3))]


def make_formulas() -> dict[str, Any]:
    """The contents of the file as JSON."""
    rng = RandomFormulas(2026)
    heaps = [
        [5, 9, 20, 1, 3], [0, 1, 0, 7, 2], [1, 128, 64, 4, 30522], [-3, 2, -8, 5, -1], [2**20, 2**19, 4, 3, 1],
        [2**31, 2**32, 7, -(2**31), 2], [_HIGH, _LOW, -1, 1, 0], [2**53 + 1, 10**15, 1000, -7, 13],
    ]  # fmt: skip
    heaps = [*heaps, *([rng.number() for _ in range(SLOTS)] for _ in range(24))]
    rows: list[Any] = []
    seen: set[str] = set()
    while len(rows) < COUNT:
        formula = rng.formula(1 + rng.below(4))
        if isinstance(formula, list) and repr(formula) not in seen:
            seen.add(repr(formula))
            places = sorted({rng.below(len(heaps)) for _ in range(3)})
            found = ([at, _as_json(value_of(formula, heaps[at]))] for at in places)
            rows.append([formula, *found])
    pairs = {
        op: [[_as_json(value_of([op, "h0", "h1"], [a, b])) for b in EDGES] for a in EDGES]
        for op in (*_BINARY, *_ANY)
    }
    return {
        "format": 1,
        "edges": list(map(integer, EDGES)),
        "pairs": pairs,
        "heaps": [list(map(integer, heap)) for heap in heaps],
        "formulas": rows,
    }


def _as_json(value: int | str) -> int | str:
    return value if isinstance(value, str) else integer(value)


def int_expr_of(formula: Formula) -> IntExpr:
    """A formula of the suite as a formula of the bytecode."""
    if isinstance(formula, list):
        return IntOp(formula[0], tuple(map(int_expr_of, formula[1:])))
    if isinstance(formula, str):
        return Heap(int(formula[1:])) if formula.startswith("h") else int(formula)
    return formula
