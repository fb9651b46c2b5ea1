"""Reverse and forward mode over the bindings of one body: the rules of operators (`Op.vjp`), one after the other.

Reverse mode walks the bindings backwards and carries to each value its *cotangent*, the gradient of the result with
respect to it. Forward mode walks them forwards with *tangents*. An operator's tangent is the transpose of its rule,
which is linear in the cotangent: the same walk, over what the rule has emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, cast

from relaxpy.errors import ErrorBag, PassError, Span
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import VOID, Annotation, TensorType, TupleType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    MatchCast,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.visitor import Rewriter, free_sym_vars, free_vars
from relaxpy.op.base import Op
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.deduce import deduce
from relaxpy.op.gradient import Barrier, EndCheckpoint, NoGrad, StartCheckpoint
from relaxpy.op.rule import Cotangent, NoRule, Rule, has_gradient, same_dims
from relaxpy.transform.bind_unknown_shapes import with_dims
from relaxpy.transform.scan_by_halves import scan_function


def cotangent_type(annotation: Annotation) -> Annotation:
    """The annotation of the cotangent of a value: that of a tensor of floats itself, a tuple's by fields, and an empty
    tuple for everything else."""
    match annotation:
        case TensorType() if has_gradient(annotation):
            return annotation
        case TupleType(fields=fields) if fields and has_gradient(annotation):
            return TupleType(map(cotangent_type, fields))
        case _:
            return VOID


class Calls(Protocol):
    """Derivatives of what is no operator: of calls of functions, and of branches."""

    def backward(self, walk: Walk, binding: VarBinding, ct: Expr) -> None:
        """Carry the cotangent of a call or a branch to its arguments."""
        ...

    def forward_call(self, walk: Walk, binding: VarBinding) -> Cotangent:
        """Emit a call or a branch with its tangent, which is returned."""
        ...

    def add(self, name: str) -> None:
        """Take a function that a rule has built."""
        ...


class Walk:
    """The differentiation of one body, emitted with `builder`. `values` are the cotangents or tangents found so far."""

    def __init__(
        self, builder: BlockBuilder, calls: Calls, errors: ErrorBag, symbols: Iterable[SymVar] = ()
    ) -> None:
        self.builder = builder
        self.symbols = set(symbols)
        """The symbols that are defined here."""
        self.calls = calls
        self.errors = errors
        self.values: dict[Var, Cotangent] = {}
        self.stages: dict[Var, list[Binding]] = {}
        """Variables inside of a checkpointing stage: the bindings of the stage."""
        self.reader = _Reader()
        """Replaces variables of stages by what is recomputed for their backward pass."""
        self.emitted: list[Binding] = []
        self.span: Span | None = None
        self.rule = Rule(self.emit, through=self.through, scan=partial(scan, self))

    def emit(self, value: Expr) -> Var:
        """Bind a value. A shape that is known only at run time has symbols."""
        var = self.builder.emit(value, "lv", span=self.span)
        self.emitted.append(VarBinding(var, value))
        known = with_dims(var.annotation, var.name)
        if known == var.annotation or not isinstance(known, TensorType):
            return var
        named = self.builder.match_cast(var, known, "lv", span=self.span)
        self.emitted.append(MatchCast(named, var, known))
        return named

    def annotation(self, expr: Expr) -> Annotation:
        """The annotation of an expression."""
        return deduce(expr, self.builder.get())

    def refuse(self, message: str, help: str | None = None) -> None:
        """Report something that has no derivative; the walk goes on to find others."""
        self.errors.add(PassError("gradient-rule", message, span=self.span, help=help))

    def emit_binding(self, binding: Binding) -> None:
        """Emit a binding of the function itself."""
        self.builder.emit_binding(binding)
        if isinstance(binding, MatchCast):
            self.symbols |= set(free_sym_vars([binding.annotation]))

    # Values

    def zeros_like(self, value: Any) -> Expr:
        """The cotangent zero of a value: of an expression, or of a list of those of a tuple."""
        if not isinstance(value, Expr):
            return Tuple(tuple(map(self.zeros_like, value)))
        annotation = self.annotation(value)
        if not has_gradient(annotation):
            return Tuple(())
        if isinstance(annotation, TupleType):
            return self.zeros_like(self.rule.fields(value))
        return self.rule.zeros_like(value)

    def filled(self, ct: Cotangent, value: Expr) -> Expr:
        """A cotangent (or tangent) of a value as an expression, with zeros where it is None."""
        if ct is None or isinstance(ct, NoRule) or not has_gradient(self.annotation(value)):
            return self.zeros_like(value)
        if isinstance(ct, Expr):
            return ct
        return Tuple(tuple(map(self.filled, ct, self.rule.fields(value))))

    def found(self, var: Var) -> Expr:
        """The cotangent found for a variable."""
        return self.filled(self.values[var], var)

    def parts(self, ct: Cotangent, annotation: Annotation) -> Cotangent:
        """A cotangent with a list for each tuple."""
        if not has_gradient(annotation) or ct is None:
            return None
        if not isinstance(annotation, TupleType):
            return ct
        fields = self.rule.fields(ct) if isinstance(ct, Expr) else ct
        assert not isinstance(fields, NoRule)
        return [self.parts(*each) for each in zip(fields, annotation.fields or (), strict=True)]

    def fitted(self, ct: Expr, annotation: Annotation) -> Expr:
        """A tensor with the dimensions of this annotation, which it has at run time."""
        dims = annotation.dims if isinstance(annotation, TensorType) else None
        known = expect(TensorType, deduce(ct))
        if dims is None or (known.dims is not None and same_dims(known.dims, dims)):
            return ct
        return self.builder.match_cast(ct, TensorType(dims, known.dtype), "lv", span=self.span)

    def plus(self, a: Cotangent, b: Cotangent) -> Cotangent:
        """The sum of two cotangents of the same value."""
        if a is None or b is None:
            return b if a is None else a
        if isinstance(a, Expr) and isinstance(b, Expr):
            return self.rule.add(a, b)
        assert not isinstance(a, (Expr, NoRule))
        assert not isinstance(b, (Expr, NoRule))
        return [self.plus(*each) for each in zip(a, b, strict=True)]

    # Reverse mode

    def add(self, to: Expr | None, ct: Cotangent) -> None:
        """Add to the cotangent of an expression."""
        if ct is None or to is None:
            return
        if isinstance(to, Tuple):
            fields = self.parts(ct, self.annotation(to))
            assert not isinstance(fields, (Expr, NoRule))
            for part, each in zip(to.fields, fields or (), strict=False):
                self.add(part, each)
        elif isinstance(to, Var) and to in self.values and has_gradient(to.annotation):
            if isinstance(ct, NoRule):
                self.refuse(ct.reason)
                return
            ct = self.parts(ct, to.annotation)
            if isinstance(ct, Expr):
                ct = self.fitted(ct, to.annotation)
            self.values[to] = self.plus(self.values[to], ct)

    def forward(self, active: Iterable[Var], bindings: Iterable[Binding]) -> None:
        """Emit bindings, and note which variables depend on `active`: only these have cotangents."""
        bindings = tuple(bindings)
        self.watch(active, bindings)
        self.stages = stages(bindings)
        for binding in bindings:
            self.emit_binding(unmarked(binding))

    def watch(self, active: Iterable[Var], bindings: Iterable[Binding]) -> None:
        """Note which variables of these bindings depend on `active`."""
        self.values.update(dict.fromkeys(active))
        for binding in bindings:
            if depends(binding, self.values):
                self.values[binding.var] = None

    def backward(self, bindings: Iterable[Binding]) -> None:
        """Carry the cotangents of the results, which were added, to the variables that they depend on."""
        for binding in reversed(tuple(bindings)):
            ct = self.values.get(binding.var)
            if ct is not None:
                self.span = binding.span
                if binding.var in self.stages and binding.var not in self.reader.vars:
                    self.recompute(self.stages[binding.var], self.filled(ct, binding.var))
                self.pull(binding, ct)

    def recompute(self, stage: Iterable[Binding], ct: Expr) -> None:
        """Emit the bindings of a stage again, which begin when this cotangent is there."""
        after = next(
            each for each in flat(ct) if isinstance(each, Var) and has_gradient(each.annotation)
        )
        for binding in stage:
            if is_mark(binding.value, StartCheckpoint):
                new = self.emit(Barrier()(self.read(binding.value.args[0]), after))  # type: ignore[attr-defined]
            elif isinstance(binding, MatchCast):
                value = self.read(binding.value)
                new = self.builder.match_cast(value, binding.annotation, "lv", span=binding.span)
            else:
                new = self.builder.emit(self.read(binding.value), "lv", span=binding.span)
            self.reader.vars[binding.var] = new

    def read(self, value: Any) -> Any:
        """A value that the backward pass reads: recomputed, if it is in a stage."""
        return self.reader.rewrite(value) if self.reader.vars else value

    def pull(self, binding: Binding, ct: Cotangent) -> None:
        """Carry the cotangent of a binding's variable to what its value uses."""
        match binding:
            case MatchCast(value=value) | VarBinding(value=(Var() | Tuple()) as value):
                self.add(value, ct)
            case VarBinding(value=TupleGetItem(tuple=whole, index=index)):
                count = len(self.annotation(whole).fields or ())  # type: ignore[attr-defined]
                self.add(whole, [ct if i == index else None for i in range(count)])
            case VarBinding(value=Call(op=Op() as op, args=given) as call):
                if not op.has_vjp():
                    self.refuse(f"{op.name} is not differentiable: {why(op)}", HELP)
                    self.go_on(call)
                    return
                with self.errors.collect(self.span):
                    args, out = self.arguments(self.read(call)), self.result(self.read(binding.var))
                    for arg, each in zip(given, op.vjp(self.rule, args, out, ct), strict=False):
                        self.add(arg, each)
            case VarBinding():
                self.calls.backward(self, binding, self.filled(ct, binding.var))

    def through(
        self, compute: Callable[..., Expr], args: Sequence[Any], ct: Expr
    ) -> list[Cotangent]:
        """The cotangents of arguments of a composition of operators, which is emitted for it."""
        own = nested(lambda arg: self.emit(arg) if isinstance(arg, Var) else arg, list(args))
        begin = len(
            self.emitted
        )  # an argument that is given twice has two names, and two cotangents
        result = compute(*own)
        bindings, given = self.emitted[begin:], list[Any]()
        nested(given.append, own)
        inner = Walk(self.builder, self.calls, self.errors)
        inner.span, inner.emitted = self.span, self.emitted
        inner.watch((arg for arg in given if isinstance(arg, Var)), bindings)
        inner.add(result, ct)
        inner.backward(bindings)
        return nested(inner.values.get, own)

    def go_on(self, value: Expr) -> None:
        """Let the walk go on beyond a value without a rule, to find others."""
        for var in free_vars(value):
            if isinstance(var.annotation, TensorType):
                self.add(var, self.zeros_like(var))

    def arguments(self, call: Call) -> list[Any]:
        """The arguments as rules take them: a list for a tuple, None for one that is left out."""
        specs, found = expect(Op, call.op).args, list[Any]()
        for spec, arg in zip(specs, call.args, strict=False):
            if isinstance(arg, Tuple) and not arg.fields and spec.optional:
                found.append(None)
            elif isinstance(self.annotation(arg), TupleType):
                found.append(self.rule.fields(arg))
            else:
                found.append(arg)
        return found + [None] * (len(specs) - len(found))

    def result(self, var: Var) -> Any:
        """The result as rules take it."""
        return self.rule.fields(var) if isinstance(var.annotation, TupleType) else var

    # Forward mode

    def tangent(self, expr: Expr | None) -> Cotangent:
        """The tangent of an expression; None: zero."""
        match expr:
            case Var():
                return self.values.get(expr)
            case Tuple(fields=fields):
                found = [self.tangent(each) for each in fields]
                return None if all(each is None for each in found) else found
            case _:
                return None

    def whole_tangent(self, expr: Expr) -> Expr:
        """The tangent of an expression, with zeros where it is None."""
        return self.filled(self.tangent(expr), expr)

    def step(self, binding: Binding) -> None:
        """Emit a binding, with its tangent."""
        var, value = binding.var, binding.value
        if not depends(binding, self.values):
            self.emit_binding(binding)
            return
        self.span = binding.span
        found: Cotangent
        if isinstance(binding, MatchCast) or isinstance(value, (Var, Tuple)):
            self.emit_binding(binding)
            found = self.tangent(value)
        elif isinstance(value, TupleGetItem):
            self.emit_binding(binding)
            parts = self.parts(self.tangent(value.tuple), self.annotation(value.tuple))
            assert not isinstance(parts, (Expr, NoRule))
            found = None if parts is None else parts[value.index]
        elif isinstance(value, Call) and isinstance(value.op, Op):
            self.emit_binding(binding)
            found = self.transposed(value, var)
        else:
            found = self.calls.forward_call(self, binding)
        found = self.parts(found, var.annotation)
        if isinstance(found, Expr):
            found = self.fitted(found, var.annotation)
        if found is not None:
            self.values[var] = found

    def transposed(self, call: Call, var: Var) -> Cotangent:
        """The tangent of a call: the transpose of its rule. The rule is written for a cotangent of zeros, of which the
        transpose reads nothing."""
        op = expect(Op, call.op)
        if not op.has_vjp():
            self.refuse(f"{op.name} is not differentiable: {why(op)}", HELP)
            return None
        tangents = [self.parts(self.tangent(arg), self.annotation(arg)) for arg in call.args]
        args, out = self.arguments(call), self.result(var)
        ct = self.zeros_like(out)
        seeds = [each for each in flat(ct) if isinstance(each, Var)]
        begin = len(self.emitted)
        found = op.vjp(self.rule, args, out, self.parts(ct, var.annotation))
        inner = Walk(self.builder, self.calls, self.errors)
        inner.span, inner.emitted = self.span, self.emitted
        rule = self.emitted[begin:]
        inner.watch(seeds, rule)
        for arg, part, tangent in zip(call.args, found, tangents, strict=False):
            for leaf, each in leaves(part, tangent, self.annotation(arg)):
                if isinstance(leaf, NoRule):
                    self.refuse(leaf.reason)
                    continue
                inner.add(leaf, each)
        inner.backward(rule)
        return inner.of(ct)

    def of(self, expr: Expr) -> Cotangent:
        """The cotangent found for an expression, which may be a tuple."""
        if isinstance(expr, Tuple):
            return [self.of(each) for each in expr.fields]
        return self.values.get(expr) if isinstance(expr, Var) else None


