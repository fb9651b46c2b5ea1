"""SpecializeFunctions: copies of functions for the functions that they are given, so that calls name what they call."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_functions import call_cycles
from relaxpy.analysis.called_operators import calls_operator
from relaxpy.errors import PassError
from relaxpy.ir.annotation import Annotation, CallableType, TupleType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Expr,
    Function,
    GlobalVar,
    If,
    MatchCast,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import INLINE, IRModule
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import free_sym_vars, used_symbols
from relaxpy.op.memory import MakeClosure
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.fresh_symbols import FreshSymbols
from relaxpy.transform.inline_private_functions import InlinePrivateFunctions
from relaxpy.transform.lambda_lift import without_unused_closures
from relaxpy.transform.rebuild import Rebuilder

MOST_COPIES = 64
"""A function has at most so many copies."""
ROUNDS = 8
"""Functions that return functions that return functions …, at most so deep."""


@dataclass(frozen=True)
class SpecializeFunctions(Pass):
    """Make functions that are passed on, returned or chosen known at their calls, where the module says what they are.
    `LambdaLift` comes before: a function value is `vm.make_closure` of a function and what it captures.

    A private function that is given functions is copied for those that it is given; what they capture is passed in
    their place, also through a recursion. One that returns a function is inlined. What follows an `if` that chooses one
    becomes part of both branches.

    Before:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor((4,), dtype="float32"), w: R.Tensor((4,), dtype="float32")):
                cls = Module
                f = R.vm.make_closure(cls.scaled, w)
                y = cls.twice(f, x)
                return y

            @R.function(private=True)
            def twice(
                f: R.Callable((R.Tensor((4,), dtype="float32"),), R.Tensor((4,), dtype="float32"), True),
                x: R.Tensor((4,), dtype="float32"),
            ) -> R.Tensor((4,), dtype="float32"):
                y = f(x)
                z = f(y)
                return z

            @R.function(private=True)
            def scaled(x: R.Tensor((4,), dtype="float32"), w: R.Tensor((4,), dtype="float32")):
                y = R.multiply(x, w)
                return y
    After:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor((4,), dtype="float32"), w: R.Tensor((4,), dtype="float32")):
                cls = Module
                y = cls.twice_scaled(w, x)
                return y

            @R.function(private=True)
            def twice(
                f: R.Callable((R.Tensor((4,), dtype="float32"),), R.Tensor((4,), dtype="float32"), True),
                x: R.Tensor((4,), dtype="float32"),
            ) -> R.Tensor((4,), dtype="float32"):
                y = f(x)
                z = f(y)
                return z

            @R.function(private=True)
            def scaled(x: R.Tensor((4,), dtype="float32"), w: R.Tensor((4,), dtype="float32")):
                y = R.multiply(x, w)
                return y

            @R.function(private=True)
            def twice_scaled(
                w: R.Tensor((4,), dtype="float32"), x: R.Tensor((4,), dtype="float32")
            ) -> R.Tensor((4,), dtype="float32"):
                cls = Module
                y = cls.scaled(x, w)
                z = cls.scaled(y, w)
                return z
    """

    name: ClassVar[str] = "specialize-functions"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        for _ in range(ROUNDS):
            if not any(calls_operator(f, MakeClosure) for f in mod.graph_functions.values()):
                break
            with deep_recursion():
                new = _Specializer(mod.map_graph_functions(lambda _, f: _spread(f))).run()
            makers = [n for n, f in new.graph_functions.items() if _has_function(f.ret)]
            cycles = call_cycles(new)
            for name in makers:
                if name not in cycles and "global_symbol" not in new.graph_functions[name].attrs:
                    new = new.with_function(name, _inlined(new.graph_functions[name]))
            if makers:
                new = InlinePrivateFunctions(max_bindings=0).run(new, ctx)
            if new is mod or not makers:
                return new
            mod = new
        return mod


def _inlined(function: Function) -> Function:
    return dataclasses.replace(function, attrs={**function.attrs, INLINE: True})


def _has_function(annotation: Annotation) -> bool:
    if isinstance(annotation, TupleType):
        return any(map(_has_function, annotation.fields or ()))
    return isinstance(annotation, CallableType)


# What follows an `if` that chooses a function


def _spread(function: Function) -> Function:
    """A function in which no `if` gives a function to what follows it."""
    body = _spread_seq(function.body, function.ret)
    return function if body is function.body else dataclasses.replace(function, body=body)


def _spread_seq(seq: SeqExpr, result: Annotation) -> SeqExpr:
    blocks = list(seq.blocks)
    for number, block in enumerate(blocks):
        for place, binding in enumerate(block.bindings):
            if not isinstance(binding, VarBinding) or not isinstance(binding.value, If):
                continue
            value = binding.value
            if _has_function(binding.var.annotation) and seq.body is not binding.var:
                first = dataclasses.replace(block, bindings=block.bindings[:place])
                rest = dataclasses.replace(block, bindings=block.bindings[place + 1 :])
                following = SeqExpr((rest, *blocks[number + 1 :]), seq.body, span=seq.span)
                arms = [
                    _spread_seq(_after(arm, binding, following, copied), result)
                    for arm, copied in ((value.then, False), (value.otherwise, True))
                ]
                found = Var(binding.var.name, result, span=binding.span)
                both = VarBinding(found, If(value.cond, *arms, span=value.span), span=binding.span)
                begin = (first,) if first.bindings else ()
                return SeqExpr(
                    (*blocks[:number], *begin, BindingBlock((both,))), found, span=seq.span
                )
            arms = [
                _spread_seq(arm, binding.var.annotation) for arm in (value.then, value.otherwise)
            ]
            if arms[0] is not value.then or arms[1] is not value.otherwise:
                new = dataclasses.replace(binding, value=If(value.cond, *arms, span=value.span))
                bindings = (*block.bindings[:place], new, *block.bindings[place + 1 :])
                block = blocks[number] = dataclasses.replace(block, bindings=bindings)
    same = all(a is b for a, b in zip(blocks, seq.blocks, strict=True))
    return seq if same else dataclasses.replace(seq, blocks=tuple(blocks))


def _after(arm: SeqExpr, binding: VarBinding, following: SeqExpr, copied: bool) -> SeqExpr:
    """A branch, and then what follows, with the branch's result under the name of the binding."""
    if copied:
        copy = Copy(_outer_symbols(following))
        var = copy.define(binding.var)
        following = copy.rewrite(following)
    else:
        var = binding.var
    known = arm.body.annotation if isinstance(arm.body, Var) else var.annotation
    if known != var.annotation:  # what the branch knows, and not what the two have in common
        other = Var(var.name, known, span=var.span)
        again = Copy(_outer_symbols(following))
        again.vars[var] = other
        following, var = again.rewrite(following), other
    given = BindingBlock((VarBinding(var, arm.body, span=binding.span),))
    blocks = (*arm.blocks, given, *(b for b in following.blocks if b.bindings))
    return SeqExpr(blocks, following.body, span=arm.span)


