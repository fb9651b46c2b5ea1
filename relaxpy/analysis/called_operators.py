"""The calls of a function, also in its branches and local functions, without a visitor: what a pass asks to skip
functions in which it has nothing to do."""

from __future__ import annotations

from collections.abc import Iterator

from relaxpy.ir.expr import Binding, Call, Expr, Function, If
from relaxpy.ir.op import Operator


def calls_in(function: Function) -> Iterator[Call]:
    """The calls that are values of bindings."""
    return (value for value in values_in(function) if isinstance(value, Call))


def values_in(function: Function) -> Iterator[Expr]:
    """The values of bindings, but for the branches and functions that they are in."""
    return (binding.value for binding in bindings_in(function))


def bindings_in(function: Function) -> Iterator[Binding]:
    """All bindings: those of a body before those of the branches and functions in it."""
    waiting = [function.body]
    while waiting:
        for binding in waiting.pop().bindings:
            yield binding
            value = binding.value
            if isinstance(value, If):
                waiting += (value.then, value.otherwise)
            elif isinstance(value, Function):
                waiting.append(value.body)


def calls_operator(function: Function, *kinds: type[Operator]) -> bool:
    """Is one of the function's bindings a call of an operator of these kinds?"""
    return any(isinstance(call.op, kinds) for call in calls_in(function))
