"""Which calls have an effect, so that they must not be removed, moved or repeated?"""

from __future__ import annotations

from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import CallableType, ObjectType
from relaxpy.ir.expr import Call, ExternFunc, Function, GlobalVar
from relaxpy.ir.module import IRModule
from relaxpy.ir.op import Operator
from relaxpy.op.deduce import deduce


def is_pure(call: Call, mod: IRModule) -> bool:
    """May this call be part of a dataflow block? A function about which nothing is known may have any effect."""
    callee = call.op
    if isinstance(callee, Operator):
        return callee.pure
    if isinstance(callee, ExternFunc):
        return False
    if isinstance(callee, GlobalVar):
        function = mod.functions.get(callee.name)
        return function.pure if isinstance(function, Function) else True
    try:
        annotation = deduce(callee, mod)
    except DeduceError:
        return True
    if isinstance(annotation, CallableType):
        return annotation.pure
    return not isinstance(annotation, ObjectType)  # anything else cannot be called at all
