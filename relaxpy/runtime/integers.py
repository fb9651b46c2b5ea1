"""Formulas over the integer heap, as Python."""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.runtime.bytecode import Heap, IntExpr, IntOp

_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "floormod": "%"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}


def compute(op: str, args: Sequence[int]) -> int:
    """An integer operation on numbers. ZeroDivisionError as Python raises it."""
    return int(eval(python_op(op, list(map(repr, args))), {}))


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


def mentions(expr: IntExpr, slot: int) -> bool:
    """Whether a heap slot occurs in a formula."""
    if isinstance(expr, Heap):
        return expr.index == slot
    return isinstance(expr, IntOp) and any(mentions(arg, slot) for arg in expr.args)
