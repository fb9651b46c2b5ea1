"""Gradient: add the derivative of a function to its module."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from relaxpy.analysis.called_functions import mentioned_functions
from relaxpy.analysis.purity import is_pure
from relaxpy.errors import ErrorBag, PassError
from relaxpy.ir.annotation import VOID, Annotation, TensorType, TupleType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import (
    Binding,
    Call,
    DataflowVar,
    Expr,
    Function,
    GlobalVar,
    If,
    SeqExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.op import Operator
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import free_sym_vars, free_vars
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.deduce import deduce
from relaxpy.op.rule import Cotangent, has_gradient
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.bind_unknown_shapes import BindUnknownShapes
from relaxpy.transform.cotangents import HELP, Walk, cotangent_type
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.dead_code_elimination import without_dead_bindings, without_unused
from relaxpy.transform.fresh_symbols import FreshSymbols
from relaxpy.transform.inline_private_functions import InlinePrivateFunctions
from relaxpy.transform.lambda_lift import LambdaLift
from relaxpy.transform.normalize import Normalize
from relaxpy.transform.specialize_functions import SpecializeFunctions

Kind = Literal["grad", "value_and_grad", "vjp", "jvp"]
PREPARE: tuple[Pass, ...] = (
    Normalize(),
    LambdaLift(),
    SpecializeFunctions(),
    InlinePrivateFunctions(),
    BindUnknownShapes(),
)
"""What comes before: calls of operators only, where possible, and a name for each size."""


@dataclass(frozen=True)
class Gradient(Pass):
    """Add the derivative of a function: one function with the forward and the backward pass, for all shapes, with
    parameters and symbols of its own (`Gradient` in TVM; Relay's section 4.2, for first-order programs).

    The operators' rules (`Op.vjp`) are calls of operators, so that a derivative is a program as any other: it is fused
    and planned with all else, and has a derivative itself. What the rules read is kept from the forward pass. Short
    private functions are inlined first. For others, for loops (which are functions that call themselves) and for the
    branches of an `if`, the backward pass has a function or an `if` of its own, which computes again what its rules
    read.

    Before:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4,), dtype="float32")):
                with R.dataflow():
                    y = R.multiply(x, w)
                    gv = R.sum(y)
                    R.output(gv)
                return gv
    After:
        @I.ir_module
        class Module:
            @R.function
            def main(x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4,), dtype="float32")):
                with R.dataflow():
                    y = R.multiply(x, w)
                    gv = R.sum(y)
                    R.output(gv)
                return gv

            @R.function
            def main_value_and_grad(x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4,), dtype="float32")):
                n = T.int64()
                with R.dataflow():
                    y = R.multiply(x, w)
                    gv = R.sum(y)
                    lv = R.ones(R.shape([]), dtype="float32")
                    lv1 = R.reshape(lv, R.shape([1, 1]))
                    lv2 = R.broadcast_to(lv1, R.shape([n, 4]))
                    lv3 = R.multiply(lv2, w)
                    lv4 = R.multiply(lv2, x)
                    lv5 = R.collapse_sum_to(lv4, R.shape([4]))
                    gv1 = (gv, (lv3, lv5))
                    R.output(gv1)
                return gv1
    """

    name: ClassVar[str] = "gradient"
    function: str = "main"
    kind: Kind = "value_and_grad"
    """grad: the gradient of the scalar result. value_and_grad: (result, gradient). vjp: of (parameters, cotangent of
    the result), (result, cotangents of the parameters). jvp: of (parameters, a tangent for each), (result, its
    tangent)."""
    argnums: int | tuple[int, ...] | None = None
    """The parameters to differentiate: one, or several, whose gradients are a tuple; None: all that are floats."""
    has_aux: bool = False
    """Is the result (what is differentiated, other results)?"""
    called: str = ""
    """The name of the new function; empty: that of the function and of the kind."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        source = mod.graph_function(self.function)
        public = dataclasses.replace(source, attrs={"global_symbol": self.function})
        prepared = mod.with_function(self.function, public)
        for step in PREPARE:
            prepared = step.run(prepared, ctx)
        name = mod.fresh_name(self.called or f"{self.function}_{self.kind}")
        with deep_recursion():
            derivatives = Derivatives(prepared, taken=(*mod.functions, name))
            function = derivatives.of(prepared.graph_functions[self.function], self, name)
            new = {name: function, **derivatives.made}
            prepared = without_dead_bindings(prepared.with_functions({**prepared.functions, **new}))
        used: dict[str, Any] = {}
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each not in used and each not in mod.functions:
                function = prepared.graph_functions[each]
                if each not in new:  # lifted out of a function of the module, which has it still
                    function = _Copy(()).rewrite(function)
                used[each] = with_outputs(function)
                waiting += mentioned_functions(used[each])
        return mod.with_functions({**mod.functions, **used})