def scan(walk: Walk, *given: Any) -> Expr:
    """The last states and the outputs of steps that follow each other (`Rule.scan`)."""
    called, args = scan_function(walk.builder, walk.rule, *given)
    walk.calls.add(called.name)
    return walk.emit(Call(called, tuple(args), span=walk.span))


HELP = "mark what is a constant: R.grad.no_grad(x)"


def why(op: Op) -> str:
    """Why an operator has no rule."""
    return op.no_vjp or "it defines no vjp"


def nested(function: Callable[[Any], Any], value: Any) -> Any:
    """A function of the items of lists of lists."""
    if isinstance(value, list):
        return [nested(function, item) for item in cast("list[Any]", value)]
    return function(value)


def is_mark(value: Expr, kind: type[Op]) -> bool:
    return isinstance(value, Call) and isinstance(value.op, kind)


def unmarked(binding: Binding) -> Binding:
    """The binding without a mark of a checkpointing stage, which is read here."""
    value = binding.value
    if is_mark(value, StartCheckpoint) or is_mark(value, EndCheckpoint):
        return VarBinding(binding.var, value.args[0], span=binding.span)  # type: ignore[attr-defined]
    return binding


def stages(bindings: Sequence[Binding]) -> dict[Var, list[Binding]]:
    """The variables inside of checkpointing stages, with the bindings of their stage in order: those that depend on its
    inputs, and on each other, between the marks."""
    parents: dict[Var, Var] = {}

    def root(var: Var) -> Var:
        while parents[var] is not var:
            parents[var] = parents[parents[var]]
            var = parents[var]
        return var

    for binding in bindings:
        var, value = binding.var, binding.value
        start = is_mark(value, StartCheckpoint)
        used = [v for v in free_vars(value) if v in parents]
        if is_mark(value, EndCheckpoint) or not (used or start):
            continue
        parents[var] = var
        for each in () if start else used:
            parents[root(each)] = root(var)
    inside: dict[Var, list[Binding]] = {}
    for binding in bindings:
        if binding.var in parents:
            inside.setdefault(root(binding.var), []).append(binding)
    return {binding.var: own for own in inside.values() for binding in own}


