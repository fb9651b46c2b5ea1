"""Tail calls: calls whose result is that of the function, with nothing left to be done after them."""

from __future__ import annotations

from relaxpy.ir.expr import Binding, Call, Function, GlobalVar, If, MatchCast, SeqExpr, Var
from relaxpy.op.call import InvokeClosure
from relaxpy.op.memory import Kill


def tail_calls(function: Function) -> dict[Call, tuple[Binding, ...]]:
    """The calls of functions and function values in tail position, each with the bindings that name its result: its
    own first, then other names, and branches whose arms end with it."""
    found: dict[Call, tuple[Binding, ...]] = {}
    waiting: list[tuple[SeqExpr, tuple[Binding, ...]]] = [(function.body, ())]
    while waiting:
        seq, names = waiting.pop()
        result = seq.body
        for binding in reversed(tuple(seq.bindings)):
            value = binding.value
            if isinstance(value, Call) and isinstance(value.op, Kill):
                continue
            if binding.var is not result or isinstance(binding, MatchCast):
                break
            names = (binding, *names)
            if isinstance(value, Var):
                result = value
                continue
            if isinstance(value, If):
                waiting += ((value.then, names), (value.otherwise, names))
            elif isinstance(value, Call) and isinstance(value.op, (GlobalVar, Var, InvokeClosure)):
                found[value] = names
            break
    return found
