"""Which tensors leave a function as its result or part of it: callers may tell them apart, and update each alone."""

from __future__ import annotations

from relaxpy.ir.expr import Call, If, SeqExpr, Var
from relaxpy.ir.visitor import used_vars
from relaxpy.op.base import Op
from relaxpy.op.call import CrossLevelCall


def escaping(body: SeqExpr) -> frozenset[Var]:
    """The variables whose tensors a body may give as its result, or as part of it."""
    values = {binding.var: binding.value for binding in body.bindings}
    found: set[Var] = set()
    waiting: list[Var] = list(used_vars(body.body))
    while waiting:
        var = waiting.pop()
        if var in found:
            continue
        found.add(var)
        match values.get(var):
            case Call(op=Op() | CrossLevelCall()) | None:
                pass  # a new tensor
            case If(then=then, otherwise=otherwise):
                for branch in (then, otherwise):
                    values.update((b.var, b.value) for b in branch.bindings)
                    waiting += used_vars(branch.body)
            case value:
                waiting += used_vars(value)
    return frozenset(found)