class _Reader(Rewriter):
    """Replaces variables, and makes those fresh that a value defines itself."""

    def define(self, var: Var, annotation: Annotation | None = None) -> Var:
        new = self.vars[var] = type(var)(var.name, annotation or var.annotation, span=var.span)
        return new


def depends(binding: Binding, on: Any) -> bool:
    """Does a value with a cotangent depend on one of these variables?"""
    value = binding.value
    if not has_gradient(binding.var.annotation) or isinstance(value, Constant):
        return False
    if isinstance(value, Call) and isinstance(value.op, NoGrad):
        return False
    return any(var in on and has_gradient(var.annotation) for var in free_vars(value))


def flat(expr: Expr) -> list[Expr]:
    """The leaves of a tuple of tuples."""
    return (
        [leaf for each in expr.fields for leaf in flat(each)] if isinstance(expr, Tuple) else [expr]
    )


def leaves(a: Cotangent, b: Cotangent, annotation: Annotation) -> list[tuple[Any, Any]]:
    """Pairs of the leaves of two cotangents of one value, where both are known."""
    if a is None or b is None:
        return []
    if isinstance(annotation, TupleType) and not isinstance(a, NoRule):
        assert not isinstance(a, Expr)
        assert not isinstance(b, (Expr, NoRule))
        pairs = zip(a, b, annotation.fields or (), strict=True)
        return [pair for each in pairs for pair in leaves(*each)]
    return [(a, b)]
