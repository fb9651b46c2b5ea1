"""DeadCodeElimination: remove unused bindings, functions and parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.analysis.called_functions import mentioned_functions
from relaxpy.analysis.in_place import state
from relaxpy.analysis.removable import Removable
from relaxpy.errors import DeduceError
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Expr,
    Function,
    GlobalVar,
    If,
    SeqExpr,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BaseFunc, IRModule, TensorProgram
from relaxpy.ir.visitor import Rewriter, Visitor, free_sym_vars, used_symbols
from relaxpy.op.deduce import deduce
from relaxpy.shape.bounds import assuming, bounds_of
from relaxpy.shape.defined import defined_symbols
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs


@dataclass(frozen=True)
class DeadCodeElimination(Pass):
    """Remove bindings that nothing uses, private functions and tensor programs that nothing calls, and unused
    parameters of private functions together with the arguments (`DeadCodeElimination` and `RemoveUnusedParameters` in
    TVM). Repeats until nothing is left to remove.

    Effects stay, and so does anything that may raise an error: a call whose shapes are checked at run time, or a
    `match_cast` that is not proved (`relaxpy.analysis.removable`).

    Before:
        @I.ir_module
        class Module:

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                cls = Module
                a = R.exp(x)
                b = cls.double(x, a)
                c = cls.forgotten(b)
                return b

            @R.function(private=True)
            def double(
                x: R.Tensor(("n",), dtype="float32"), y: R.Tensor(("n",), dtype="float32")
            ) -> R.Tensor(("n",), dtype="float32"):
                z = R.add(x, x)
                return z

            @R.function(private=True)
            def forgotten(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                y = R.negative(x)
                return y
    After:
        @I.ir_module
        class Module:

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                cls = Module
                b = cls.double(x)
                return b

            @R.function(private=True)
            def double(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                z = R.add(x, x)
                return z
    """

    name: ClassVar[str] = "dead-code-elimination"
    level: ClassVar[int] = 3
    entry_functions: tuple[str, ...] = ()
    """Names of private functions that are kept although nothing calls them."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        while True:
            smaller = without_dead_bindings(self._without_functions(mod))
            smaller = _without_parameters(smaller, self.entry_functions)
            if smaller is mod:
                return mod
            mod = smaller

    def _without_functions(self, mod: IRModule) -> IRModule:
        """Return the module with only the functions reachable from its public functions. In a module without public
        functions all are kept, since its callers are unknown."""
        graph = mod.graph_functions
        waiting = [n for n, f in graph.items() if "global_symbol" in f.attrs]
        waiting += [n for n in self.entry_functions if n in graph]
        if not waiting:
            return mod
        used: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in used:
                used.add(name)
                waiting += mentioned_functions(graph[name]) if name in graph else ()
        return mod.with_functions(
            {
                n: f
                for n, f in mod.functions.items()
                if n in used or not isinstance(f, (Function, TensorProgram))
            }
        )


def without_dead_bindings(mod: IRModule) -> IRModule:
    """The module without bindings that nothing uses; all functions keep their parameters."""
    removable = Removable(mod)

    def change(_: str, function: Function) -> Function:
        with assuming(bounds_of(function)):
            return with_outputs(_Live(removable).function(function))

    return mod.map_graph_functions(change)


def without_unused(seq: SeqExpr) -> SeqExpr:
    """A body without bindings that nothing uses, also those that may fail: of a pure body that has run before."""
    return _Live(lambda binding: isinstance(binding, VarBinding)).body(seq)


class _Live(Visitor):
    """Walks a function backwards and keeps the bindings that are used later."""

    def __init__(self, removable: Callable[[Binding], bool]) -> None:
        self.removable = removable
        self.used: set[Var] = set()
        self.state: frozenset[Var] = frozenset()
        """Memory of the caller that a call may update. Its uses are never removed."""

    def function(self, node: Function) -> Function:
        outer, self.state = self.state, self.state | state(node)
        self.visit_annotation(node.ret)
        body = self.body(node.body)
        for param in node.params:
            self.visit_annotation(param.annotation)
        self.state = outer
        return node if body is node.body else dataclasses.replace(node, body=body)

    def body(self, seq: SeqExpr) -> SeqExpr:
        self.visit(seq.body)
        blocks: list[BindingBlock] = []
        for block in reversed(seq.blocks):
            kept = [b for old in reversed(block.bindings) if (b := self.binding(old)) is not None]
            kept.reverse()
            if not kept:
                continue
            same = len(kept) == len(block.bindings)
            same = same and all(a is b for a, b in zip(kept, block.bindings, strict=True))
            blocks.append(block if same else dataclasses.replace(block, bindings=tuple(kept)))
        blocks.reverse()
        if len(blocks) == len(seq.blocks) and all(map(lambda a, b: a is b, blocks, seq.blocks)):
            return seq
        return dataclasses.replace(seq, blocks=tuple(blocks))

    def binding(self, binding: Binding) -> Binding | None:
        """The part of a binding that is still needed. All its uses have been visited already."""
        if binding.var not in self.used and self.removable(binding) and not self.on_state(binding):
            return None
        self.visit_annotation(binding.var.annotation)
        if not isinstance(binding, VarBinding):
            self.visit_annotation(binding.annotation)
            self.visit(binding.value)
            return binding
        value = self.value(binding.value)
        return (
            binding if value is binding.value else VarBinding(binding.var, value, span=binding.span)
        )

    def value(self, value: Expr) -> Expr:
        match value:
            case Function():
                return self.function(value)
            case If():
                then, otherwise = self.body(value.then), self.body(value.otherwise)
                self.visit(value.cond)
                if then is value.then and otherwise is value.otherwise:
                    return value
                return If(value.cond, then, otherwise, span=value.span)
            case _:
                self.visit(value)
                return value

    def on_state(self, binding: Binding) -> bool:
        if not self.state:
            return False
        uses = _Live(self.removable)
        uses.visit(binding.value)
        return not self.state.isdisjoint(uses.used)

    def visit_Var(self, node: Var) -> None:
        self.used.add(node)

    visit_DataflowVar = visit_Var


# Parameters


def _without_parameters(mod: IRModule, entry_functions: tuple[str, ...]) -> IRModule:
    """Return the module with the unused parameters of private functions removed."""
    calls = _Calls(mod)
    kept: dict[str, tuple[int, ...]] = {}
    for name, function in mod.graph_functions.items():
        private = "global_symbol" not in function.attrs and name not in entry_functions
        if private and not function.attrs and name in calls.fitting and name not in calls.values:
            used = _used_parameters(function)
            if len(used) < len(function.params):
                kept[name] = used
    if not kept:
        return mod
    shorter = _ShorterCalls(kept)
    functions: dict[str, BaseFunc] = {}
    for name, function in mod.functions.items():
        if isinstance(function, Function):
            function = shorter.rewrite_Function(function)
            if name in kept:
                params = tuple(function.params[i] for i in kept[name])
                function = dataclasses.replace(function, params=params)
        functions[name] = function
    return mod.with_functions(functions)


def _used_parameters(function: Function) -> tuple[int, ...]:
    """The parameters that a function needs: those that it uses, and those that define a symbol."""
    uses = _Live(lambda _: False)
    uses.function(function)
    picked = [i for i, param in enumerate(function.params) if param in uses.used]
    needed = set(used_symbols(function.body)) | set(free_sym_vars([function.ret]))
    own = set(free_sym_vars(p.annotation for p in function.params))

    def lacking() -> set[SymVar]:
        annotations = [function.params[i].annotation for i in picked]
        return (needed | set(free_sym_vars(annotations))) & own - defined_symbols(annotations)

    for i, param in enumerate(function.params):
        if i not in picked and not lacking().isdisjoint(free_sym_vars([param.annotation])):
            picked.append(i)
    return tuple(sorted(picked)) if not lacking() else tuple(range(len(function.params)))


class _Calls(Visitor):
    """The call sites of the module's functions."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.values: set[str] = set()
        """Functions that are used as values, whose callers are unknown."""
        self.fitting: set[str] = set(mod.graph_functions)
        """Functions whose calls all have arguments that are proved to fit."""
        for function in mod.graph_functions.values():
            self.visit(function)

    def visit_Call(self, node: Call) -> None:
        if isinstance(node.op, GlobalVar):
            if not self.fits(node, node.op.name):
                self.fitting.discard(node.op.name)
            for arg in node.args:
                self.visit(arg)
        else:
            self.generic(node)

    def visit_GlobalVar(self, node: GlobalVar) -> None:
        self.values.add(node.name)

    def fits(self, call: Call, name: str) -> bool:
        function = self.mod.functions.get(name)
        if not isinstance(function, Function):
            return False
        bound: dict[SymVar, Dim] = {}
        try:
            return all(
                accepts(param.annotation, deduce(arg, self.mod), bound, equal) is Verdict.YES
                for param, arg in zip(function.params, call.args, strict=True)
            )
        except DeduceError:
            return False


class _ShorterCalls(Rewriter):
    def __init__(self, kept: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.kept = kept

    def rewrite_Call(self, node: Call) -> Any:
        node = self.generic(node)
        if isinstance(node.op, GlobalVar) and node.op.name in self.kept:
            args = tuple(node.args[i] for i in self.kept[node.op.name])
            return dataclasses.replace(node, args=args)
        return node
