"""Recompute the outputs of dataflow blocks after a pass has moved or removed uses."""

from __future__ import annotations

from typing import Any

from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    DataflowBlock,
    DataflowVar,
    Function,
    MatchCast,
    SeqExpr,
    Var,
    VarBinding,
)
from relaxpy.ir.visitor import Rewriter, Visitor


def with_outputs(function: Function) -> Function:
    """Return the function with its dataflow outputs recomputed: exactly the variables that are used outside their
    block; the function itself if nothing changes. In the input, a `DataflowVar` may be used or bound outside its block.
    """
    uses = _UsesOutside()
    uses.visit(function)
    if all(type(var) is uses.kind(var) for var in (*uses.home, *uses.plain)):
        return function
    rewriter = _Kinds(uses)
    body = rewriter.rewrite_SeqExpr(function.body)
    if body is function.body:
        return function
    ret = rewriter.rewrite_annotation(function.ret)
    return Function(function.params, body, ret, function.pure, function.attrs, span=function.span)


class _UsesOutside(Visitor):
    def __init__(self) -> None:
        self.home: dict[Var, DataflowBlock] = {}
        """The dataflow block in which a variable is bound."""
        self.plain: list[Var] = []
        """Variables bound in plain (non-dataflow) blocks."""
        self.found: set[Var] = set()
        self._open: list[DataflowBlock] = []

    def kind(self, var: Var) -> type[Var]:
        """The class that a variable must have: `Var` or `DataflowVar`."""
        return DataflowVar if var in self.home and var not in self.found else Var

    def visit_BindingBlock(self, node: BindingBlock) -> None:
        for binding in node.bindings:
            self.plain.append(binding.var)
            self.visit(binding)

    def visit_DataflowBlock(self, node: DataflowBlock) -> None:
        self._open.append(node)
        for binding in node.bindings:
            self.home[binding.var] = node
            self.visit(binding)
        self._open.pop()

    def visit_VarBinding(self, node: VarBinding) -> None:
        self.visit_annotation(node.var.annotation)
        self.visit(node.value)

    def visit_MatchCast(self, node: MatchCast) -> None:
        self.visit_annotation(node.var.annotation)
        self.visit_annotation(node.annotation)
        self.visit(node.value)

    def visit_Var(self, node: Var) -> None:
        home = self.home.get(node)
        if home is not None and home not in self._open:
            self.found.add(node)

    visit_DataflowVar = visit_Var


class _Kinds(Rewriter):
    def __init__(self, uses: _UsesOutside) -> None:
        super().__init__()
        self.uses = uses

    def rewrite_SeqExpr(self, node: SeqExpr) -> Any:
        """Definitions precede uses, so each variable is final when it is visited."""
        for binding in node.bindings:
            self.settle(binding)
        return self.generic(node)

    def settle(self, binding: Binding) -> None:
        var = binding.var
        kind = self.uses.kind(var)
        if type(var) is not kind:
            annotation = self.rewrite_annotation(var.annotation)
            self.vars[var] = kind(var.name, annotation, span=var.span)

    def define(self, var: Var, annotation: Any = None) -> Var:
        settled = self.vars.get(var)
        return settled if settled is not None else super().define(var, annotation)
