"""Does a function call operators of some kinds, also in its branches and local functions? A pass asks this to skip
functions in which it has nothing to do."""

from __future__ import annotations

from relaxpy.ir.expr import Call, Function, If
from relaxpy.ir.op import Operator


def calls_operator(function: Function, *kinds: type[Operator]) -> bool:
    """Is one of the function's bindings a call of an operator of these kinds?"""
    waiting = [function.body]
    while waiting:
        for binding in waiting.pop().bindings:
            value = binding.value
            if isinstance(value, Call):
                if isinstance(value.op, kinds):
                    return True
            elif isinstance(value, If):
                waiting += (value.then, value.otherwise)
            elif isinstance(value, Function):
                waiting.append(value.body)
    return False
