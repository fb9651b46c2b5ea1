"""Building programs: emit → deduce → bind, in A-normal form.

    bb = BlockBuilder()
    n = SymVar("n")
    x = Var("x", TensorType((n, 4), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(op.exp(x))
            out = bb.emit_output(op.add(y, x))
        bb.emit_func_output(out)
    mod = bb.get()

The counterpart of TVM's `BlockBuilder`. Nested calls are flattened: every argument that is no
leaf is bound to a variable of its own first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from relaxpy.errors import DeduceError, Span, UsageError
from relaxpy.ir.annotation import Annotation, CallableType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    DataflowBlock,
    DataflowVar,
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
    is_leaf,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.visitor import Visitor, free_sym_vars, free_vars
from relaxpy.op.base import as_expr
from relaxpy.op.deduce import deduce
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal


@dataclasses.dataclass(eq=False)
class _Scope:
    """A body under construction: finished blocks, and the bindings of the open block."""

    blocks: list[BindingBlock] = dataclasses.field(default_factory=list)
    bindings: list[Binding] = dataclasses.field(default_factory=list)
    dataflow: bool = False
    function: bool = False
    """Whether this is the whole body of a function; then nothing defined outside is visible in it."""
    params: Sequence[Var] = ()
    """The function's parameters; the caller may still add to them."""
    params_seen: int = 0
    """How many of them are in `seen`."""
    seen: set[Var | SymVar] = dataclasses.field(default_factory=set)
    """The variables and symbols that it has defined so far."""
    bound: dict[int, tuple[Expr, Var]] = dataclasses.field(default_factory=dict)
    """Address of an expression that was emitted → it, kept alive, and its variable."""

    def sees(self, used: Var | SymVar) -> bool:
        """Is this variable or symbol visible here?"""
        if used not in self.seen:
            for param in self.params[self.params_seen :]:
                self.define(param, param.annotation)
            self.params_seen = len(self.params)
        return used in self.seen

    def define(self, var: Var, *annotations: Annotation) -> None:
        """Make `var`, and the symbols of these annotations, visible from now on."""
        self.seen |= {var, *free_sym_vars(annotations)}

    def close_block(self) -> None:
        if self.bindings:
            kind = DataflowBlock if self.dataflow else BindingBlock
            self.blocks.append(kind(tuple(self.bindings)))
            self.seen.difference_update(
                b.var for b in self.bindings if isinstance(b.var, DataflowVar)
            )
        self.bindings = []


class SeqBuilder:
    """A branch under construction; see `BlockBuilder.seq`."""

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self.value: Expr | None = None
        self.finished: SeqExpr | None = None

    def result(self, value: Any) -> None:
        """Set the value of the body."""
        expr = as_expr(value)
        self.value = self._builder.checked(expr) if is_leaf(expr) else self._builder.emit(expr)

    @property
    def seq(self) -> SeqExpr:
        """The finished body."""
        if self.finished is None:
            raise UsageError("builder", "the body is not finished: use `seq` after the with block")
        return self.finished


