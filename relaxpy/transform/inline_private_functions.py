"""InlinePrivateFunctions: replace calls of private functions by their bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_functions import call_cycles, mentioned_functions
from relaxpy.analysis.in_place import state
from relaxpy.analysis.matched_call import matched_symbols
from relaxpy.errors import RelaxError
from relaxpy.ir.annotation import Annotation
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    DataflowVar,
    Expr,
    Function,
    GlobalVar,
    If,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import INLINE, BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Visitor, free_sym_vars, symbols_of_local_functions, used_symbols
from relaxpy.op.deduce import deduce
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.fresh_symbols import FreshSymbols
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class InlinePrivateFunctions(Pass):
    """Inline private functions that are called once or are short (`InlinePrivateFunctions` in TVM), so that passes see
    caller and callee together. Functions without remaining uses are removed.

    The attribute `inline` says otherwise: True, also if the function is long and called often; False, never.

    Not inlined are functions that call themselves, functions with other attributes (`Primitive`), functions that update
    a parameter in place, and calls whose arguments are checked at run time. Of functions that call each other, some are
    inlined until the others call only themselves: a loop by turns becomes a loop of one function.

    Before:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(("m", 4), dtype="float32")) -> R.Tensor(("m", 4), dtype="float32"):
                cls = Module
                with R.dataflow():
                    a = cls.activation(x)
                    b = R.negative(a)
                    R.output(b)
                return b

            @R.function(private=True)
            def activation(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n", 4), dtype="float32"):
                n = T.int64()
                with R.dataflow():
                    half = R.full(R.shape([n, 4]), R.const(0.5), dtype="float32")
                    y = R.multiply(x, half)
                    R.output(y)
                return y
    After:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(("m", 4), dtype="float32")) -> R.Tensor(("m", 4), dtype="float32"):
                m = T.int64()
                with R.dataflow():
                    half = R.full(R.shape([m, 4]), R.const(0.5), dtype="float32")
                    y = R.multiply(x, half)
                    a = y
                    b = R.negative(a)
                    R.output(b)
                return b
    """

    name: ClassVar[str] = "inline-private-functions"
    level: ClassVar[int] = 3
    max_bindings: int = 8
    """Longer functions are inlined only if they are called once."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        inliner = _Inliner(mod, self.max_bindings)
        if not inliner.bodies:
            return mod
        with deep_recursion():
            changed = inliner.run()
        if changed is mod:
            return mod
        return changed.map_graph_functions(lambda _, f: with_outputs(f))