class Derivatives:
    """The derivatives of the functions of a module, each made once."""

    def __init__(self, mod: IRModule, taken: Iterable[str]) -> None:
        self.builder = BlockBuilder(mod, reserved=taken)
        self.errors = ErrorBag()
        self.made: dict[str, Function] = {}
        self.names: dict[tuple[str, bool], str] = {}

    @property
    def mod(self) -> IRModule:
        """The module with what was built so far."""
        return self.builder.get()

    def of(self, source: Function, wanted: Gradient, name: str) -> Function:
        """The derivative that a pass asks for. Raises all errors found."""
        chosen = self.chosen(source, wanted)
        if wanted.kind in ("grad", "value_and_grad"):
            self.check_scalar(source, wanted.has_aux)
        elif wanted.has_aux and not (isinstance(source.ret, TupleType) and source.ret.fields):
            self.refuse(
                source,
                f"a function with other results (has_aux) gives a tuple, got {source.ret}",
                "leave has_aux out",
            )
        for name_of, annotation in [
            *((p.name, p.annotation) for p in source.params),
            ("result", source.ret),
        ]:
            if has_unknown_dtype(annotation):
                self.refuse(
                    source,
                    f"the dtype of {name_of} must be known, got {annotation}",
                    'declare it: R.Tensor((n, 4), "float32")',
                )
        self.errors.raise_if_any()
        one = isinstance(wanted.argnums, int)
        if wanted.kind == "jvp":
            function = self.forward(source, name, chosen)
        else:
            function = self.reverse(source, name, chosen, wanted, one)
        self.errors.raise_if_any()
        return function

    def chosen(self, source: Function, wanted: Gradient) -> list[int]:
        """The parameters to differentiate, by number."""
        count = len(source.params)
        given = wanted.argnums
        if given is None:
            given = tuple(i for i, p in enumerate(source.params) if has_gradient(p.annotation))
            if not given:
                self.refuse(source, "no parameter is a tensor of floats")
        found: list[int] = []
        for number in (given,) if isinstance(given, int) else given:
            if not -count <= number < count:
                self.refuse(source, f"argnums has {number}, and there are {count} parameters")
                continue
            param = source.params[number]
            if not has_gradient(param.annotation):
                kind = f"{param.name} is {param.annotation}, which is not differentiable"
                self.refuse(
                    param, kind, 'leave it out of argnums, or cast it: R.astype(…, "float32")'
                )
            found.append(number % count)
        return found

    def check_scalar(self, source: Function, has_aux: bool) -> None:
        """Refuse a function whose result is no scalar to differentiate."""
        ret = source.ret
        if has_aux:
            ret = (ret.fields or (VOID,))[0] if isinstance(ret, TupleType) else VOID
        good = isinstance(ret, TensorType) and ret.ndim == 0 and has_gradient(ret)
        if not good:
            what = "a tuple whose first field is a float scalar" if has_aux else "a float scalar"
            self.refuse(
                source,
                f"the gradient of a function needs {what} as its result, got {source.ret}",
                "reduce it: R.mean(loss); or take vjp, which has a cotangent for each element"
                + ("" if has_aux or not isinstance(ret, TupleType) else "; or has_aux=True"),
            )

    def refuse(self, at: Function | Var, message: str, help: str | None = None) -> None:
        self.errors.add(PassError("gradient-argument", message, span=at.span, help=help))

    # Functions

    def reverse(
        self, source: Function, name: str, chosen: Sequence[int], wanted: Gradient, one: bool
    ) -> Function:
        """Parameters, and the cotangent of the result unless that is a scalar → the result and cotangents."""
        body = Body(self, source)
        params, wrt = body.params, [body.params[i] for i in chosen]
        seeded = wanted.kind == "vjp"
        ret = body.source.ret
        if wanted.has_aux and isinstance(ret, TupleType):
            ret = (ret.fields or (VOID,))[0]
        ct = Var("ct", body.outside(cotangent_type(ret)))
        with body.open(name, [*params, ct] if seeded else params):
            value = body.forward(wrt)
            seed: Cotangent = ct
            if not seeded:
                seed = body.walk.rule.ones((), deduce(body.scalar(wanted.has_aux)).dtype)  # type: ignore[attr-defined]
            seed = [seed] if wanted.has_aux else seed
            found = body.cotangents(wrt, seed)
            grads = found[0] if one else Tuple(tuple(found))
            body.close(grads if wanted.kind == "grad" else Tuple((value, grads)))
        return self.finished(name)

    def forward(self, source: Function, name: str, chosen: Sequence[int]) -> Function:
        """Parameters, and a tangent for each → the result and its tangent."""
        body = Body(self, source)
        params = body.params
        tangents = {
            params[i]: Var(f"d{params[i].name}", cotangent_type(params[i].annotation))
            for i in chosen
        }
        with body.open(name, [*params, *tangents.values()]):
            value = body.tangents(tangents)
            found = body.walk.whole_tangent(body.source.body.body)
            body.close(Tuple((value, found)))
        return self.finished(name)

    def add(self, name: str) -> None:
        """Take a function that a rule has built."""
        self.made[name] = self.mod.graph_functions[name]

    def finished(self, name: str) -> Function:
        function = self.builder.get().graph_functions[name]
        self.made[name] = function
        return function

    def helper(self, name: str, forward: bool) -> GlobalVar:
        """The function that carries cotangents (tangents) through a call: of the parameters and the cotangent of the
        result (a tangent for each that has one), a cotangent for each parameter (the result and its tangent)."""
        key = name, forward
        if key not in self.names:
            source = self.mod.graph_functions[name]
            ways = "jvp" if forward else "vjp"
            new = self.builder.add_func(source, f"{name}_{ways}").name
            self.names[key] = new
            chosen = [i for i, p in enumerate(source.params) if has_gradient(p.annotation)]
            body = Body(self, source)
            params, wrt = body.params, [body.params[i] for i in chosen]
            if forward:
                more = [Var(f"d{p.name}", cotangent_type(p.annotation)) for p in wrt]
                ret = TupleType((body.source.ret, cotangent_type(body.source.ret)))
            else:
                more = [Var("ct", body.outside(cotangent_type(body.source.ret)))]
                ret = TupleType([cotangent_type(p.annotation) for p in wrt])
            # its signature first: the function may call itself
            stub = Function((*params, *more), SeqExpr((), Tuple(())), ret)
            self.builder.update_func(new, stub)
            with body.open(new, [*params, *more], private=True, ret=ret):
                if forward:
                    value = body.tangents(dict(zip(wrt, more, strict=True)))
                    found = body.walk.whole_tangent(body.source.body.body)
                    body.close(Tuple((value, found)))
                else:
                    body.forward(wrt)
                    body.close(Tuple(tuple(body.cotangents(wrt, more[0]))))
            function = self.finished(new)
            if not forward:  # what it computes again has been checked
                self.made[new] = dataclasses.replace(function, body=without_unused(function.body))
        return GlobalVar(self.names[key])

    # What is no operator

    def backward(self, walk: Walk, binding: VarBinding, ct: Expr) -> None:
        """Carry the cotangent of a call or a branch to its arguments."""
        match binding.value:
            case If() as value:
                self.backward_if(walk, value, ct)
            case Call(op=GlobalVar(name=name), args=args) if name in self.mod.graph_functions:
                params = self.mod.graph_functions[name].params
                wrt = [i for i, p in enumerate(params) if has_gradient(p.annotation)]
                given = map(walk.read, args)
                found = walk.emit(Call(self.helper(name, False), (*given, ct), span=binding.span))
                for i, each in zip(wrt, walk.rule.fields(found), strict=True):
                    walk.add(args[i], each)
            case value:
                self.no_rule(walk, value)
                walk.go_on(value)

    def backward_if(self, walk: Walk, value: If, ct: Expr) -> None:
        """A second `if`: its branches compute again what their rules read."""
        wrt = [v for v in free_vars(value) if v in walk.values and has_gradient(v.annotation)]
        value, inside = walk.read(value), [walk.read(v) for v in wrt]
        branches: list[SeqExpr] = []
        for old in (value.then, value.otherwise):
            branch = _Copy(walk.symbols).rewrite(old)
            with self.builder.seq() as building:
                inner = Walk(self.builder, self, self.errors, walk.symbols)
                inner.forward(inside, branch.bindings)
                inner.add(branch.body, ct)
                inner.backward(branch.bindings)
                found = [inner.found(v) for v in inside]
                building.result(Tuple(tuple(found)))
            branches.append(without_unused(building.seq))
        both = self.builder.emit_if(value.cond, branches[0], branches[1], span=walk.span)
        for var, each in zip(wrt, walk.rule.fields(both), strict=True):
            walk.add(var, each)

    def forward_call(self, walk: Walk, binding: VarBinding) -> Cotangent:
        """Emit a call or a branch with its tangent, which is returned."""
        match binding.value:
            case If(cond=cond, then=then, otherwise=otherwise, span=span):
                seqs: list[SeqExpr] = []
                for branch in (then, otherwise):
                    with self.builder.seq() as building:
                        inner = Walk(self.builder, self, self.errors, walk.symbols)
                        inner.values.update(walk.values)
                        for each in branch.bindings:
                            inner.step(each)
                        tangent = inner.whole_tangent(branch.body)
                        building.result(Tuple((branch.body, tangent)))
                    seqs.append(building.seq)
                both = self.builder.emit_if(cond, seqs[0], seqs[1], span=span)
            case Call(op=GlobalVar(name=name), args=args) if name in self.mod.graph_functions:
                params = self.mod.graph_functions[name].params
                more = [
                    walk.whole_tangent(arg)
                    for arg, p in zip(args, params, strict=True)
                    if has_gradient(p.annotation)
                ]
                both = walk.emit(Call(self.helper(name, True), (*args, *more), span=binding.span))
            case value:
                self.no_rule(walk, value)
                self.builder.emit_binding(binding)
                return None
        self.builder.emit_binding(VarBinding(binding.var, TupleGetItem(both, 0), span=binding.span))
        return walk.emit(TupleGetItem(both, 1))

    def no_rule(self, walk: Walk, value: Expr) -> None:
        match value:
            case Call(op=Expr()):
                walk.refuse(
                    "a call of a function that is known only at run time is not differentiable",
                    "pass or return functions of the module, and choose among them by `if`",
                )
            case Call(op=Operator() as op):
                walk.refuse(
                    f"{op.name} is not differentiable: its program has no rule",
                    f"write it as calls of operators, or {HELP}",
                )
            case _:
                walk.refuse(f"{type(value).__name__} is not differentiable", HELP)


