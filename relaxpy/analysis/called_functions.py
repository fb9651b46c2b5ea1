"""The functions of a module that other functions mention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relaxpy.ir.expr import (
    Call,
    Constant,
    DataflowVar,
    Expr,
    Function,
    GlobalVar,
    ShapeExpr,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.op import Operator
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Visitor


def mentioned_functions(expr: Expr) -> dict[str, None]:
    """The global names in an expression, in order of first use: called functions, tensor programs, function values."""
    visitor = _Mentioned()
    with deep_recursion():
        visitor.visit(expr)
    return visitor.found


def called_functions(mod: IRModule) -> set[str]:
    """The names that the graph functions of a module mention."""
    return {name for f in mod.graph_functions.values() for name in mentioned_functions(f)}


def with_callees(mod: IRModule, name: str) -> IRModule:
    """One function of a module with everything that it calls, directly or indirectly, in the module's order.

    Raises: UsageError (`unknown-function`) for an unknown name."""
    waiting, found = [mod[name]], {name}
    while waiting:
        function = waiting.pop()
        called = mentioned_functions(function) if isinstance(function, Function) else {}
        new = [other for other in called if other not in found and other in mod]
        found.update(new)
        waiting += [mod[other] for other in new]
    return mod.with_functions({other: f for other, f in mod.functions.items() if other in found})


def call_cycles(mod: IRModule) -> dict[str, int]:
    """The recursive functions of a module. Those that call each other have the same number."""
    return cycles({name: tuple(mentioned_functions(f)) for name, f in mod.graph_functions.items()})


def cycles(callees: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The names on cycles, those on a common cycle with the same number: strongly connected components that contain an
    edge, by Tarjan's algorithm."""
    found: dict[str, int] = {}
    entered: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    """Functions whose component is not complete yet."""
    for start in callees:
        if start in entered:
            continue
        entered[start] = low[start] = len(entered)
        path.append(start)
        walk = [(start, iter(callees[start]))]
        while walk:
            name, left = walk[-1]
            for callee in left:
                if callee not in callees:
                    continue
                if callee not in entered:
                    entered[callee] = low[callee] = len(entered)
                    path.append(callee)
                    walk.append((callee, iter(callees[callee])))
                    break
                low[name] = min(low[name], low.get(callee, low[name]))
            else:
                walk.pop()
                if walk:
                    caller = walk[-1][0]
                    low[caller] = min(low[caller], low[name])
                if low[name] == entered[name]:
                    component = [path.pop()]
                    while component[-1] != name:
                        component.append(path.pop())
                    if len(component) > 1 or name in callees[name]:
                        found.update(dict.fromkeys(component, entered[name]))
                    for each in component:
                        del low[each]
    return found


def without_unused_programs(mod: IRModule, before: IRModule) -> IRModule:
    """Return the module without the tensor programs whose last call was removed since `before`."""
    gone = called_functions(before) - called_functions(mod)
    return mod.with_functions(
        {
            name: f
            for name, f in mod.functions.items()
            if name not in gone or not isinstance(f, TensorProgram)
        }
    )


_LEAVES = frozenset((Var, DataflowVar, ShapeExpr, Constant))


class _Mentioned(Visitor):
    """Leaves of calls are not visited one by one: most of them are variables."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}

    def visit_VarBinding(self, node: VarBinding) -> None:
        self.visit(node.value)

    def visit_Call(self, node: Call) -> None:
        if not isinstance(node.op, Operator):
            self.visit(node.op)
        for arg in node.args:
            if type(arg) not in _LEAVES:
                self.visit(arg)

    def visit_GlobalVar(self, node: GlobalVar) -> None:
        self.found[node.name] = None
