"""The table of torch's operators: name → a few lines over `relaxpy.op`.

    @operator("relu.default")
    def relu(at: Site, x: Expr) -> Expr:
        return op.nn.relu(x)

A function gets the `Site` of the call and the arguments of the operator's schema in its order, with defaults filled
in: tensors as expressions, sizes as `Dim` or int, dtypes as torch's. It returns an expression, a size, or a tuple of
them for several results. An operator that is in the table is not decomposed, where torch would otherwise do that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]

OPERATORS: dict[str, Rule] = {}
"""Name of an overload (`aten.relu.default`) → its rule."""

RANDOM: dict[str, Callable[[Any], bool]] = {}
"""Operators that draw random numbers, and whether a node of torch's does: a program with such a node takes a seed."""

READERS: set[str] = set()
"""Operators that read a value out of a tensor. Torch may take it for a size that is known, which their rules check."""


def always(_: Any) -> bool:
    return True


def operator(
    *names: str,
    namespace: str = "aten",
    random: Callable[[Any], bool] | None = None,
    reads: bool = False,
) -> Callable[[Rule], Rule]:
    """Decorator: the rule of these overloads, e.g. `add.Tensor`. `random`: whether a node draws random numbers;
    `reads`: they read a value out of a tensor."""

    def register(rule: Rule) -> Rule:
        for name in names:
            full = f"{namespace}.{name}"
            assert full not in OPERATORS, full
            OPERATORS[full] = rule
            if random is not None:
                RANDOM[full] = random
            if reads:
                READERS.add(full)
        return rule

    return register
