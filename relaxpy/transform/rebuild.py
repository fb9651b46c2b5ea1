"""The base class of passes that change calls: rebuilds functions binding by binding and deduces annotations anew.

A subclass overrides `value`, which returns the new value of a binding, and may `emit` bindings before it. Annotations
of variables follow: a variable whose value became more precise is replaced at all its uses.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Iterator
from typing import Any

from relaxpy.errors import PassError, RelaxError, Span
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    DataflowVar,
    Expr,
    Function,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.visitor import Rewriter, rebuild
from relaxpy.op.base import Op
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Requirement
from relaxpy.op.memory import CheckDim
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal


class Rebuilder:
    """Rebuilds the graph functions of a module; see the module's docstring."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.vars: dict[Var, Expr] = {}
        self.bindings: list[Binding] = []
        self.in_dataflow = False
        self.span: Span | None = None
        self.names = FreshNames()

    # Methods that subclasses override

    def value(self, value: Expr) -> Expr:
        """Return the new value of a binding. Its variables are mapped already."""
        return value

    def start(self, function: Function) -> None:
        """Called at the start of a function's body; may emit bindings."""

    def finish(self, function: Function, body: Expr) -> Expr:
        """Called with the mapped result at the end of a function; may emit bindings. Returns the result."""
        return body

    # The walk

    def run(self) -> IRModule:
        """Return the module with all its graph functions rebuilt."""
        return self.mod.map_graph_functions(lambda _, f: self.function(f))

    def function(self, function: Function) -> Function:
        outer_names, self.names = self.names, FreshNames(param.name for param in function.params)
        self.names.update(_names(function.body))
        body = self.seq(function.body, function)
        self.names = outer_names
        return function if body is function.body else dataclasses.replace(function, body=body)

    def seq(self, seq: SeqExpr, function: Function | None = None) -> SeqExpr:
        blocks: list[BindingBlock] = []
        outer, outer_dataflow = self.bindings, self.in_dataflow
        if function is not None:
            self.bindings, self.in_dataflow = [], False
            self.start(function)
            if self.bindings:
                blocks.append(BindingBlock(tuple(self.bindings)))
        for block in seq.blocks:
            self.bindings = []
            self.in_dataflow = self.is_dataflow(block)
            for binding in block.bindings:
                self.span = binding.span
                self.binding(binding)
            if self.bindings:
                blocks.append(self.block(block, tuple(self.bindings)))
        self.bindings, self.in_dataflow = [], False
        body = self.use(seq.body)
        if function is not None:
            body = self.promised(function, self.finish(function, body))
        if self.bindings:
            blocks.append(BindingBlock(tuple(self.bindings)))
        self.bindings, self.in_dataflow = outer, outer_dataflow
        same = body is seq.body and len(blocks) == len(seq.blocks)
        if same and all(a is b for a, b in zip(blocks, seq.blocks, strict=True)):
            return seq
        return SeqExpr(tuple(blocks), body, span=seq.span)

    def promised(self, function: Function, body: Expr) -> Expr:
        """The result, cast to what the function declares where a pass has made its annotation less exact: as the parser
        would, so that the printed function parses to an equal one."""
        known = deduce(body, self.mod)
        if known == function.ret or accepts(function.ret, known, None, equal) is not Verdict.MAYBE:
            return body
        return self.emit_match_cast(body, function.ret, "gv")

    def is_dataflow(self, block: BindingBlock) -> bool:
        """Are new variables of this block visible only inside it?"""
        return type(block) is not BindingBlock

    def block(self, old: BindingBlock, bindings: tuple[Binding, ...]) -> BindingBlock:
        same = len(bindings) == len(old.bindings)
        if same and all(a is b for a, b in zip(bindings, old.bindings, strict=True)):
            return old
        return dataclasses.replace(old, bindings=bindings)

    def binding(self, binding: Binding) -> None:
        value = self.use(binding.value)
        if isinstance(binding, MatchCast):
            same = value is binding.value
            var = binding.var
            self.bindings.append(
                binding if same else MatchCast(var, value, binding.annotation, span=binding.span)
            )
            return
        try:
            value = self.value(value)
            annotation = deduce(value, self.mod)
        except RelaxError as error:
            raise error.located(binding.span) from None
        var = self.define(binding.var, annotation, value)
        same = value is binding.value and var is binding.var
        self.bindings.append(binding if same else VarBinding(var, value, span=binding.span))

    def define(self, var: Var, annotation: Annotation, value: Expr) -> Var:
        """The variable of a binding; a new one if its deduced annotation changed."""
        known = var.annotation
        if annotation is known or annotation == known or isinstance(value, Function):
            return var
        fresh = type(var)(var.name, annotation, span=var.span)
        self.vars[var] = fresh
        return fresh

    def use(self, expr: Expr) -> Expr:
        """Return `expr` with its variables mapped; nested bodies are rebuilt."""
        match expr:
            case Var():
                return self.vars.get(expr, expr)
            case Call(op=op, args=args):
                new_op = self.use(op) if isinstance(op, Expr) else op
                new_args = self.uses(args)
                ty_args = self.annotations(expr.ty_args)
                if new_op is op and new_args is args and ty_args == expr.ty_args:
                    return expr
                return rebuild(expr, {"op": new_op, "args": new_args, "ty_args": ty_args})
            case Tuple(fields=fields):
                new = self.uses(fields)
                return expr if new is fields else Tuple(new, span=expr.span)
            case TupleGetItem():
                inner = self.use(expr.tuple)
                return (
                    expr if inner is expr.tuple else TupleGetItem(inner, expr.index, span=expr.span)
                )
            case If():
                cond, then, other = (
                    self.use(expr.cond),
                    self.seq(expr.then),
                    self.seq(expr.otherwise),
                )
                if (cond, then, other) == (expr.cond, expr.then, expr.otherwise):
                    return expr
                return If(cond, then, other, span=expr.span)
            case Function():
                return self.function(expr)
            case _:
                return expr

    def uses(self, exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        new = tuple(map(self.use, exprs))
        return exprs if all(map(operator.is_, new, exprs)) else new

    def annotations(self, annotations: tuple[Annotation, ...]) -> tuple[Annotation, ...]:
        """Return annotations with shape variables mapped."""
        return tuple(map(self.annotation, annotations)) if self.vars else annotations

    def annotation(self, annotation: Annotation) -> Annotation:
        """Return an annotation with shape variables mapped."""
        rewriter = Rewriter()
        rewriter.vars = self.vars
        return rewriter.rewrite_annotation(annotation)

    # Methods with which subclasses emit bindings

    def emit(self, value: Expr, name: str = "lv", annotation: Annotation | None = None) -> Var:
        """Bind `value` before the current binding. Returns the new variable."""
        found = annotation if annotation is not None else deduce(value, self.mod)
        var = self.new_var(name, found)
        self.bindings.append(VarBinding(var, value, span=self.span))
        return var

    def emit_match_cast(self, value: Expr, annotation: Annotation, name: str) -> Var:
        """Bind `value` under a checked annotation before the current binding."""
        var = self.new_var(name, annotation)
        self.bindings.append(MatchCast(var, value, annotation, span=self.span))
        return var

    def check(self, requirements: Iterable[Requirement]) -> None:
        """Check requirements of a deduction at run time, before the current binding."""
        for requirement in requirements:
            check = CheckDim(message=requirement.message)(PrimValue(requirement.condition))
            self.emit(check, "_")

    def require_dims(self, op: Op, annotation: Annotation | None) -> None:
        """Refuse an argument or a result of an operator of which the shape or the dtype is unknown."""
        match annotation:
            case TupleType(fields=fields):
                for item in fields:
                    self.require_dims(op, item)
            case TensorType() if annotation.dims is None or annotation.dtype is None:
                missing = (
                    "rank"
                    if annotation.ndim < 0
                    else "shape"
                    if annotation.dims is None
                    else "dtype"
                )
                raise PassError(
                    "unknown-rank" if missing == "rank" else f"unknown-{missing}",
                    f"{op.name}: the {missing} of an argument or of the result is unknown: {annotation}",
                    span=self.span,
                    help='declare it: R.match_cast(x, R.Tensor((n, m), dtype="float32"))',
                )
            case _:
                pass

    def new_var(self, name: str, annotation: Annotation) -> Var:
        kind: Any = DataflowVar if self.in_dataflow else Var
        return kind(self.fresh_name(name), annotation, span=self.span)

    def fresh_name(self, hint: str) -> str:
        return self.names.fresh(hint)


def _names(seq: SeqExpr) -> Iterator[str]:
    """The names of the variables that a body binds, including its branches."""
    waiting = [seq]
    while waiting:
        for binding in waiting.pop().bindings:
            yield binding.var.name
            if isinstance(binding.value, If):
                waiting += (binding.value.then, binding.value.otherwise)
