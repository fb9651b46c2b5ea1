"""NestLoops: recursive private functions become local functions of their callers and capture what does not change."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_functions import call_cycles, mentioned_functions
from relaxpy.analysis.in_place import state
from relaxpy.analysis.matched_call import matched_symbols
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Binding,
    Call,
    Expr,
    Function,
    GlobalVar,
    SeqExpr,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.visitor import Visitor, free_sym_vars, used_symbols
from relaxpy.op.deduce import deduce
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.fresh_symbols import FreshSymbols
from relaxpy.transform.rebuild import Rebuilder

MOST_CALLS = 4
"""A function with more calls from others stays: each of them would have a copy of it."""


@dataclass(frozen=True)
class NestLoops(Pass):
    """Make a private function that calls itself a local function of each of its callers, if it passes some of its
    parameters on unchanged: these are captured instead. So constants and weights are known in the loop, and what
    depends only on them is computed once. `LambdaLift` makes a function of the module of it again.

    Before:
        @I.ir_module
        class Module:
            @R.function
            def main(
                n: R.Prim("int64"), x: R.Tensor((4,), dtype="float32"), w: R.Tensor((4, 4), dtype="float32")
            ) -> R.Tensor((4,), dtype="float32"):
                cls = Module
                y = cls.loop(n, x, w)
                return y

            @R.function(private=True)
            def loop(
                i: R.Prim("int64"), x: R.Tensor((4,), dtype="float32"), w: R.Tensor((4, 4), dtype="float32")
            ) -> R.Tensor((4,), dtype="float32"):
                cls = Module
                if i > 0:
                    y = R.matmul(x, w)
                    r = cls.loop(i - 1, y, w)
                else:
                    r = x
                return r
    After:
        @I.ir_module
        class Module:
            @R.function
            def main(
                n: R.Prim("int64"), x: R.Tensor((4,), dtype="float32"), w: R.Tensor((4, 4), dtype="float32")
            ) -> R.Tensor((4,), dtype="float32"):
                @R.function
                def loop(i: R.Prim("int64"), x1: R.Tensor((4,), dtype="float32")) -> R.Tensor((4,), dtype="float32"):
                    if i > 0:
                        y = R.matmul(x1, w)
                        r = loop(i - 1, y)
                    else:
                        r = x1
                    return r

                y1 = loop(n, x)
                return y1
    """

    name: ClassVar[str] = "nest-loops"
    level: ClassVar[int] = 3

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        nester = _Nester(mod)
        if not nester.loops:
            return mod
        new = nester.run()
        unused = nester.loops.keys() - {
            name
            for caller, function in new.graph_functions.items()
            for name in mentioned_functions(function)
            if name != caller
        }
        return new.with_functions({n: f for n, f in new.functions.items() if n not in unused})


@dataclass(frozen=True)
class _Loop:
    """A recursive function with parameters that do not change."""

    function: Function
    kept: frozenset[int]
    """The positions of these parameters."""
    symbols: frozenset[SymVar]
    """The symbols that do not change either."""


class _Nester(Rebuilder):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.symbols = FreshNames()
        """The symbol names of the current function."""
        self.loops: dict[str, _Loop] = {}
        cycles = call_cycles(mod)
        if not cycles:
            return
        calls = _Calls(mod)
        alone = Counter(cycles.values())
        for name, cycle in cycles.items():
            function = mod.graph_functions[name]
            others = len(calls.found[name]) - len(calls.own[name])
            if (
                alone[cycle] == 1
                and name not in calls.values
                and 0 < others <= MOST_CALLS
                and not (function.attrs or state(function))
            ):
                loop = self.loop(function, calls.own[name])
                if loop is not None:
                    self.loops[name] = loop

    def loop(self, function: Function, calls: list[Call]) -> _Loop | None:
        """What does not change in a function that makes these calls of itself; None if all does."""
        kept = frozenset(
            number
            for number, param in enumerate(function.params)
            if all(call.args[number] is param for call in calls)
        )
        if not kept:
            return None
        symbols = set(used_symbols(function))
        for call in calls:
            bound = matched_symbols(function, call.args, self.mod)
            if bound is None:
                return None
            symbols = {s for s in symbols if bound.get(s) == s.dim}
        needed = free_sym_vars(function.params[number].annotation for number in kept)
        return _Loop(function, kept, frozenset(symbols)) if symbols.issuperset(needed) else None

    def function(self, function: Function) -> Function:
        outer, self.symbols = self.symbols, FreshNames(s.name for s in used_symbols(function))
        new = super().function(function)
        self.symbols = outer
        return new

    def binding(self, binding: Binding) -> None:
        match binding:
            case VarBinding(value=Call(op=GlobalVar(name=name), args=args)) if (
                name in self.loops and self.current != name
            ):
                call = self.nested(self.loops[name], name, tuple(map(self.use, args)))
                if call is not None:
                    new = dataclasses.replace(binding.value, op=call.op, args=call.args)
                    super().binding(dataclasses.replace(binding, value=new))
                    return
            case _:
                pass
        super().binding(binding)

    current = ""
    """The function of the module that is being rebuilt."""

    def run(self) -> IRModule:
        functions: dict[str, BaseFunc] = dict(self.mod.functions)
        for name, function in self.mod.graph_functions.items():
            self.current = name
            functions[name] = self.function(function)
        return self.mod.with_functions(functions)

    def nested(self, loop: _Loop, name: str, args: tuple[Expr, ...]) -> Call | None:
        """Emit the local function for a call, and return the call of it; None if whether the arguments fit is known
        only at run time."""
        function = loop.function
        bound = matched_symbols(function, args, self.mod)
        if bound is None or any(isinstance(arg, Tuple) for arg in args):
            return None
        copy = _Copy(self, {s: bound[s] for s in loop.symbols if s in bound})
        for number in loop.kept:
            copy.vars[function.params[number]] = args[number]
        changing = [p for i, p in enumerate(function.params) if i not in loop.kept]
        params = tuple(copy.define(param) for param in changing)
        ret = copy.rewrite_annotation(function.ret)
        shell = Function(params, SeqExpr((), Tuple(())), ret, function.pure)
        itself = self.new_var(name, shell.annotation)
        given = tuple(arg for i, arg in enumerate(args) if i not in loop.kept)
        call = Call(itself, given)
        whole = deduce(Call(GlobalVar(name), args), self.mod)
        if accepts(whole, deduce(call, self.mod), None, equal) is not Verdict.YES:
            return None
        copy.itself = name, itself, loop.kept
        body = copy.rewrite(function.body)
        local = Function(params, body, ret, function.pure, {}, span=function.span)
        self.bindings.append(VarBinding(itself, local, span=function.span))
        return call


class _Copy(FreshSymbols):
    """Copies a function's body with fresh variables and symbols, and calls of the local function instead of it."""

    def __init__(self, nester: _Nester, bound: dict[SymVar, Dim]) -> None:
        super().__init__(nester.symbols.fresh)
        self.nester = nester
        self.syms.update(bound)
        self.itself: tuple[str, Var, frozenset[int]] | None = None

    def define(self, var: Var, annotation: Annotation | None = None) -> Var:
        known = annotation or self.rewrite_annotation(var.annotation)
        fresh = type(var)(self.nester.fresh_name(var.name), known, span=var.span)
        self.vars[var] = fresh
        return fresh

    def rewrite_Call(self, node: Call) -> Call:
        node = self.generic(node)
        assert self.itself is not None
        name, itself, kept = self.itself
        if isinstance(node.op, GlobalVar) and node.op.name == name:
            args = tuple(arg for i, arg in enumerate(node.args) if i not in kept)
            return dataclasses.replace(node, op=itself, args=args)
        return node


class _Calls(Visitor):
    """All calls of a module's functions, those in their own bodies, and functions that are also values."""

    def __init__(self, mod: IRModule) -> None:
        self.found: defaultdict[str, list[Call]] = defaultdict(list)
        self.own: defaultdict[str, list[Call]] = defaultdict(list)
        self.values: set[str] = set()
        self.current = ""
        for name, function in mod.graph_functions.items():
            self.current = name
            self.visit(function)

    def visit_Call(self, node: Call) -> None:
        if not isinstance(node.op, GlobalVar):
            self.generic(node)
            return
        name = node.op.name
        self.found[name].append(node)
        if name == self.current:
            self.own[name].append(node)
        for arg in node.args:
            self.visit(arg)

    def visit_GlobalVar(self, node: GlobalVar) -> None:
        self.values.add(node.name)