def _outer_symbols(seq: SeqExpr) -> set[SymVar]:
    """The symbols in a body that it does not define by itself."""
    own = free_sym_vars(b.annotation for b in seq.bindings if isinstance(b, MatchCast))
    return set(used_symbols(seq)) - set(own)


class Copy(FreshSymbols):
    """Copies a body with fresh variables; and with fresh symbols, but for those that come from outside."""

    def __init__(self, outside: Iterable[SymVar]) -> None:
        super().__init__()
        self.syms.update({symbol: symbol.dim for symbol in outside})

    def define(self, var: Var, annotation: Annotation | None = None) -> Var:
        known = annotation or self.rewrite_annotation(var.annotation)
        fresh = self.vars[var] = type(var)(var.name, known, span=var.span)
        return fresh


# Calls


@dataclass(frozen=True)
class _Closure:
    """A function, and the values of its last parameters, none of which is a function."""

    name: str
    captured: tuple[Expr, ...]


class _Specializer(Rebuilder):
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self.known: dict[Expr, _Closure] = {}
        self.tuples: dict[Var, Tuple] = {}
        self.copies: dict[tuple[str, tuple[tuple[int, str], ...]], str] = {}
        self.count: Counter[str] = Counter()
        self.origins: dict[str, str] = {}
        """The function of which a copy, perhaps of a copy, is one."""
        self.waiting: list[str] = []

    def run(self) -> IRModule:
        self.waiting = list(self.mod.graph_functions)
        while self.waiting:
            name = self.waiting.pop()
            new = without_unused_closures(self.function(self.mod.graph_functions[name]))
            self.mod = self.mod.with_function(name, new)
        return self.mod

    def define(self, var: Var, annotation: Annotation, value: Expr) -> Var:
        new = super().define(var, annotation, value)
        match value:
            case Call(op=MakeClosure(), args=(GlobalVar(name=name), *captured)):
                self.known[new] = _Closure(name, tuple(captured))
            case Var() if value in self.known:
                self.known[new] = self.known[value]
            case Tuple():
                self.tuples[new] = value
            case TupleGetItem(tuple=Var() as whole, index=i) if whole in self.tuples:
                field = self.tuples[whole].fields[i]
                if isinstance(field, Tuple):
                    self.tuples[new] = field
                elif field in self.known:
                    self.known[new] = self.known[field]
            case _:
                pass
        return new

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=MakeClosure(), args=(GlobalVar() as op, *captured)):
                first = len(self.mod.graph_functions[op.name].params) - len(captured)
                new, leaves = self.applied(op, captured, first, value)
                return value if new is op else dataclasses.replace(value, args=(new, *leaves))
            case Call(op=Var() as op, args=args) if op in self.known:
                closure = self.known[op]
                new, leaves = self.applied(
                    GlobalVar(closure.name), (*args, *closure.captured), 0, value
                )
                return dataclasses.replace(value, op=new, args=leaves)
            case Call(op=GlobalVar() as op, args=args) if op.name in self.mod.graph_functions:
                new, leaves = self.applied(op, args, 0, value)
                return value if new is op else dataclasses.replace(value, op=new, args=leaves)
            case _:
                return value

    def applied(
        self, op: GlobalVar, args: Sequence[Expr], first: int, at: Call
    ) -> tuple[GlobalVar, tuple[Expr, ...]]:
        """A function for arguments that may be functions, which those from number `first` on are given, and what is
        passed to it."""
        given = [self.known.get(arg, arg) for arg in args]
        names = tuple((first + i, c.name) for i, c in enumerate(given) if isinstance(c, _Closure))
        if not names:
            return op, tuple(args)
        leaves = [leaf for c in given for leaf in (c.captured if isinstance(c, _Closure) else (c,))]
        return self.copy_for(
            op.name, names, {first + i: c for i, c in enumerate(given)}, at
        ), tuple(leaves)

    def copy_for(
        self, name: str, names: tuple[tuple[int, str], ...], given: Mapping[int, Expr | _Closure], at: Call
    ) -> GlobalVar:  # fmt: skip
        """The copy of a function for these function arguments."""
        key = name, names
        if key in self.copies:
            return GlobalVar(self.copies[key])
        origin = self.origins.get(name, name)
        self.count[origin] += 1
        if self.count[origin] > MOST_COPIES:
            raise PassError(
                "gradient-rule",
                f"{origin} is given ever other functions, more than {MOST_COPIES}",
                span=at.span or self.span,
                help="pass on what the functions read, and one function that reads it",
            )
        source = self.mod.graph_functions[name]
        new = self.copies[key] = self.mod.fresh_name(
            "_".join([origin, *(self.origins.get(n, n) for _, n in names)])
        )
        copy, params = Copy(()), list[Var]()
        closures: list[Binding] = []
        for number, param in enumerate(source.params):
            closure = given.get(number)
            if isinstance(closure, _Closure):
                captured = self.captures(closure)
                value = MakeClosure()(GlobalVar(closure.name), *captured)
                closures.append(VarBinding(copy.define(param), value))
                params += captured
            else:
                params.append(copy.define(param))
        body: SeqExpr = copy.rewrite(source.body)
        body = dataclasses.replace(body, blocks=(BindingBlock(tuple(closures)), *body.blocks))
        attrs = {k: v for k, v in source.attrs.items() if k != "global_symbol"}
        function = dataclasses.replace(
            source,
            params=tuple(params),
            body=body,
            ret=copy.rewrite_annotation(source.ret),
            attrs=attrs,
        )
        self.mod = self.mod.with_function(new, function)
        self.origins[new] = origin
        self.waiting.append(new)
        return GlobalVar(new)

    def captures(self, closure: _Closure) -> list[Var]:
        """Parameters for what a closure captures."""
        params = self.mod.graph_functions[closure.name].params
        copy = Copy(())
        return [copy.define(p) for p in params[len(params) - len(closure.captured) :]]
