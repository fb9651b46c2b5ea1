"""Tail calls: calls whose result is that of the function, with nothing left to be done after them."""

from __future__ import annotations

from relaxpy.ir.expr import Call, Function, GlobalVar, If, MatchCast, Var
from relaxpy.op.memory import Kill


def tail_calls(function: Function) -> dict[Var, Call]:
    """The calls of functions and function values in tail position, each with the variable that it is bound to: the last
    bindings of the function, and of the arms of a branch that is such a binding."""
    found: dict[Var, Call] = {}
    waiting = [function.body]
    while waiting:
        seq = waiting.pop()
        result = seq.body
        for binding in reversed(tuple(seq.bindings)):
            value = binding.value
            if isinstance(value, Call) and isinstance(value.op, Kill):
                continue
            if binding.var is not result or isinstance(binding, MatchCast):
                break
            if isinstance(value, Var):  # another name of the result
                result = value
                continue
            if isinstance(value, If):
                waiting += (value.then, value.otherwise)
            elif isinstance(value, Call) and isinstance(value.op, (GlobalVar, Var)):
                found[binding.var] = value
            break
    return found
