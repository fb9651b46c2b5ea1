"""LambdaLift: turn nested functions into functions of the module whose captured variables are parameters."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_operators import calls_operator
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.dim import Dim, SymVar
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
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Visitor, free_sym_vars
from relaxpy.op.call import CrossLevelCall
from relaxpy.op.memory import MakeClosure
from relaxpy.shape.defined import defined_symbols
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.fresh_symbols import FreshSymbols, carriers
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
    mandatory: ClassVar[bool] = True

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        lifter = _Lifter(mod)
        functions: dict[str, BaseFunc] = {}
        for name, function in mod.functions.items():
            if isinstance(function, Function):
                lifter.prefix = name
                lifter.mentions.add(function)
                functions[name] = without_unused_closures(lifter.function(function))
            else:
                functions[name] = function
        return mod.with_functions({**functions, **lifter.lifted})


class _Lifter(Rebuilder):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.prefix = ""
        self.mentions = _Mentions()
        self.level = _Level()
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
        """Lift a local function, which is as it was written: `self.level` has what replaces its free variables."""
        level, written = self.level, self.level.written.get(var, var)
        free, mentioned = self.mentions.of[function]
        captured = [v for v in free if v is not written]
        # A symbol that is in scope here keeps its value inside, where a parameter or a match_cast
        # may mention it to be checked; all others are the function's own.
        carried = defined_symbols(v.annotation for v in captured)
        symbols = [s for s in mentioned if s not in carried and level.symbol(s) in self.scope]
        name = self._fresh_global(f"{self.prefix}_{var.name}")
        inside = _Level()
        extra: list[Var] = []
        for outer in captured:
            inner = Var(outer.name, inside.rewrite_annotation(outer.annotation), span=outer.span)
            inside.vars[outer] = inner
            extra.append(inner)
        carrying, _ = carriers(symbols)
        extra += [Var(p.name, inside.rewrite_annotation(p.annotation)) for p in carrying]
        self_var = Var(var.name, inside.rewrite_annotation(function.annotation), span=var.span)
        inside.vars[written] = self_var
        lifted = inside.outermost(function)
        attrs = {k: v for k, v in lifted.attrs.items() if k != "global_symbol"}
        params = (*lifted.params, *extra)
        body = lifted.body
        if written in free:
            closure = MakeClosure()(GlobalVar(name), *extra)
            start = BindingBlock((VarBinding(self_var, closure),))
            body = SeqExpr((start, *body.blocks), body.body, span=body.span)
        lifted = dataclasses.replace(lifted, params=params, body=body, attrs=attrs)
        self.lifted[name] = lifted
        self.mod = self.mod.with_function(name, lifted)
        saved = self.vars, self.bindings, self.in_dataflow, self.scope, self.prefix
        self.vars, self.bindings, self.scope, self.prefix = {}, [], frozenset(), name
        self.level = inside
        self.lifted[name] = without_unused_closures(self.function(lifted))  # and those in it
        self.vars, self.bindings, self.in_dataflow, self.scope, self.prefix = saved
        self.level = level
        self.mod = self.mod.with_function(name, self.lifted[name])
        _, sizes = carriers([level.symbol(s) for s in symbols])
        values = [*(self.use(level.vars.get(v, v)) for v in captured), *sizes]
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


class _Level(FreshSymbols):
    """Gives a function that is lifted symbols of its own. Local functions in it stay as they are written, so that each
    is rewritten once, however deeply it is nested."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[Var, Var] = {}
        """New variable → the one that it replaces."""

    def outermost(self, function: Function) -> Function:
        return super().rewrite_Function(function)

    def rewrite_Function(self, node: Function) -> Function:
        return node

    def define(self, var: Var, annotation: Annotation | None = None) -> Var:
        new = super().define(var, annotation)
        self.written[new] = var
        return new

    def symbol(self, written: SymVar) -> SymVar:
        """What replaces a symbol."""
        new = self.syms.get(written)
        return (isinstance(new, Dim) and new.symbol) or written


class _Mentions(Visitor):
    """The free variables of every local function, and the symbols in it, in order of first use."""

    def __init__(self) -> None:
        self.of: dict[Function, tuple[tuple[Var, ...], tuple[SymVar, ...]]] = {}
        self._vars: dict[Var, None] = {}
        self._bound: set[Var] = set()
        self._symbols: dict[SymVar, None] = {}

    def add(self, function: Function) -> None:
        with deep_recursion():
            self.visit(function)

    def visit_Function(self, node: Function) -> None:
        outer = self._vars, self._bound, self._symbols
        self._vars, self._bound, self._symbols = {}, set(node.params), {}
        self.generic(node)
        free = tuple(v for v in self._vars if v not in self._bound)
        self.of[node] = free, tuple(self._symbols)
        self._vars, self._bound, self._symbols = outer
        self._vars.update(dict.fromkeys(free))
        self._symbols.update(dict.fromkeys(self.of[node][1]))

    def visit_Var(self, node: Var) -> None:
        if node not in self._vars:
            self._vars[node] = None
            for symbol in free_sym_vars([node.annotation]):
                self._symbols[symbol] = None

    visit_DataflowVar = visit_Var

    def visit_VarBinding(self, node: VarBinding) -> None:
        self._bound.add(node.var)
        super().visit_VarBinding(node)

    def visit_MatchCast(self, node: MatchCast) -> None:
        self._bound.add(node.var)
        super().visit_MatchCast(node)

    def visit_dim(self, dim: Dim) -> None:
        self._symbols.update(dict.fromkeys(dim.vars))


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
