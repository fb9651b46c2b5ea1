"""The functions of a module that other functions mention."""

from __future__ import annotations

from relaxpy.ir.expr import Expr, Function, GlobalVar
from relaxpy.ir.module import IRModule, TensorProgram
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


class _Mentioned(Visitor):
    def __init__(self) -> None:
        self.found: dict[str, None] = {}

    def visit_GlobalVar(self, node: GlobalVar) -> None:
        self.found[node.name] = None
