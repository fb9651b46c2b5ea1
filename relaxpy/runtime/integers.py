"""Formulas over the integer heap: their definition, and their translation to Python.

All operations are on int64. A result that overflows is an error (OverflowError), and so is a division by zero
(ZeroDivisionError). Operands are evaluated from left to right, with short-circuit evaluation of `select`, `and` and
`or`. `evaluate` is the definition.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence

from relaxpy.runtime.terms import Heap, IntExpr, IntOp

_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "floormod": "%"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "floormod": operator.mod,
    "min": min,
    "max": max,
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "and": lambda *args: int(all(args)),
    "or": lambda *args: int(any(args)),
    "not": lambda a: int(not a),
    "select": lambda condition, then, other: then if condition else other,
}

SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1
"""The range of int64."""
ARITY = {"not": 1, "select": 3, "min": -2, "max": -2, "and": -2, "or": -2}
"""The number of operands of operations that do not have two; -2: two or more."""


def compute(op: str, args: Sequence[int]) -> int:
    """The exact result of an integer operation on numbers. Raises ZeroDivisionError as Python does."""
    return _FUNCTIONS[op](*args)


def evaluate(expr: IntExpr, slot: Callable[[int], int]) -> int:
    """The value of a formula; `slot` returns the value of a heap slot.

    Raises: OverflowError, ZeroDivisionError.
    """
    if isinstance(expr, Heap):
        return slot(expr.index)
    if not isinstance(expr, IntOp):
        return expr
    match expr.op:
        case "select":
            condition, then, other = expr.args
            return evaluate(then if evaluate(condition, slot) else other, slot)
        case "and":
            return int(all(evaluate(arg, slot) for arg in expr.args))
        case "or":
            return int(any(evaluate(arg, slot) for arg in expr.args))
        case op:
            return int64(compute(op, [evaluate(arg, slot) for arg in expr.args]))


def fits_int64(value: int) -> bool:
    """Whether a number fits a slot of the heap."""
    return SMALLEST <= value <= LARGEST


def int64(value: int) -> int:
    """Returns the number if it fits 64 bits. Raises: OverflowError."""
    if SMALLEST <= value <= LARGEST:
        return value
    raise OverflowError("it does not fit into 64 bits")


def problem_of(error: ArithmeticError) -> str:
    """Why a formula has no value, for a message."""
    divides = isinstance(error, ZeroDivisionError)
    return "it divides by 0" if divides else "it does not fit into 64 bits"


def python_op(op: str, args: list[str]) -> str:
    """An integer operation as a Python expression over its operands."""
    if op in _SYMBOLS:
        return f"({args[0]} {_SYMBOLS[op]} {args[1]})"
    if op in _COMPARISONS:
        return f"(1 if {args[0]} {_COMPARISONS[op]} {args[1]} else 0)"
    match op:
        case "min" | "max":
            return f"{op}({', '.join(args)})"
        case "and" | "or":
            return f"(1 if {f' {op} '.join(args)} else 0)"
        case "not":
            return f"(0 if {args[0]} else 1)"
        case "select":
            return f"({args[1]} if {args[0]} else {args[2]})"
        case _:
            raise AssertionError(f"unknown integer operation {op}")


def slots_of(expr: IntExpr) -> Iterator[int]:
    """The heap slots of a formula."""
    if isinstance(expr, Heap):
        yield expr.index
    elif isinstance(expr, IntOp):
        for arg in expr.args:
            yield from slots_of(arg)


def by_slot(exprs: Sequence[IntExpr]) -> dict[int, set[int]]:
    """Slot → the indices of the formulas that contain it."""
    found: dict[int, set[int]] = {}
    for at, expr in enumerate(exprs):
        for slot in slots_of(expr):
            found.setdefault(slot, set()).add(at)
    return found
