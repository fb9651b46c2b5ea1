"""The sizes of expressions as trees.

An expression may share its parts: `e = e + e`, forty times, has forty operators, and a million million as TVM walks it,
and as it is printed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from relaxpy.tir.nodes import address_of, items
from relaxpy.tir.tvm import tvm

LARGEST = 1 << 13
"""The most nodes of an expression, each counted as often as it occurs in it."""
DEEPEST = 2000
"""The most levels: TVM walks expressions by recursion in C++, and ends the process where its stack does."""

HELP = "bind what is used several times to a variable: v: T.let[T.int64] = …"

_FIELDS = (
    "a", "b", "value", "condition", "true_value", "false_value", "base", "stride", "body", "args", "indices", "vectors",
    "source",
)  # fmt: skip


class Sizes:
    """Sizes of expressions, each computed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int, int]] = {}
        """Address of an expression → the expression, kept alive, its nodes and its levels."""

    def problem(self, expr: Any) -> str | None:
        """What is wrong with an expression that is too large as a tree; None for others."""
        nodes, depth = self.of(expr)
        if nodes > LARGEST:
            return f"an expression has at most {LARGEST} parts, each counted wherever it is used"
        return f"an expression is nested at most {DEEPEST} deep" if depth > DEEPEST else None

    def of(self, expr: Any) -> tuple[int, int]:
        """Nodes (those beyond the limit are not counted) and levels."""
        waiting = [expr]
        while waiting:
            node = waiting[-1]
            if address_of(node) in self._known:
                waiting.pop()
                continue
            parts = _parts(node)
            missing = [part for part in parts if address_of(part) not in self._known]
            if missing:
                waiting += missing
                continue
            sizes = [self._known[address_of(part)] for part in parts]
            nodes = min(1 + sum(size[1] for size in sizes), LARGEST + 1)
            self._known[address_of(node)] = node, nodes, 1 + max((s[2] for s in sizes), default=0)
            waiting.pop()
        _, nodes, depth = self._known[address_of(expr)]
        return nodes, depth


def _parts(node: Any) -> list[Any]:
    if isinstance(node, tvm.ir.Var):
        return []
    found: list[Any] = []
    for name in _fields(type(node)):
        value = getattr(node, name)
        found += items(value) if isinstance(value, tvm.ir.Array) else [value]
    return [part for part in found if isinstance(part, tvm.ir.Expr)]


@cache
def _fields(kind: type) -> list[str]:
    return [name for name in _FIELDS if hasattr(kind, name)]
