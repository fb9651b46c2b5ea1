"""HoistInvariants: compute before a loop what is the same in all its steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_operators import values_in
from relaxpy.analysis.escape import escaping
from relaxpy.analysis.in_place import updated
from relaxpy.analysis.removable import Removable
from relaxpy.analysis.weights import is_no_larger
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import Binding, Function, If, MatchCast, SeqExpr, Var, VarBinding
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Rewriter, UsedVars, free_sym_vars, free_vars, used_symbols
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.lifted_weights import WithoutBindings
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class HoistInvariants(Pass):
    """Move bindings of a local function that calls itself before it, if they depend only on what it captures: the
    layout of a weight, what is precomputed of an input. A binding stays if it may fail, if its result takes more memory
    than its inputs, or if it is part of the function's result.

    Before:
        @R.function
        def main(n: R.Prim("int64"), x: R.Tensor((4,), dtype="float32"), w: R.Tensor((4, 4), dtype="float32")):
            @R.function
            def loop(i: R.Prim("int64"), x1: R.Tensor((4,), dtype="float32")) -> R.Tensor((4,), dtype="float32"):
                if i > 0:
                    wt = R.permute_dims(w)
                    y = R.matmul(x1, wt)
                    r = loop(i - 1, y)
                else:
                    r = x1
                return r

            z = loop(n, x)
            return z
    After:
        @R.function
        def main(n: R.Prim("int64"), x: R.Tensor((4,), dtype="float32"), w: R.Tensor((4, 4), dtype="float32")):
            wt = R.permute_dims(w)
            @R.function
            def loop(i: R.Prim("int64"), x1: R.Tensor((4,), dtype="float32")) -> R.Tensor((4,), dtype="float32"):
                if i > 0:
                    y = R.matmul(x1, wt)
                    r = loop(i - 1, y)
                else:
                    r = x1
                return r

            z = loop(n, x)
            return z
    """

    name: ClassVar[str] = "hoist-invariants"
    level: ClassVar[int] = 3

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        hoister = _Hoister(mod)

        def change(_: str, function: Function) -> Function:
            local = any(isinstance(value, Function) for value in values_in(function))
            return hoister.function(function) if local else function

        return mod.map_graph_functions(change)


class _Hoister(Rebuilder):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.removable = Removable(mod)

    def binding(self, binding: Binding) -> None:
        super().binding(binding)
        last = self.bindings[-1]
        if not isinstance(last.value, Function) or last.var not in UsedVars()(last.value):
            return
        found = self.invariants(last.value, last.var)
        if not found:
            return
        rest = WithoutBindings({each.var for each in found}).rewrite(last.value)
        self.bindings.pop()
        moved = Rewriter()
        for each in found:
            fresh = type(last.var)(
                self.fresh_name(each.var.name), each.var.annotation, span=each.var.span
            )
            value = moved.rewrite(each.value)
            moved.vars[each.var] = fresh
            self.bindings.append(VarBinding(fresh, value, span=each.span))
        self.bindings.append(VarBinding(last.var, moved.rewrite(rest), span=last.span))

    def invariants(self, function: Function, var: Var) -> list[VarBinding]:
        """The bindings of a recursive local function, and of its branches, that are the same in each step."""
        used = UsedVars()
        outside = {each for each in free_vars(function) if each is not var}
        inside = _defined(function)
        kept = escaping(function) | updated(function.body)
        found: list[VarBinding] = []
        for binding in _bindings(function.body):
            if (
                isinstance(binding, VarBinding)
                and not isinstance(binding.value, (If, Function))
                and binding.var not in kept
                and (uses := used(binding.value))
                and outside.issuperset(uses)
                and inside.isdisjoint(used_symbols(binding))
                and is_no_larger(binding, self.mod)
                and self.removable(binding)
            ):
                outside.add(binding.var)
                found.append(binding)
        return found


def _bindings(body: SeqExpr) -> Iterator[Binding]:
    """The bindings of a body and its branches, in order."""
    for binding in body.bindings:
        yield binding
        if isinstance(binding.value, If):
            yield from _bindings(binding.value.then)
            yield from _bindings(binding.value.otherwise)


def _defined(function: Function) -> set[SymVar]:
    """The symbols that the parameters of a function and its casts may define."""
    casts = [b.annotation for b in _bindings(function.body) if isinstance(b, MatchCast)]
    params = [param.annotation for param in function.params]
    outer = free_sym_vars(var.annotation for var in free_vars(function))
    return set(free_sym_vars([*params, *casts])).difference(outer)
