"""Which functions of a module other functions mention."""

from __future__ import annotations

from relaxpy.ir.expr import Expr, GlobalVar
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Visitor


def mentioned_functions(expr: Expr) -> dict[str, None]:
    """The global names in an expression, in order of first use: functions called, tensor programs, function values."""
    visitor = _Mentioned()
    with deep_recursion():
        visitor.visit(expr)
    return visitor.found


def called_functions(mod: IRModule) -> set[str]:
    """The names that the graph functions of a module mention."""
    return {name for f in mod.graph_functions.values() for name in mentioned_functions(f)}


def without_unused_programs(mod: IRModule, before: IRModule) -> IRModule:
    """The module without the tensor programs that lost their last call since `before`."""
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
