"""Is a module well formed? The rules that every pass may rely on and must keep.

| rule | what it says |
|---|---|
| `wf-scope` | a variable is used where it is defined, a dataflow variable only in its block |
| `wf-sym-scope` | a symbolic variable too; parameters and match_cast define those that they determine |
| `wf-single-definition` | a variable is defined once |
| `wf-anf` | arguments are leaves: everything else is bound to a variable first |
| `wf-dataflow` | a dataflow block has no branch; its private variables are bound nowhere else |
| `wf-dataflow-pure` | a dataflow block has no effect |
| `wf-pure` | a function that is declared pure has no effect |
| `wf-annotation` | a variable's annotation may be coarser than its value's, and must not contradict it |
| `wf-return` | a function's return annotation neither |
| `wf-call-arity` | a function gets as many arguments as it has parameters, |
| `wf-call-argument` | and each fits |
| `wf-prim-func-call` | call_tir gives a tensor program its parameters: number, rank, dtype, dimensions, scalars |
| `wf-global` | a global name is a function of the module |
| `wf-attribute` | no two functions have one `global_symbol`; attributes that the compiler reads have their types |

All violations are found in one go. What cannot be decided while compiling is no violation: it is checked at run time.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from typing import Any, TypeAlias

from relaxpy.analysis.donated import DONATED, problems
from relaxpy.analysis.prim_func_call import check_prim_func_call, is_program_call
from relaxpy.analysis.purity import is_pure
from relaxpy.analysis.weights import NUM_INPUT, PACKED
from relaxpy.errors import DeduceError, ErrorGroup, Span, VerifyError, did_you_mean
from relaxpy.ir.annotation import Annotation, CallableType, ObjectType, TensorType, TupleType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    BindingBlock,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    DataTypeImm,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
    is_leaf,
)
from relaxpy.ir.module import INLINE, IRModule
from relaxpy.op.deduce import deduce
from relaxpy.shape.bounds import assuming, bounds_of
from relaxpy.shape.defined import defined_symbols
from relaxpy.shape.lattice import Verdict, accepts, erase, join
from relaxpy.shape.polymorphic import type_params
from relaxpy.shape.prove import equal

Walk: TypeAlias = "Generator[Walk, Any, Annotation | None]"
"""A check of a nested construct. It yields the checks inside it and receives their results, so that depth needs no
recursion.
"""


def well_formed(mod: IRModule, only: Collection[str] | None = None) -> list[VerifyError]:
    """Return all violations, in the order of the program; empty if the module is well formed. `only`: the functions to
    check; None: all."""
    checker = _Checker(mod)
    for name, function in mod.functions.items():
        if isinstance(function, Function) and (only is None or name in only):
            checker.attributes(name, function)
            with assuming(bounds_of(function)):
                checker.check(name, function)
    return checker.errors


def check_well_formed(mod: IRModule) -> None:
    """Raise the violations of a module that is not well formed: one `VerifyError`, or an `ErrorGroup` of them."""
    errors = well_formed(mod)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ErrorGroup(errors)


SYMBOL = "global_symbol"
_ATTRIBUTES: dict[str, tuple[type, str]] = {
    SYMBOL: (str, "a name"),
    "relax.force_pure": (int, "True or False"),
    INLINE: (bool, "True or False"),
    NUM_INPUT: (int, "a number of parameters"),
    PACKED: (list, "a list of names of parameters"),
    DONATED: (list, "a list of names of parameters"),
}
"""Attributes of functions that the compiler reads, and their types."""

_CODES = {
    "call-arity": "wf-call-arity",
    "call-argument": "wf-call-argument",
    "call-prim-func": "wf-prim-func-call",
    "call-callee": "wf-call-argument",
    "tuple-index": "wf-annotation",
    "call-out": "wf-prim-func-call",
}
"""The rule for each error code of deduction; other errors of deduction keep their own code."""


class _Checker:
    """Checks one function after the other. Definitions are undone at the end of their scope."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.errors: list[VerifyError] = []
        self.defined: set[Var] = set()
        self.vars: set[Var] = set()
        self.syms: set[SymVar] = set()
        self.types: tuple[str, ...] = ()
        self.trail: list[Var | SymVar] = []
        """The definitions in order. A scope ends by undoing those after its start."""
        self.missing: set[tuple[SymVar, Span | None]] = set()
        """Symbols that were reported, with their places."""
        self.function = ""
        self.dataflow = False
        self.exported: dict[str, str] = {}
        """Functions by their `global_symbol`."""
        for name, function in mod.functions.items():
            if isinstance(function, Function):
                self.exported.setdefault(str(function.attrs.get(SYMBOL, name)), name)

    def attributes(self, name: str, function: Function) -> None:
        """Check the attributes that the compiler reads."""
        self.function = name
        for key, (kind, expected) in _ATTRIBUTES.items():
            value = function.attrs.get(key)
            if value is not None and not isinstance(value, kind):
                problem = f"the attribute {key} must be {expected}, got {value!r}"
                self.report("wf-attribute", problem, function.span)
            elif isinstance(value, int) and value < 0:
                self.report(
                    "wf-attribute", f"the attribute {key} is negative: {value}", function.span
                )
        if isinstance(function.attrs.get(DONATED), list):
            for problem in problems(function):
                self.report("wf-attribute", f"the attribute {DONATED} {problem}", function.span)
        symbol = function.attrs.get(SYMBOL)
        other = self.exported.get(symbol) if isinstance(symbol, str) else None
        if other not in (None, name):
            self.report(
                "wf-attribute",
                f"the functions {other} and {name} have the same global symbol: {symbol}",
                function.span,
                help="remove the attribute global_symbol: a function is called by its name",
            )

    def check(self, name: str, function: Function) -> None:
        self.function, self.vars, self.syms, self.trail, self.dataflow = (
            name,
            set(),
            set(),
            [],
            False,
        )
        self.types = type_params([function.annotation])
        stack: list[Walk] = [self.check_function(function)]
        result: Annotation | None = None
        while stack:
            try:
                inner = stack[-1].send(result)
            except StopIteration as stop:
                stack.pop()
                result = stop.value
            else:
                stack.append(inner)
                result = None

    def report(
        self,
        code: str,
        message: str,
        span: Span | None,
        notes: Iterable[str] = (),
        help: str | None = None,
    ) -> None:
        self.add(VerifyError(code, message, span=span, notes=list(notes), help=help))

    def add(self, error: VerifyError) -> None:
        """Record an error. If it has no source location, the function's name is added."""
        if error.span is None:
            error.notes = (*error.notes, f"in function {self.function}")
        self.errors.append(error)

    # Scopes

    def close(self, start: int) -> None:
        """End the scope that started when the trail had this length."""
        for item in self.trail[start:]:
            (self.syms if isinstance(item, SymVar) else self.vars).discard(item)  # type: ignore[arg-type]
        del self.trail[start:]

    def close_dataflow(self, start: int) -> None:
        """End a dataflow block: its private variables go out of scope, the others stay."""
        inside = self.trail[start:]
        del self.trail[start:]
        for item in inside:
            if isinstance(item, DataflowVar):
                self.vars.discard(item)
            else:
                self.trail.append(item)

    def define_symbols(self, annotations: Iterable[Annotation]) -> None:
        for symbol in defined_symbols(annotations, self.syms):
            self.syms.add(symbol)
            self.trail.append(symbol)

    # Functions and bodies

    def check_function(self, function: Function) -> Walk:
        start, dataflow = len(self.trail), self.dataflow
        self.dataflow = False
        self.define_symbols([param.annotation for param in function.params])
        for param in function.params:
            self.define(param, param.span or function.span)
            if isinstance(param, DataflowVar):
                self.report(
                    "wf-dataflow", f"the parameter {param.name} is a dataflow variable", param.span
                )
        for param in function.params:
            self.symbols_of(
                param.annotation,
                param.span or function.span,
                f"the annotation of parameter {param.name}",
                "a parameter must have the symbol as a dimension, or a dimension that is a linear expression of it",
            )
        # TVM's lowered functions are declared pure whatever they call
        pure = function.pure and not function.attrs.get("relax.force_pure")
        result = yield self.check_body(function.body, function.span, pure=pure)
        self.symbols_of(function.ret, function.span, "the return annotation")
        if result is not None and accepts(function.ret, result, None, equal) is Verdict.NO:
            self.report(
                "wf-return",
                f"the function returns {result}, but is declared to return {function.ret}",
                function.body.body.span or function.span,
            )
        self.close(start)
        self.dataflow = dataflow
        return function.annotation

    def check_body(self, body: SeqExpr, span: Span | None, *, pure: bool) -> Walk:
        """The annotation of a body, as seen from outside; None if it is not known because of an error in it."""
        start = len(self.trail)
        for block in body.blocks:
            yield self.check_block(block, pure=pure)
        result: Annotation | None = None
        if not is_leaf(body.body):
            self.report(
                "wf-anf",
                f"the result of a body must be a leaf, not {_what(body.body)}",
                body.body.span,
            )
        elif self.check_leaf(body.body, _place(body.body, span)):
            result = self.deduced(body.body, _place(body.body, span))
        self.close(start)
        return (
            None
            if result is None
            else erase(result, self.syms.__contains__, self.vars.__contains__)
        )

    def check_block(self, block: BindingBlock, *, pure: bool) -> Walk:
        inside = isinstance(block, DataflowBlock)
        start = len(self.trail)
        for binding in block.bindings:
            self.dataflow = inside
            span = binding.span or binding.value.span or binding.var.span
            if isinstance(binding.var, DataflowVar) and not inside:
                self.report(
                    "wf-dataflow", f"{binding.var.name} is bound outside of a dataflow block", span
                )
            if isinstance(binding, MatchCast):
                self.check_match_cast(binding, span)
            else:
                yield self.check_binding(binding, span, pure=pure)
        self.dataflow = False
        if inside:
            self.close_dataflow(start)
        return None

    def check_match_cast(self, binding: MatchCast, span: Span | None) -> None:
        if not is_leaf(binding.value):
            self.report("wf-anf", f"match_cast takes a leaf, not {_what(binding.value)}", span)
        elif self.check_leaf(binding.value, span):
            actual = self.deduced(binding.value, span)
            if (
                actual is not None
                and accepts(binding.annotation, actual, None, equal) is Verdict.NO
            ):
                self.report("wf-annotation", f"{actual} can never be {binding.annotation}", span)
        self.define_symbols([binding.annotation])
        self.symbols_of(binding.annotation, span, "the annotation of match_cast")
        self.define(binding.var, span)
        self.agree(binding.var, binding.annotation, span)

    def check_binding(self, binding: VarBinding, span: Span | None, *, pure: bool) -> Walk:
        value = binding.value
        if isinstance(value, Function):
            self.define(binding.var, span)  # it may be recursive
            inside = self.dataflow
            result = yield self.check_function(value)
            self.dataflow = inside
        elif isinstance(value, If):
            result = yield self.check_if(value, span, pure=pure)
            self.define(binding.var, span)
        else:
            result = self.check_value(value, span, pure=pure)
            self.define(binding.var, span)
        self.symbols_of(binding.var.annotation, span, f"the annotation of {binding.var.name}")
        if result is not None:
            self.agree(binding.var, result, span)
        return None

    def check_if(self, value: If, span: Span | None, *, pure: bool) -> Walk:
        if self.dataflow:
            self.report("wf-dataflow", "a dataflow block cannot contain an if", value.span or span)
        self.argument(value.cond, "the condition of a branch", value.span or span)
        then = yield self.check_body(value.then, span, pure=pure)
        otherwise = yield self.check_body(value.otherwise, span, pure=pure)
        return None if then is None or otherwise is None else join(then, otherwise)

    # Values

    def check_value(self, value: Expr, span: Span | None, *, pure: bool) -> Annotation | None:
        """The annotation of a bound value that has no body of its own; None after an error in it."""
        span = value.span or span
        match value:
            case Call():
                good = self.check_call(value, span, pure=pure)
            case TupleGetItem():
                good = self.argument(value.tuple, "the tuple of a field", span)
            case SeqExpr():
                self.report(
                    "wf-anf",
                    "a body is not a value: move its bindings to the enclosing block",
                    span,
                )
                return None
            case _:
                good = (
                    self.check_leaf(value, span)
                    if is_leaf(value)
                    else self.argument(value, "a value", span)
                )
        return self.deduced(value, span) if good else None

    def check_call(self, call: Call, span: Span | None, *, pure: bool) -> bool:
        good = True
        if isinstance(call.op, Expr):
            good = self.argument(call.op, "the callee", span)
        for i, arg in enumerate(call.args):
            good = self.argument(arg, f"argument {i + 1} of a call", span) and good
        for annotation in call.ty_args:
            good = self.symbols_of(annotation, span, "an annotation given at a call") and good
        if good and not is_pure(call, self.mod):
            name = getattr(call.op, "name", "the function")
            if self.dataflow:
                self.report(
                    "wf-dataflow-pure",
                    f"{name} has side effects, so it cannot be called in a dataflow block",
                    span,
                    help="call it outside the block, or with R.call_pure_packed if it has none",
                )
            elif pure:
                self.report(
                    "wf-pure",
                    f"{name} has side effects, so it cannot be called in a pure function",
                    span,
                    help="declare the function @R.function(pure=False)",
                )
        if good and is_program_call(call):
            problems = check_prim_func_call(call, self.mod)
            for problem in problems:
                self.add(problem.located(span))
            good = not problems
        return good

    def argument(self, expr: Expr, what: str, span: Span | None) -> bool:
        """Check a leaf: its variables must be in scope."""
        if is_leaf(expr):
            return self.check_leaf(expr, _place(expr, span))
        self.report(
            "wf-anf",
            f"{what} must be a leaf, not {_what(expr)}",
            expr.span or span,
            help="bind it to a variable first",
        )
        return False

    def check_leaf(self, leaf: Expr, span: Span | None) -> bool:
        match leaf:
            case Var():
                return self.check_use(leaf, span)
            case Tuple(fields=fields):
                return all([self.check_leaf(item, _place(item, span)) for item in fields])
            case ShapeExpr(dims=dims):
                return self.symbols(dims, span, "a shape")
            case PrimValue(value=Dim() as value):
                return self.symbols([value], span, "a scalar")
            case GlobalVar(name=name):
                return self.check_global(name, span)
            case _:
                return True

    def check_use(self, var: Var, span: Span | None) -> bool:
        if var in self.vars:
            return True
        if var in self.defined and isinstance(var, DataflowVar):
            message = f"{var.name} is visible only inside its dataflow block"
            help = f"R.output({var.name}) makes it visible after the block"
        elif var in self.defined:
            message, help = (
                f"{var.name} is not visible here: it is defined in another function or branch",
                None,
            )
        else:
            message, help = f"{var.name} is not defined here", None
        self.report("wf-scope", message, span or var.span, help=help)
        return False

    def check_global(self, name: str, span: Span | None) -> bool:
        function = self.mod.functions.get(name)
        if isinstance(function, Function) and function.attrs.get(DONATED):
            self.report(
                "wf-attribute",
                f"{name} overwrites parameters that are donated to it, and is used inside of the module",
                span,
                help=f"remove the attribute {DONATED}, or call {name} from outside only",
            )
        if function is not None:
            return True
        self.report(
            "wf-global",
            f"the module has no function {name}",
            span,
            help=did_you_mean(name, self.mod, str),
        )
        return False

    # Definitions and annotations

    def define(self, var: Var, span: Span | None) -> None:
        if var in self.defined:
            self.report("wf-single-definition", f"{var.name} is defined twice", span)
        self.defined.add(var)
        if var not in self.vars:
            self.vars.add(var)
            self.trail.append(var)

    def agree(self, var: Var, actual: Annotation, span: Span | None) -> None:
        if accepts(var.annotation, actual, None, equal) is Verdict.NO:
            self.report(
                "wf-annotation",
                f"{var.name} is declared {var.annotation}, but its value is {actual}",
                span,
            )

    def deduced(self, expr: Expr, span: Span | None) -> Annotation | None:
        try:
            return deduce(expr, self.mod)
        except DeduceError as error:
            code = _CODES.get(error.code, error.code)
            self.report(code, error.message, error.span or span, error.notes, error.help)
            return None

    def symbols_of(
        self, annotation: Annotation, span: Span | None, what: str, help: str | None = None
    ) -> bool:
        """Check that the symbols and shape variables in an annotation are in scope. Symbols of a function type are its
        own."""
        match annotation:
            case TensorType(shape=Var() as shape):
                return self.check_use(shape, span)
            case TupleType():
                leaves = annotation.leaf_types
                return all([self.symbols_of(leaf, span, what, help) for leaf in leaves])
            case CallableType(params=params, ret=ret):
                start = len(self.trail)
                self.define_symbols(params or ())
                good = all(
                    [self.symbols_of(item, span, what, help) for item in (*(params or ()), ret)]
                )
                self.close(start)
                return good
            case ObjectType():
                unknown = [each for each in type_params([annotation]) if each not in self.types]
                for name in unknown:
                    self.report(
                        "wf-scope",
                        f"{what} mentions {name}, which is no type parameter of {self.function}",
                        span,
                        help="a type parameter is in the annotation of a parameter, or in the result's",
                    )
                return not unknown
            case _:
                pass
        dims = getattr(annotation, "shape", None) or getattr(annotation, "dims", None)
        value = getattr(annotation, "value", None)
        return self.symbols(dims or ([value] if value is not None else []), span, what, help)

    def symbols(
        self, dims: Iterable[Dim], span: Span | None, what: str, help: str | None = None
    ) -> bool:
        missing = dict.fromkeys(var for dim in dims for var in dim.vars if var not in self.syms)
        for var in missing:
            if (var, span) in self.missing:
                continue  # an annotation usually mentions only variables that its value uses
            self.missing.add((var, span))
            self.report(
                "wf-sym-scope",
                f"the symbol {var} in {what} is not defined here",
                span,
                help=help or "a parameter or an earlier match_cast must define it",
            )
        return not missing


def _place(leaf: Expr, span: Span | None) -> Span | None:
    """The place where a leaf is used. A variable itself knows only its definition."""
    return span if isinstance(leaf, Var) else leaf.span or span


def _what(expr: Expr) -> str:
    """The kind of an expression, for messages."""
    match expr:
        case Call(op=op):
            return f"a call of {getattr(op, 'name', 'a function')}"
        case TupleGetItem():
            return "a field of a tuple"
        case Tuple():
            return "a tuple with a field that is not a leaf"
        case If():
            return "a branch"
        case Function():
            return "a function"
        case Constant() | StringImm() | DataTypeImm() | ExternFunc():
            return "a constant"
        case _:
            return f"a {type(expr).__name__}"
