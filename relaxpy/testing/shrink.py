"""Reduces a failing call while it keeps failing in the same way.

These reductions are tried as long as one succeeds: return an earlier result instead of the last, replace a branch by
one of its arms, remove a binding by passing its value as an argument, remove unused parameters and functions, and
simplify the numbers in arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from relaxpy.errors import RelaxError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    DataflowVar,
    Expr,
    Function,
    GlobalVar,
    If,
    MatchCast,
    SeqExpr,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Rewriter, Visitor, free_sym_vars, used_vars
from relaxpy.op.deduce import deduce
from relaxpy.testing.differential import Call, Failure, Ways, check
from relaxpy.testing.interpret import interpret
from relaxpy.testing.values import Value

Checks: TypeAlias = Callable[[Sequence[Call]], list[Failure]]
"""Finds the failures of calls."""
BUDGET = 150
"""The most programs to try."""


def shrink(
    call: Call, failure: Failure, ways: Ways | Checks | None = None, budget: int = BUDGET
) -> tuple[Call, Failure]:
    """A call that is no larger and fails in the same stage with the same kind, and its failure. `ways` are those in
    which the failure was found, or what finds failures."""
    ways = ways or Ways()
    if isinstance(ways, Ways):
        ways = dataclasses.replace(
            ways, print_passes=failure.stage == "print", fresh_process=failure.stage == "file"
        )
        checks: Checks = partial(check, ways=ways)
    else:
        checks = ways
    left = budget

    def attempt(candidate: Call) -> Failure | None:
        nonlocal left
        left -= 1
        try:
            found = checks([candidate])
        except Exception:  # the candidate is no program at all
            return None
        return next((f for f in found if (f.stage, f.kind) == (failure.stage, failure.kind)), None)

    progress = True
    while progress and left > 0:
        progress = False
        for candidate in _smaller(call):
            if left <= 0:
                break
            found = attempt(candidate)
            if found is not None:
                call, failure, progress = candidate, found, True
                break
    return call, failure


def _smaller(call: Call) -> Iterator[Call]:
    """Calls of smaller programs, the most promising first."""
    function = expect(Function, call.mod[call.name])
    yield from _flat(call, function)
    bindings = list(function.body.bindings)
    results: list[Expr] = []
    if isinstance(function.body.body, Tuple):
        results += function.body.body.fields
    results += [b.var for b in bindings[:-1] if not isinstance(b.var, DataflowVar)]
    for result in results:
        if result is not function.body.body:
            yield from _with_body(call, function, bindings, result)
    for i, binding in enumerate(bindings):
        if isinstance(binding.value, If):
            for arm in (binding.value.then, binding.value.otherwise):
                inlined = [*arm.bindings, VarBinding(binding.var, arm.body)]
                changed = [*bindings[:i], *inlined, *bindings[i + 1 :]]
                yield from _with_body(call, function, changed, function.body.body)
    for i in reversed(range(len(bindings))):
        yield from _cut(call, function, bindings, i)
    yield from _plainer_arguments(call)


def _flat(call: Call, function: Function) -> Iterator[Call]:
    """One binding block without nested blocks or unused bindings."""
    bindings = list(function.body.bindings)
    inner = [b.var for b in bindings if isinstance(b.var, DataflowVar)]
    live = _live(bindings, function.body.body)
    used = _used_params(function, live)
    unused = set(call.mod.functions) - _reached(call.mod, call.name)
    if inner or len(live) < len(bindings) or len(used) < len(function.params) or unused:
        yield from _with_body(call, function, bindings, function.body.body)


def _with_body(
    call: Call, function: Function, bindings: Sequence[Binding], result: Expr
) -> Iterator[Call]:
    """The call of a function with these bindings and this result, without unused parts."""
    live = _live(bindings, result)
    rewriter = Rewriter()
    plain: list[Binding] = []
    try:
        for binding in live:
            var, value = binding.var, rewriter.rewrite(binding.value)
            if isinstance(var, DataflowVar):
                var = Var(var.name, rewriter.rewrite_annotation(var.annotation), span=var.span)
                rewriter.vars[binding.var] = var
            if isinstance(binding, MatchCast):
                annotation = rewriter.rewrite_annotation(binding.annotation)
                plain.append(MatchCast(var, value, annotation, span=binding.span))
            else:
                plain.append(VarBinding(var, value, span=binding.span))
        blocks = (BindingBlock(tuple(plain)),) if plain else ()
        body = SeqExpr(blocks, rewriter.rewrite(result))
        used = _used_params(function, live, result)
        params = tuple(function.params[i] for i in used)
        changed = dataclasses.replace(
            function, params=params, body=body, ret=deduce(body, call.mod)
        )
    except RelaxError:
        return
    mod = call.mod.with_function(call.name, changed)
    reached = _reached(mod, call.name)
    mod = mod.with_functions({n: f for n, f in mod.functions.items() if n in reached})
    yield Call(mod, call.name, [call.args[i] for i in used], call.label)


def _cut(call: Call, function: Function, bindings: list[Binding], at: int) -> Iterator[Call]:
    """Replaces a binding by an argument with its value in this call."""
    binding = bindings[at]
    var = binding.var
    if not isinstance(var.annotation, (TensorType, ShapeType, PrimType)):
        return
    before = SeqExpr((BindingBlock(tuple(bindings[: at + 1])),), var)
    try:
        probe = dataclasses.replace(function, body=before, ret=deduce(before, call.mod))
        value: Value = interpret(call.mod.with_function(call.name, probe), call.name, *call.args)
    except Exception:  # it fails before it comes here
        return
    param = Var(var.name, var.annotation)
    rest = [b for i, b in enumerate(bindings) if i != at]
    params = (*function.params, param)
    changed = dataclasses.replace(function, params=params)
    moved = Call(call.mod, call.name, [*call.args, value], call.label)
    rest = [*rest[:at], VarBinding(var, param), *rest[at:]]
    yield from _with_body(moved, changed, rest, function.body.body)


def _plainer_arguments(call: Call) -> Iterator[Call]:
    """Replaces numbers by zeros, ones or rounded numbers."""
    for i, arg in enumerate(call.args):
        if not isinstance(arg, np.ndarray) or not arg.size or arg.dtype.kind == "b":
            continue
        for plainer in (np.zeros_like(arg), np.ones_like(arg), np.round(arg, 1)):
            if not np.array_equal(plainer, arg) and _complexity(plainer) < _complexity(arg):
                args = [*call.args[:i], plainer.astype(arg.dtype), *call.args[i + 1 :]]
                yield Call(call.mod, call.name, args, call.label)


def _complexity(array: np.ndarray) -> int:
    return len(repr(array.astype(np.float64).tolist()))


def _live(bindings: Sequence[Binding], result: Expr) -> list[Binding]:
    """The bindings that a result needs, including those that define symbols of others."""
    wanted = set(used_vars(result))
    symbols = set(free_sym_vars([v.annotation for v in wanted]))
    live: list[Binding] = []
    for binding in reversed(bindings):
        defines = isinstance(binding, MatchCast) and bool(
            set(free_sym_vars([binding.annotation])) & symbols
        )
        if binding.var in wanted or defines:
            live.append(binding)
            new = used_vars(binding.value)
            wanted |= set(new)
            annotations: list[Annotation] = [binding.var.annotation, *(v.annotation for v in new)]
            symbols |= set(free_sym_vars(annotations)) | _symbols(binding.value)
    return live[::-1]


def _used_params(
    function: Function, live: Sequence[Binding], result: Expr | None = None
) -> list[int]:
    """Parameters that are used, or whose symbols may be used."""
    wanted = set(used_vars(result if result is not None else function.body.body))
    symbols = set(free_sym_vars([v.annotation for v in wanted]))
    for binding in live:
        wanted |= set(used_vars(binding.value))
        symbols |= set(free_sym_vars([binding.var.annotation])) | _symbols(binding.value)
    kept = [i for i, p in enumerate(function.params) if p in wanted]
    mentioned = set(free_sym_vars([function.params[i].annotation for i in kept])) | symbols
    alone = {
        d.symbol for i in kept for d in _dims(function.params[i].annotation) if d.symbol is not None
    }
    for i, param in enumerate(function.params):
        defines = {d.symbol for d in _dims(param.annotation) if d.symbol is not None}
        if i not in kept and defines & (mentioned - alone):
            kept.append(i)
            alone |= defines
    return sorted(kept)


def _dims(annotation: Annotation) -> Sequence[Dim]:
    return (annotation.dims or ()) if isinstance(annotation, (TensorType, ShapeType)) else ()


class _Symbols(Visitor):
    """All symbols of an expression, including nested functions and branches."""

    def __init__(self) -> None:
        self.found: set[SymVar] = set()

    def visit_dim(self, dim: Dim) -> None:
        self.found |= set(dim.vars)


def _symbols(expr: Expr) -> set[SymVar]:
    visitor = _Symbols()
    visitor.visit(expr)
    return visitor.found


class _Globals(Visitor):
    """The module's functions that an expression refers to."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_GlobalVar(self, node: GlobalVar) -> None:
        self.found.add(node.name)


def _reached(mod: IRModule, name: str) -> set[str]:
    """The functions that a function depends on, including itself."""
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in reached or current not in mod:
            continue
        reached.add(current)
        function = mod[current]
        if isinstance(function, Function):
            visitor = _Globals()
            visitor.visit(function)
            waiting += visitor.found
    return reached
