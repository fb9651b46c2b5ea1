"""The integers of a call's heap, computed from the bytecode for given sizes: nothing runs.

Memory plans and cost estimates evaluate an executable's formulas with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relaxpy.runtime.bytecode import Assert, Eval, FunctionCode, Heap, IntExpr, IntOp, Match
from relaxpy.runtime.effects import written_slots
from relaxpy.runtime.integers import compute


def symbol_slots(code: FunctionCode) -> dict[str, int]:
    """The symbolic variables of a function and their heap slots."""
    found: dict[str, int] = {}
    for instr in code.code:
        if isinstance(instr, Match):
            check = code.checks[instr.check]
            for name, slot in check.symbols:
                # The size of a dimension that is not a variable is named after the value and the axis: x_0.
                value, _, axis = name.rpartition("_")
                if not (value == check.name and axis.isdigit()):
                    found.setdefault(name, slot)
    return found


def known_sizes(code: FunctionCode, sizes: Mapping[str, int]) -> dict[str, int | None]:
    """The value of each symbolic variable of a function: the one in `sizes`, by name or by function and name
    (`"main.n"`), else its upper bound, else None."""
    bounds = _upper_bounds(code)
    return {
        symbol: sizes.get(f"{code.name}.{symbol}", sizes.get(symbol, bounds.get(slot)))
        for symbol, slot in symbol_slots(code).items()
    }


def heap_at(code: FunctionCode, sizes: Mapping[str, int | None]) -> list[int | None]:
    """The heap of a call with these values of its variables; None in slots whose value they do not determine."""
    slots = symbol_slots(code)
    values = {slots[symbol]: size for symbol, size in sizes.items() if size is not None}
    heap: list[int | None] = list(code.heap_init)
    for slot in written_slots(code):
        heap[slot] = None
    for slot, value in values.items():
        heap[slot] = value
    for instr in code.code:
        if isinstance(instr, Eval) and instr.dst not in values:
            heap[instr.dst] = value_of(instr.expr, heap)
    return heap


def value_of(expr: IntExpr, heap: Sequence[int | None]) -> int | None:
    """The value of a formula over a heap; None if a slot that it needs has none, or it divides by zero."""
    if isinstance(expr, int):
        return expr
    if isinstance(expr, Heap):
        return heap[expr.index]
    args = [value_of(arg, heap) for arg in expr.args]
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args):
        return None
    try:
        return compute(expr.op, known)
    except ZeroDivisionError:
        return None


def _upper_bounds(code: FunctionCode) -> dict[int, int]:
    """Heap slot → the upper bound that calls are checked against."""
    found: dict[int, int] = {}
    for instr in code.code:
        match instr:
            case Assert(lhs=IntOp("le", (Heap(slot), int(limit))), rhs=1):
                found[slot] = min(limit, found.get(slot, limit))
            case _:
                pass
    return found