class BlockBuilder:
    """Builds modules, functions, and bodies; the module docstring has an example."""

    def __init__(self, mod: IRModule | None = None, reserved: Iterable[str] = ()) -> None:
        """`reserved` are names of functions that follow: `add_func` does not use them."""
        self._reserved = frozenset(reserved)
        self._functions: dict[str, BaseFunc] = dict(mod.functions) if mod is not None else {}
        self._mod = mod or IRModule()
        self._scopes: list[_Scope] = []
        self._output: Expr | None = None
        self._names = FreshNames()
        self._snapshot: IRModule | None = None

    # Modules and functions

    def get(self) -> IRModule:
        """The module built so far."""
        return self._current()

    def add_func(self, function: BaseFunc, name: str) -> GlobalVar:
        """Add a function under `name` (or `name1`, … if that is taken); return its global variable."""
        unique = FreshNames((*self._current().functions, *self._reserved)).fresh(name)
        self._set(unique, function)
        return GlobalVar(unique)

    def update_func(self, name: str, function: BaseFunc) -> None:
        """Replace a function."""
        self._set(name, function)

    @contextmanager
    def function(
        self,
        name: str,
        params: Sequence[Var] = (),
        *,
        attrs: Mapping[str, Any] | None = None,
        private: bool = False,
        pure: bool = True,
        ret: Annotation | None = None,
        span: Span | None = None,
    ) -> Iterator[None]:
        """Build a function of the module; its body ends with `emit_func_output`."""
        for param in params:
            if not isinstance(param, Var):
                raise UsageError(
                    "builder",
                    f"the parameters of {name} must be variables, got {param!r}",
                    help='write Var("x", TensorType((n, 4), "float32"))',
                )
        outer_names, self._names = self._names, FreshNames(param.name for param in params)
        outer_output, self._output = self._output, None
        scope = self._open()
        scope.function, scope.params = True, params
        try:
            yield
            self._promise(ret)
        except BaseException:
            self._scopes = self._scopes[: self._scopes.index(scope)]
            raise
        finally:
            self._names = outer_names
        output, self._output = self._output, outer_output
        if output is None:
            raise UsageError(
                "builder",
                f"function {name} has no result",
                help="end it with bb.emit_func_output(value)",
            )
        body = self._close(scope, output)
        given = dict(attrs or {})
        if not private:
            given.setdefault("global_symbol", name)
        result = ret if ret is not None else deduce(body, self._current())
        self._set(name, Function(tuple(params), body, result, pure, given, span=span))

    def emit_func_output(self, output: Any) -> None:
        """Set the result of the function being built."""
        if self._output is not None:
            raise UsageError(
                "builder",
                "the function has a result already",
                help="call bb.emit_func_output once; return several values as a tuple",
            )
        expr = as_expr(output)
        self._output = self.checked(expr) if is_leaf(expr) else self.emit(expr)

    def _promise(self, ret: Annotation | None) -> None:
        """Cast the result to the declared annotation if only the run can tell whether it fits, as the parser does."""
        if ret is None or self._output is None:
            return
        known = deduce(self._output, self._current())
        if known != ret and accepts(ret, known, None, equal) is Verdict.MAYBE:
            self._output = self.match_cast(self._output, ret, "gv")

    # Bodies

    @contextmanager
    def dataflow(self) -> Iterator[None]:
        """Open a dataflow block: variables emitted inside are visible only there, except those of `emit_output`."""
        scope = self._scope()
        if scope.dataflow:
            raise UsageError("builder", "dataflow blocks cannot be nested")
        scope.close_block()
        scope.dataflow = True
        yield
        scope.close_block()
        scope.dataflow = False

    @property
    def in_dataflow(self) -> bool:
        """Is a dataflow block open here?"""
        return self._scope().dataflow

    @contextmanager
    def seq(self, params: Sequence[Var] = ()) -> Iterator[SeqBuilder]:
        """Build a body of its own: a branch, or the body of a local function with parameters `params` (which include
        the function's own variable if it is recursive). Bindings inside go to it. End it with `result(value)`; `.seq`
        is then the body.

            with bb.seq() as then:
                then.result(bb.emit(op.exp(x)))
            with bb.seq() as otherwise:
                otherwise.result(x)
            y = bb.emit_if(cond, then.seq, otherwise.seq)
        """
        scope = self._open()
        scope.params = params
        building = SeqBuilder(self)
        try:
            yield building
            if building.value is None:
                raise UsageError(
                    "builder", "a body has no result", help="end it with result(value)"
                )
            building.finished = self._close(scope, building.value)
        finally:
            if scope in self._scopes:
                self._scopes = self._scopes[: self._scopes.index(scope)]

    def emit(self, value: Any, name: str = "lv", *, span: Span | None = None) -> Var:
        """Bind `value` to a new variable of the deduced annotation; return the variable."""
        given = as_expr(value)
        scope = self._scope()
        var = self._bind(self.normalize(given), name, scope.dataflow, span)
        scope.bound[id(given)] = given, var
        return var

    def emit_output(self, value: Any, name: str = "gv", *, span: Span | None = None) -> Var:
        """Bind `value` to a variable that is visible outside the current dataflow block."""
        if not self._scope().dataflow:
            raise UsageError(
                "builder",
                "emit_output is used outside a dataflow block",
                help="use bb.emit(…), or open a block: with bb.dataflow(): …",
            )
        return self._bind(self.normalize(as_expr(value)), name, False, span)

    def match_cast(
        self, value: Any, annotation: Annotation, name: str = "lv", *, span: Span | None = None
    ) -> Var:
        """Bind `value` with an annotation that is checked at run time."""
        expr = self.normalize(as_expr(value))
        leaf = expr if is_leaf(expr) else self._bind(expr, name, self._scope().dataflow, span)
        self.checked(leaf, span)
        kind = DataflowVar if self._scope().dataflow else Var
        var = kind(self.fresh_name(name), annotation, span=span)
        return self.emit_binding(MatchCast(var, leaf, annotation, span=span))

    def emit_binding(self, binding: Binding) -> Var:
        """Append a finished binding as it is."""
        self._names.add(binding.var.name)
        scope = self._scope()
        scope.bindings.append(binding)
        scope.define(binding.var, *([binding.annotation] if isinstance(binding, MatchCast) else []))
        return binding.var

    def checked(self, expr: Expr, span: Span | None = None) -> Expr:
        """Return `expr` if everything that it uses is defined at this point. Raises `UsageError` otherwise."""
        inner = next((i for i, s in enumerate(reversed(self._scopes)) if s.function), None)
        if inner is None:
            return expr  # a body on its own: its surroundings are unknown
        scopes = self._scopes[len(self._scopes) - 1 - inner :]
        foreign = next((v for v in _uses(expr) if not any(s.sees(v) for s in scopes)), None)
        if foreign is None:
            return expr
        kind = "variable" if isinstance(foreign, Var) else "symbolic variable"
        error = UsageError(
            "builder",
            f"the {kind} {foreign.name} is not defined where it is used",
            span=span or expr.span,
            help="it belongs to another function, or a block that has ended; use bb.emit_output for values of a block"
            if isinstance(foreign, Var)
            else "symbolic variables are defined by annotations of parameters and by bb.match_cast",
        )
        raise error.show(f"{foreign.name} is created here", getattr(foreign, "span", None))

    def emit_if(
        self,
        cond: Any,
        then: SeqExpr,
        otherwise: SeqExpr,
        name: str = "gv",
        span: Span | None = None,
    ) -> Var:
        """Bind the value of an `if` with these branches."""
        leaf = as_expr(cond)
        leaf = leaf if is_leaf(leaf) else self.emit(leaf)
        return self._bind(If(leaf, then, otherwise, span=span), name, False, span)

    def call_te(self, func: Any, *args: Any, name: str | None = None, **kwargs: Any) -> Call:
        """Make a tensor program with `func`, which gets te tensors; return a call of it. `args` are expressions."""
        from relaxpy.tir.programs.te_call import te_program

        annotations = [deduce(as_expr(arg), self._current()) for arg in args]
        program, out_ty, tir_vars = te_program(func, annotations, kwargs)
        gvar = self.add_func(program, name or getattr(func, "__name__", "te_func"))
        from relaxpy.op.call import call_tir

        return call_tir(gvar, args, out_ty, tir_vars or None)

    def normalize(self, expr: Expr) -> Expr:
        """`expr` with leaves as arguments; arguments that are not leaves are emitted before it."""
        match expr:
            case Call():
                args = tuple(self._leaf(arg) for arg in expr.args)
                op = self._leaf(expr.op) if isinstance(expr.op, Expr) else expr.op
                same = op is expr.op and all(a is b for a, b in zip(args, expr.args, strict=True))
                return expr if same else dataclasses.replace(expr, op=op, args=args)
            case Tuple():
                fields = tuple(self._leaf(item) for item in expr.fields)
                same = all(a is b for a, b in zip(fields, expr.fields, strict=True))
                return expr if same else Tuple(fields, span=expr.span)
            case TupleGetItem():
                inner = self._leaf(expr.tuple)
                return (
                    expr if inner is expr.tuple else TupleGetItem(inner, expr.index, span=expr.span)
                )
            case If():
                cond = self._leaf(expr.cond)
                return expr if cond is expr.cond else dataclasses.replace(expr, cond=cond)
            case _:
                return expr

    def _leaf(self, expr: Expr) -> Expr:
        """A leaf for an argument. An expression object that is an argument more than once is computed once: written
        out it may grow exponentially, and a call to Python would be made again."""
        if is_leaf(expr):
            return expr
        scope = self._scope()
        known = scope.bound.get(id(expr))
        if known is not None and scope.sees(known[1]):
            return known[1]
        found = self.normalize(expr)
        if not is_leaf(found):
            found = self._bind(found, "lv", scope.dataflow, expr.span)
            scope.bound[id(expr)] = expr, found
        return found

    def fresh_name(self, hint: str) -> str:
        """`hint`, or `hint1`, `hint2`, … if it is taken in this function."""
        return self._names.fresh(hint)

    def names(self) -> FreshNames:
        """The names that are taken in this function."""
        return self._names.copy()

    def set_names(self, names: FreshNames) -> None:
        """Forget the names taken since `names` was returned."""
        self._names = names.copy()

    def _bind(self, expr: Expr, name: str, inner: bool, span: Span | None) -> Var:
        where = span or expr.span
        self.checked(expr, where)
        try:
            annotation = deduce(expr, self._current())
        except DeduceError as error:
            raise error.located(where) from None
        kind = DataflowVar if inner else Var
        var = kind(self.fresh_name(name), annotation, span=where)
        return self.emit_binding(VarBinding(var, expr, span=where))

    def _current(self) -> IRModule:
        """The module used by deduction; made anew only after a function was added or replaced."""
        if self._snapshot is None:
            self._snapshot = self._mod.with_functions(self._functions)
        return self._snapshot

    def _set(self, name: str, function: BaseFunc) -> None:
        self._functions[name] = function
        self._snapshot = None

    def _scope(self) -> _Scope:
        if not self._scopes:
            raise UsageError("builder", "no function is being built", help="use bb.function(…)")
        return self._scopes[-1]

    def _open(self) -> _Scope:
        scope = _Scope()
        self._scopes.append(scope)
        return scope

    def _close(self, scope: _Scope, body: Expr) -> SeqExpr:
        scope.close_block()
        self._scopes.remove(scope)
        return SeqExpr(tuple(scope.blocks), body)


class _Symbols(Visitor):
    """Collects the symbols of an expression itself, without those of function types and nested bodies, which have their
    own scope."""

    def __init__(self) -> None:
        self.found: dict[SymVar, None] = {}

    def visit_dim(self, dim: Dim) -> None:
        self.found.update(dict.fromkeys(dim.vars))

    def visit_annotation(self, annotation: Annotation) -> None:
        if not isinstance(annotation, CallableType):
            super().visit_annotation(annotation)

    def visit_SeqExpr(self, node: SeqExpr) -> None:
        """Skip a nested body: it was checked when it was built."""


def _uses(expr: Expr) -> Iterator[Var | SymVar]:
    """All variables and symbols that an expression takes from its surroundings."""
    yield from free_vars(expr)
    symbols = _Symbols()
    if not isinstance(expr, Function):
        symbols.visit(expr)
    yield from symbols.found