class _Inliner(Rebuilder):
    def __init__(self, mod: IRModule, max_bindings: int) -> None:
        super().__init__(mod)
        self.bodies: dict[str, Function] = {}
        """The functions that are inlined."""
        self.symbols = FreshNames()
        """The symbol names of the current function."""
        self.once: set[str] = set()
        """Functions with a single call. They are inlined first, and then the calls in their bodies. Functions with
        several calls have their own calls inlined before they are copied."""
        self.done: dict[str, Function] = {}
        self.max_bindings = max_bindings
        plain = {name: f for name, f in mod.graph_functions.items() if _may_be_inlined(f)}
        if not plain:
            return
        calls = _Calls(mod)
        recursive = call_cycles(mod).keys() - self.turns(mod, plain, calls)
        for name, function in plain.items():
            if name in calls.values or not calls.count[name] or name in recursive:
                continue
            if calls.count[name] == 1:
                self.once.add(name)
            if calls.count[name] == 1 or self.is_short(function):
                self.bodies[name] = function

    def turns(self, mod: IRModule, plain: Mapping[str, Function], calls: _Calls) -> set[str]:
        """Functions on call cycles that may be inlined: those without which the others call only themselves."""
        cycle = call_cycles(mod)
        callees = {n: cycle.keys() & mentioned_functions(mod.graph_functions[n]) for n in cycle}
        found: set[str] = set()
        for name in cycle:
            function = plain.get(name)
            if function is None or name in calls.values or name in callees[name]:
                continue
            if calls.count[name] > 1 and not self.is_short(function):
                continue
            found.add(name)
            inner = callees.pop(name)
            for caller, called in callees.items():
                if name in called:
                    callees[caller] = (called - {name}) | inner
        return found

    def run(self) -> IRModule:
        """Return the module with calls inlined, without the inlined functions that nothing calls any more."""
        functions: dict[str, BaseFunc] = dict(self.mod.functions)
        waiting = [name for name in self.mod.graph_functions if name not in self.bodies]
        kept: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in kept or name not in self.mod.graph_functions:
                continue
            kept.add(name)
            function = functions[name] = self.inlined(name)
            waiting += mentioned_functions(function)
        return self.mod.with_functions(
            {name: f for name, f in functions.items() if name in kept or name not in self.bodies}
        )

    def inlined(self, name: str) -> Function:
        """Return a function of the module with its calls inlined."""
        if name not in self.done:
            function = self.mod.graph_functions[name]
            self.prepare(function)
            self.symbols = FreshNames(s.name for s in used_symbols(function))
            self.done[name] = self.function(function)
        return self.done[name]

    def is_short(self, function: Function) -> bool:
        """Is the function short enough to be inlined at several calls, or to be so by its attribute?"""
        return (
            function.attrs.get(INLINE) is True
            or len(tuple(function.body.bindings)) <= self.max_bindings
        )

    def prepare(self, function: Function) -> None:
        """Inline the calls in functions that will be copied into this one several times."""
        waiting = list(mentioned_functions(function))
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in self.bodies or name in seen:
                continue
            seen.add(name)
            if name in self.once:
                waiting += mentioned_functions(self.bodies[name])
            else:
                self.inlined(name)

    def binding(self, binding: Binding) -> None:
        match binding:
            case VarBinding(value=Call(op=GlobalVar(name=name), args=args)) if name in self.bodies:
                begin, known = len(self.bindings), dict(self.vars)
                try:
                    if self.inline(binding, name, [self.use(arg) for arg in args]):
                        return
                except RelaxError:
                    pass  # the arguments never fit; the program reports it if it reaches the call
                del self.bindings[begin:]
                self.vars = known
            case _:
                pass
        super().binding(binding)

    def inline(self, binding: VarBinding, name: str, args: list[Expr]) -> bool:
        """Emit the body of the callee. Returns False if the call must stay; some bindings may have been emitted by
        then.
        """
        callee = self.bodies[name] if name in self.once else self.done[name]
        bind = self.binding if name in self.once else super().binding
        if name not in self.once and not self.is_short(callee):
            return False
        if self.in_dataflow and any(
            isinstance(b.value, (If, Function)) for b in callee.body.bindings
        ):
            return False
        bound = self.matched(callee, args)
        if bound is None:
            return False
        copy = _Copy(self, bound)
        for param, arg in zip(callee.params, args, strict=True):
            copy.vars[param] = arg if isinstance(arg, Var) else self.emit(arg, param.name)
        for inner in callee.body.bindings:
            bind(copy.rewrite(inner))
        value = self.use(copy.rewrite(callee.body.body))
        promised = copy.rewrite_annotation(callee.ret)
        if accepts(promised, deduce(value, self.mod), None, equal) is not Verdict.YES:
            return False
        super().binding(VarBinding(binding.var, value, span=binding.span))
        return True

    def matched(self, callee: Function, args: list[Expr]) -> dict[SymVar, Dim] | None:
        """The dimensions of the symbols of a function's parameters; None if these, or the fit of an argument, are known
        only at run time."""
        bound = matched_symbols(callee, args, self.mod)
        if bound is None:
            return None
        needed = set(free_sym_vars(param.annotation for param in callee.params))
        # A call of a local function binds the symbols that it mentions. It cannot bind a compound expression.
        inside = symbols_of_local_functions(callee)
        if any(bound[s].symbol is None and bound[s].value is None for s in needed & inside):
            return None
        return bound


class _Copy(FreshSymbols):
    """Copies a function's body with fresh variables and symbols."""

    def __init__(self, inliner: _Inliner, bound: dict[SymVar, Dim]) -> None:
        super().__init__(inliner.symbols.fresh)
        self.inliner = inliner
        self.syms.update(bound)

    def define(self, var: Var, annotation: Annotation | None = None) -> Var:
        known = annotation or self.rewrite_annotation(var.annotation)
        kind = DataflowVar if self.inliner.in_dataflow else Var
        fresh = kind(self.inliner.fresh_name(var.name), known, span=var.span)
        self.vars[var] = fresh
        return fresh


def _may_be_inlined(function: Function) -> bool:
    """Is the function private and without attributes that forbid inlining?"""
    inline = function.attrs.get(INLINE, True) and not function.attrs.keys() - {INLINE}
    return bool(inline) and not (state(function) or _mentions_constant(function.body.body))


def _mentions_constant(result: Expr) -> bool:
    """A function that returns a constant returns a new tensor in each call."""
    if isinstance(result, Tuple):
        return any(map(_mentions_constant, result.fields))
    return isinstance(result, Constant)


class _Calls(Visitor):
    """Counts the calls of a module's functions, and records which are also used as values."""

    def __init__(self, mod: IRModule) -> None:
        self.count: Counter[str] = Counter()
        self.values: set[str] = set()
        with deep_recursion():
            for function in mod.graph_functions.values():
                self.visit(function)

    def visit_Call(self, node: Call) -> None:
        if isinstance(node.op, GlobalVar):
            self.count[node.op.name] += 1
            for arg in node.args:
                self.visit(arg)
        else:
            self.generic(node)

    def visit_GlobalVar(self, node: GlobalVar) -> None:
        self.values.add(node.name)
