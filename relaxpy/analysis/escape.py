"""Escape analysis: the tensors that leave a function. Others may compare them by identity, and update each
separately."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from relaxpy.ir.expr import Binding, Call, Expr, Function, If, SeqExpr, Var
from relaxpy.ir.visitor import used_vars
from relaxpy.op.base import Op
from relaxpy.op.call import CrossLevelCall

_known: WeakKeyDictionary[Function, tuple[frozenset[Var], Mapping[Var, Expr]]] = WeakKeyDictionary()


def escaping(function: Function) -> frozenset[Var]:
    """The variables whose tensors may be the function's result or a part of it, and those that an impure function
    passes to calls that may have an effect, of functions of the module or local ones."""
    return _escaping(function)[0]


def _escaping(function: Function) -> tuple[frozenset[Var], Mapping[Var, Expr]]:
    """These variables, and the values of those that the function binds."""
    known = _known.get(function)
    if known is not None:
        return known
    values: dict[Var, Expr] = {}
    waiting: list[Var] = list(used_vars(function.body.body))
    bodies = [function.body]
    while bodies:
        for binding in bodies.pop().bindings:
            values[binding.var] = binding.value
            waiting += () if function.pure else _handed_on(binding)
            if isinstance(binding.value, If):
                bodies += (binding.value.then, binding.value.otherwise)
    found: set[Var] = set()
    while waiting:
        var = waiting.pop()
        if var not in found:
            found.add(var)
            waiting += _parts(values.get(var))
    _known[function] = frozenset(found), values
    return _known[function]


def _handed_on(binding: Binding) -> tuple[Var, ...]:
    """The variables that a binding passes to others."""
    match binding.value:
        case Call(op=Op() | CrossLevelCall()):
            return ()
        case Call() | Function() as value:
            return used_vars(value)
        case _:
            return ()


def _parts(value: Expr | None) -> tuple[Var, ...]:
    """The variables whose tensors a value may alias or contain."""
    match value:
        case Call(op=Op() | CrossLevelCall()) | None:
            return ()  # a new tensor
        case If(then=SeqExpr(body=then), otherwise=SeqExpr(body=otherwise)):
            return (*used_vars(then), *used_vars(otherwise))
        case Function():
            found, own = _escaping(value)  # a closure's result may be a captured tensor
            return tuple(found.difference(own, value.params))
        case _:
            return used_vars(value)
