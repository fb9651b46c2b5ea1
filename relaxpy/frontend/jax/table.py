"""The table of JAX's primitives: name → a few lines over `relaxpy.op`.

    @primitive("exp")
    def exp(at: Site, x: Expr, **_: Any) -> Any:
        return op.exp(x)

A function gets the `Site` of the equation, its operands as expressions, and its parameters by name, as JAX has them; a
size in them is for `at.dims`. It returns an expression, or a list of them for several results. Keys of random numbers
are tensors of uint64 (`random`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Rule = Callable[..., Any]

PRIMITIVES: dict[str, Rule] = {}
"""Name of a primitive → its rule."""

INLINED: dict[str, str] = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_lin": "jaxpr",
}
"""Calls of a function → the parameter that holds it: its equations take their place."""


def branch_for_all(platforms: Sequence[Any]) -> int:
    """Which of the branches of `lax.platform_dependent` is for any platform, or else for a CPU."""
    names = [("cpu",) if each is None else tuple(each) for each in platforms]
    return next(i for i, each in reversed(list(enumerate(names))) if "cpu" in each)


LOOPS = frozenset(("cond", "while", "scan"))
"""Primitives with branches or loops, which no dataflow block has."""


def primitive(*names: str) -> Callable[[Rule], Rule]:
    """Decorator: the rule of these primitives."""

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in PRIMITIVES, name
            PRIMITIVES[name] = rule
        return rule

    return register
