"""LambdaLift: turn nested functions into functions of the module whose captured variables are parameters."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_operators import calls_operator
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import (
    BindingBlock,
    Call,
    DataflowVar,
    Expr,
    Function,
    GlobalVar,
    MatchCast,
    SeqExpr,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.visitor import Rewriter, Visitor, free_vars, used_symbols, used_vars
from relaxpy.op.call import CrossLevelCall
from relaxpy.op.memory import MakeClosure
from relaxpy.shape.defined import defined_symbols
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.fresh_symbols import carriers
from relaxpy.transform.lifted_weights import WithoutBindings
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class LambdaLift(Pass):
    """Closure conversion (`LambdaLift` in TVM). A nested function becomes a private function of the module. Its last
    parameters are the captured variables, and a shape with the captured symbols. Calls by its name pass these, so a
    local function that calls itself in the end is a loop. Where it is a value, `vm.make_closure` binds them. A function
    of the module that is used as a value becomes a closure without captured variables.

    Before:
        @I.ir_module
        class Module:

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()

                @R.function
                def inner(y: R.Tensor((n,), dtype="float32")) -> R.Tensor((n,), dtype="float32"):
                    z = R.add(y, x)
                    return z

                gv = inner(x)
                return gv
    After:
        @I.ir_module
        class Module:

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                cls = Module
                gv = cls.main_inner(x, x)
                return gv

            @R.function(private=True)
            def main_inner(
                y: R.Tensor(("n",), dtype="float32"), x: R.Tensor(("n",), dtype="float32")
            ) -> R.Tensor(("n",), dtype="float32"):
                z = R.add(y, x)
                return z
    """

    name: ClassVar[str] = "lambda-lift"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        lifter = _Lifter(mod)
        functions: dict[str, BaseFunc] = {}
        for name, function in mod.functions.items():
            if isinstance(function, Function):
                lifter.prefix = name
                functions[name] = without_unused_closures(lifter.function(function))
            else:
                functions[name] = function
        return mod.with_functions({**functions, **lifter.lifted})


class _Lifter(Rebuilder):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.prefix = ""
        self.lifted: dict[str, BaseFunc] = {}
        self.scope: frozenset[SymVar] = frozenset()
        self.known: dict[Var, tuple[GlobalVar, tuple[Expr, ...]]] = {}
        """Closures by name: the function, and its last arguments."""

    def seq(self, seq: SeqExpr, function: Function | None = None) -> SeqExpr:
        outer = self.scope
        if function is not None:
            self.define_symbols(*(param.annotation for param in function.params))
        new = super().seq(seq, function)
        self.scope = outer
        return new

    def define_symbols(self, *annotations: Annotation) -> None:
        """Bring the symbols into scope that parameters or a match_cast define."""
        self.scope |= set(defined_symbols(annotations, self.scope))

    def binding(self, binding: VarBinding | MatchCast) -> None:
        if isinstance(binding, VarBinding) and isinstance(binding.value, Function):
            self.lift(binding.var, binding.value)
            return
        super().binding(binding)
        if isinstance(binding, MatchCast):
            self.define_symbols(binding.annotation)

    def value(self, value: Expr) -> Expr:
        match value:
            case GlobalVar() if self._is_graph(value):
                return MakeClosure()(value)
            case Call(op=Var() as op, args=args) if op in self.known:
                callee, captured = self.known[op]
                given = tuple(map(self.closed, args))
                return dataclasses.replace(value, op=callee, args=(*given, *captured))
            case Call(op=op, args=args):
                names_callee = isinstance(op, (CrossLevelCall, MakeClosure))
                new = tuple(
                    arg if names_callee and i == 0 else self.closed(arg)
                    for i, arg in enumerate(args)
                )
                if all(a is b for a, b in zip(new, args, strict=True)):
                    return value
                return dataclasses.replace(value, args=new)
            case Tuple():
                return self.closed(value)
            case _:
                return value

    def define(self, var: Var, annotation: Annotation, value: Expr) -> Var:
        new = super().define(var, annotation, value)
        self.name_closure(new, value)
        return new

    def name_closure(self, var: Var, value: Expr) -> None:
        """Remember which function a variable names. Where a variable of a dataflow block was captured, the function may
        be called behind the block, which cannot name it."""
        match value:
            case Call(op=MakeClosure(), args=(GlobalVar() as callee, *captured)):
                if isinstance(var, DataflowVar) or DataflowVar not in map(type, captured):
                    self.known[var] = callee, tuple(captured)
            case Var() if value in self.known:
                self.known[var] = self.known[value]
            case _:
                pass

    def finish(self, function: Function, body: Expr) -> Expr:
        return self.closed(body)

    def closed(self, leaf: Expr) -> Expr:
        """Return a leaf with function names in it replaced by closures."""
        if isinstance(leaf, GlobalVar) and self._is_graph(leaf):
            return self.emit(MakeClosure()(leaf), leaf.name)
        if isinstance(leaf, Tuple):
            fields = tuple(map(self.closed, leaf.fields))
            same = all(a is b for a, b in zip(fields, leaf.fields, strict=True))
            return leaf if same else Tuple(fields, span=leaf.span)
        return leaf

    def _is_graph(self, name: GlobalVar) -> bool:
        return isinstance(self.mod.functions.get(name.name), Function)

    def lift(self, var: Var, function: Function) -> None:
        captured = [v for v in free_vars(function) if v is not var]
        # A symbol that is in scope here keeps its value inside, where a parameter or a match_cast
        # may mention it to be checked; all others are the function's own.
        mentioned = used_symbols(function)
        carried = set(defined_symbols(v.annotation for v in captured))
        symbols = [s for s in mentioned if s in self.scope and s not in carried]
        recursive = _mentions(function, var)
        name = self._fresh_global(f"{self.prefix}_{var.name}")
        rewriter = Rewriter()
        for symbol in mentioned:
            rewriter.syms[symbol] = symbol.renamed(symbol.name).dim
        extra: list[Var] = []
        for outer in captured:
            inner = Var(outer.name, rewriter.rewrite_annotation(outer.annotation), span=outer.span)
            rewriter.vars[outer] = inner
            extra.append(inner)
        carrying, carried_values = carriers(symbols)
        extra += [Var(p.name, rewriter.rewrite_annotation(p.annotation)) for p in carrying]
        self_var = Var(var.name, rewriter.rewrite_annotation(function.annotation), span=var.span)
        rewriter.vars[var] = self_var
        lifted = rewriter.rewrite(function)
        attrs = {k: v for k, v in lifted.attrs.items() if k != "global_symbol"}
        params = (*lifted.params, *extra)
        body = lifted.body
        if recursive:
            closure = MakeClosure()(GlobalVar(name), *extra)
            start = BindingBlock((VarBinding(self_var, closure),))
            body = SeqExpr((start, *body.blocks), body.body, span=body.span)
        lifted = dataclasses.replace(lifted, params=params, body=body, attrs=attrs)
        self.lifted[name] = lifted
        self.mod = self.mod.with_function(name, lifted)
        saved = self.vars, self.bindings, self.in_dataflow, self.scope, self.prefix
        self.vars, self.bindings, self.scope, self.prefix = {}, [], frozenset(), name
        self.lifted[name] = without_unused_closures(self.function(lifted))  # and those in it
        self.vars, self.bindings, self.in_dataflow, self.scope, self.prefix = saved
        self.mod = self.mod.with_function(name, self.lifted[name])
        values = [*map(self.use, captured), *carried_values]
        closure = MakeClosure()(GlobalVar(name), *values)
        self.name_closure(var, closure)
        self.bindings.append(VarBinding(var, closure, span=function.span))

    def _fresh_global(self, hint: str) -> str:
        return self.mod.fresh_name(hint)


def without_unused_closures(function: Function) -> Function:
    """Return the function without the closures that were only called."""
    if not calls_operator(function, MakeClosure):
        return function
    closures = _Closures()
    closures.visit(function)
    unused = closures.found - closures.used
    return WithoutBindings(unused).rewrite(function) if unused else function


class _Closures(Visitor):
    """Finds the variables of closures, and all variables that are used."""

    def __init__(self) -> None:
        self.found: set[Var] = set()
        self.used: set[Var] = set()

    def visit_Var(self, node: Var) -> None:
        self.used.add(node)

    visit_DataflowVar = visit_Var

    def visit_VarBinding(self, node: VarBinding) -> None:
        if isinstance(node.value, Call) and isinstance(node.value.op, MakeClosure):
            self.found.add(node.var)
        self.visit(node.value)


def _mentions(function: Function, var: Var) -> bool:
    return var in used_vars(function)
