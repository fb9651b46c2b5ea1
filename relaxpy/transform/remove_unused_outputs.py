"""RemoveUnusedOutputs: drop results of private functions that no caller uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TupleType
from relaxpy.ir.expr import (
    Call,
    Expr,
    Function,
    GlobalVar,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Rewriter, Visitor
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs


@dataclass(frozen=True)
class RemoveUnusedOutputs(Pass):
    """If all calls of a private function use only some fields of the tuple that it returns, return only these fields
    (`RemoveUnusedOutputs` in TVM); a single field is returned without a tuple. The computations of the dropped fields,
    and parameters that become unused, are left to `DeadCodeElimination`.

    Before:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                cls = Module
                t = cls.both(x)
                a = t[1]
                return a

            @R.function(private=True)
            def both(
                x: R.Tensor(("n",), dtype="float32")
            ) -> R.Tuple(R.Tensor(("n",), dtype="float32"), R.Tensor(("n",), dtype="float32")):
                a = R.sin(x)
                b = R.cos(x)
                return (a, b)
    After:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                cls = Module
                t = cls.both(x)
                a = t
                return a

            @R.function(private=True)
            def both(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                a = R.sin(x)
                b = R.cos(x)
                return b
    """

    name: ClassVar[str] = "remove-unused-outputs"
    level: ClassVar[int] = 3

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        candidates = {n: c for n, f in mod.graph_functions.items() if (c := _count(f)) > 1}
        taken = _Taken(mod).found if candidates else {}
        kept = {
            name: tuple(sorted(used))
            for name, count in candidates.items()
            if (used := taken.get(name)) and len(used) < count
        }
        if not kept:
            return mod
        functions: dict[str, BaseFunc] = {}
        for name, function in mod.functions.items():
            if isinstance(function, Function):
                with deep_recursion():
                    function = _Calls(kept).rewrite_Function(function)
                if name in kept:
                    function = _giving(function, kept[name])
                function = with_outputs(function)
            functions[name] = function
        return mod.with_functions(functions)


def _count(function: Function) -> int:
    """The number of fields of the tuple that a private function builds as its result."""
    body, ret = function.body.body, function.ret
    given = isinstance(body, Tuple) and isinstance(ret, TupleType) and not function.attrs
    return len(body.fields) if given and isinstance(body, Tuple) else 0


class _Taken(Visitor):
    """For each function of a module, the fields of its results that are used. Excluded are functions used as values,
    and functions of which a result is used as a whole."""

    def __init__(self, mod: IRModule) -> None:
        self.found: dict[str, set[int]] = {}
        self._callee: dict[Var, str] = {}
        """The callee whose result a variable holds."""
        self._whole: set[str] = set()
        with deep_recursion():
            for function in mod.graph_functions.values():
                self.visit(function)
        for name in self._whole:
            self.found.pop(name, None)

    def visit_VarBinding(self, node: VarBinding) -> None:
        value = node.value
        if isinstance(value, Call) and isinstance(value.op, GlobalVar):
            self._callee[node.var] = value.op.name
            self.found.setdefault(value.op.name, set())
            if not isinstance(node.var.annotation, TupleType):
                self._whole.add(value.op.name)
            for arg in value.args:
                self.visit(arg)
        elif isinstance(value, TupleGetItem) and isinstance(value.tuple, Var):
            if value.tuple in self._callee:
                self.found[self._callee[value.tuple]].add(value.index)
        else:
            self.visit(value)

    def visit_Var(self, node: Var) -> None:
        if node in self._callee:
            self._whole.add(self._callee[node])

    visit_DataflowVar = visit_Var

    def visit_GlobalVar(self, node: GlobalVar) -> None:
        self._whole.add(node.name)


class _Calls(Rewriter):
    """Rewrites calls of functions whose results were reduced."""

    def __init__(self, kept: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.kept = kept
        self.results: dict[Var, tuple[int, ...]] = {}
        """New variables of such calls, and the remaining fields."""

    def rewrite_VarBinding(self, node: VarBinding) -> Any:
        value = node.value
        if (
            isinstance(value, Call)
            and isinstance(value.op, GlobalVar)
            and value.op.name in self.kept
        ):
            fields = self.kept[value.op.name]
            whole = expect(TupleType, self.rewrite_annotation(node.var.annotation))
            left = [whole.fields[i] for i in fields]
            annotation = left[0] if len(left) == 1 else TupleType(left)
            var = type(node.var)(node.var.name, annotation, span=node.var.span)
            self.vars[node.var] = var
            self.results[var] = fields
            return VarBinding(var, self.rewrite(value), span=node.span)
        return super().rewrite_VarBinding(node)

    def rewrite_TupleGetItem(self, node: TupleGetItem) -> Any:
        node = self.generic(node)
        fields = self.results.get(node.tuple) if isinstance(node.tuple, Var) else None
        if fields is None:
            return node
        if len(fields) == 1:
            return node.tuple
        return TupleGetItem(node.tuple, fields.index(node.index), span=node.span)


def _giving(function: Function, fields: tuple[int, ...]) -> Function:
    """Return the function with only these fields as its result."""
    body, ret = expect(Tuple, function.body.body), expect(TupleType, function.ret)
    left = tuple(body.fields[i] for i in fields)
    types = [ret.fields[i] for i in fields]
    result: Expr = left[0] if len(left) == 1 else Tuple(left, span=body.span)
    return dataclasses.replace(
        function,
        body=SeqExpr(function.body.blocks, result, span=function.body.span),
        ret=types[0] if len(types) == 1 else TupleType(types),
    )