class Body:
    """A function whose derivative is built: a copy with variables and symbols of its own."""

    def __init__(self, derivatives: Derivatives, source: Function) -> None:
        self.derivatives = derivatives
        self.builder = derivatives.builder
        bindings = list(source.body.bindings)
        self.dataflow = source.pure and not any(
            isinstance(b.value, (If, Function)) for b in bindings
        )
        self.source: Function = _Copy(set(), DataflowVar if self.dataflow else Var).rewrite(source)
        self.params = list(self.source.params)
        symbols = free_sym_vars(param.annotation for param in self.params)
        self.walk = Walk(self.builder, derivatives, derivatives.errors, symbols)

    def open(self, name: str, params: Sequence[Var], private: bool = False, ret: Any = None) -> Any:
        """Build a function of this name."""
        return self.builder.function(name, params, private=private, ret=ret, span=self.source.span)

    def outside(self, annotation: Annotation) -> Annotation:
        """An annotation of a parameter: with no more symbols than the other parameters define."""
        defined = set(free_sym_vars(p.annotation for p in self.params))
        match annotation:
            case TensorType(dims=dims) if dims is not None and not defined >= set(
                free_sym_vars([annotation])
            ):
                return TensorType(None, annotation.dtype, len(dims))
            case TupleType(fields=fields):
                return TupleType(map(self.outside, fields or ()))
            case _:
                return annotation

    def block(self) -> Any:
        return self.builder.dataflow() if self.dataflow else nullcontext()

    def forward(self, wrt: Iterable[Var]) -> Expr:
        """Emit the function's own bindings. Returns its result."""
        self.scope = self.block()
        self.scope.__enter__()
        for binding in self.source.body.bindings:
            self.check(binding)
        self.walk.forward(wrt, self.source.body.bindings)
        return self.source.body.body

    def check(self, binding: Binding) -> None:
        """Refuse effects: the backward pass could not repeat or undo them."""
        call = binding.value
        if isinstance(call, Call) and not is_pure(call, self.derivatives.mod):
            self.walk.span = binding.span
            self.walk.refuse(
                "a call with an effect is not differentiable", "take it out of the function"
            )

    def scalar(self, has_aux: bool) -> Expr:
        """The result that is differentiated."""
        body = self.source.body.body
        if not has_aux:
            return body
        return body.fields[0] if isinstance(body, Tuple) else TupleGetItem(body, 0)

    def cotangents(self, wrt: Sequence[Var], seed: Cotangent) -> list[Expr]:
        """Emit the backward pass: the cotangents of parameters, given that of the result."""
        walk, result = self.walk, self.source.body.body
        if isinstance(seed, list):  # of the first field only
            count = len(deduce(result).fields or ())  # type: ignore[attr-defined]
            seed = [*seed, *[None] * (count - len(seed))]
        walk.span = self.source.span
        walk.add(result, seed)
        walk.backward(self.source.body.bindings)
        return [walk.found(v) for v in wrt]

    def tangents(self, given: dict[Var, Any]) -> Expr:
        """Emit the bindings, each with its tangent. Returns the result."""
        self.scope = self.block()
        self.scope.__enter__()
        self.walk.values.update(given)
        for binding in self.source.body.bindings:
            self.check(binding)
            self.walk.step(binding)
        return self.source.body.body

    def close(self, result: Expr) -> None:
        """End the function."""
        if self.dataflow:
            result = self.builder.emit_output(result)
        self.scope.__exit__(None, None, None)
        self.builder.emit_func_output(result)


def has_unknown_dtype(annotation: Annotation) -> bool:
    """Is this a tensor that may be of floats or not, or a tuple with one?"""
    match annotation:
        case TensorType(dtype=None):
            return True
        case TupleType(fields=fields):
            return any(map(has_unknown_dtype, fields or ()))
        case _:
            return False


class _Copy(FreshSymbols):
    """Copies a body with fresh variables; and with fresh symbols, but for those that come from outside."""

    def __init__(self, outside: Iterable[SymVar], kind: type[Var] = Var) -> None:
        super().__init__()
        self.kind = kind
        self.syms.update({symbol: symbol.dim for symbol in outside})

    def define(self, var: Var, annotation: Annotation | None = None) -> Var:
        known = annotation or self.rewrite_annotation(var.annotation)
        fresh = self.kind(var.name, known, span=var.span)
        self.vars[var] = fresh
        return fresh

    def rewrite_Function(self, node: Function) -> Function:
        kind, self.kind = self.kind, Var
        params = tuple(self.define(param) for param in node.params)
        self.kind = kind
        body = self.rewrite(node.body)
        return dataclasses.replace(
            node, params=params, body=body, ret=self.rewrite_annotation(node.ret)
        )
