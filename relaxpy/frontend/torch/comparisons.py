"""Comparisons of sizes that torch decides without a guard: it takes every size to be positive, so `x.shape[0] > 0` is
true and `x.numel() == 0` false in its traces, even of an example of no rows."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from relaxpy.frontend.spans import is_users
from relaxpy.frontend.torch.replaced import replaced


@dataclass(frozen=True)
class Comparison:
    """What a line of the user found to be true of sizes."""

    relation: str
    """The class of sympy: `Equality`, `StrictLessThan`, …"""
    left: Any
    right: Any
    file: str
    line: int


_METHODS: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "__eq__": (operator.eq, "Equality", "Unequality"),
    "__ne__": (operator.ne, "Unequality", "Equality"),
    "__lt__": (operator.lt, "StrictLessThan", "GreaterThan"),
    "__le__": (operator.le, "LessThan", "StrictGreaterThan"),
    "__gt__": (operator.gt, "StrictGreaterThan", "LessThan"),
    "__ge__": (operator.ge, "GreaterThan", "StrictLessThan"),
}
"""Method → what it says if it is true, and if it is false."""


@contextmanager
def comparisons() -> Iterator[list[Comparison]]:
    """Collect the comparisons of sizes in the user's code that torch decides by itself, while the block runs."""
    import torch

    found: list[Comparison] = []
    own = {name: getattr(torch.SymInt, name) for name in (*_METHODS, "__bool__")}

    def record(frame: Any, name: str, left: Any, right: Any, decided: Any) -> Any:
        """Note the comparison, if a user's line makes it; return what is true of the example's sizes."""
        sides = _hint(left), _hint(right)
        if not is_users(frame.f_code.co_filename) or None in sides:
            return decided
        function, true, false = _METHODS[name]
        result = function(*sides)
        place = frame.f_code.co_filename, frame.f_lineno
        found.append(Comparison(true if result else false, _expr(left), _expr(right), *place))
        return decided if result == bool(decided) else result

    def compared(name: str) -> Callable[[Any, Any], Any]:
        def method(size: Any, other: Any) -> Any:
            result = own[name](size, other)
            if _decided(result) is None or not isinstance(other, (int, torch.SymInt)):
                return result
            return record(sys._getframe(1), name, size, other, result)

        return method

    def truth(size: Any) -> bool:
        return record(sys._getframe(1), "__ne__", size, 0, own["__bool__"](size))

    others = {name: compared(name) for name in _METHODS} | {"__bool__": truth}
    with ExitStack() as stack:
        for name, method in others.items():
            stack.enter_context(replaced(torch.SymInt, name, method))
        yield found


def _decided(result: Any) -> bool | None:
    """The value of a comparison that is known for all sizes, as torch sees it."""
    import sympy

    if isinstance(result, bool):
        return result
    expr = getattr(getattr(result, "node", None), "expr", None)
    return None if expr not in (sympy.true, sympy.false) else bool(expr)


def _hint(size: Any) -> int | None:
    """The size in the example."""
    return size if isinstance(size, int) else size.node.hint


def _expr(size: Any) -> Any:
    import sympy

    return sympy.Integer(size) if isinstance(size, int) else size.node.expr
