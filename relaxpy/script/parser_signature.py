"""Parsing of signatures of `@R.function` definitions: parameters, result, and the symbols that they introduce."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from relaxpy.errors import ErrorBag, ScriptError, Source
from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
    TypeParam,
)
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Var,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import for_each_dim
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.script.dialects.type_params import declared_params
from relaxpy.script.parser_expr import ExprParser
from relaxpy.script.parser_value import quoted_names
from relaxpy.script.scope import (
    Surroundings,
    Symbols,
    scalar_dim,
)
from relaxpy.shape.solve import solve_linear


@dataclass
class Signature:
    """A parsed signature."""

    node: ast.FunctionDef
    name: str
    params: list[Var]
    ret: Annotation | None
    ret_node: ast.expr | None
    pure: bool
    private: bool
    symbols: Symbols
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])
    broken: bool = False
    """Whether the signature itself is wrong, and was reported; the function is then not parsed further."""


class SignatureParser(ExprParser):
    """Parses the line `def f(x: …) -> …`."""

    def __init__(
        self,
        source: Source,
        around: Surroundings,
        bag: ErrorBag,
        functions: Mapping[str, Any],
        mod: IRModule,
        outer: SignatureParser | None = None,
    ) -> None:
        symbols = Symbols(outer.symbols if outer is not None else None, self.scalar_symbol)
        super().__init__(source, around, symbols)
        self.bag = bag
        self.functions = dict(functions)
        self.mod = mod
        self.outer = outer
        if outer is not None:
            self.env = dict(outer.env)
        self.bb = outer.bb if outer is not None else BlockBuilder(mod)
        self.in_dataflow = False
        self.last_return: ast.Return | None = None
        self.in_branch = False
        """Whether this is a branch of an `if`, whose return statements were checked already."""
        self.outputs: dict[str, ast.stmt] = {}
        self.declared: dict[str, tuple[Annotation, ast.expr]] = {}
        self.attrs: dict[str, Any] = {}

    # Signature

    def scalar_symbol(self, name: str) -> Dim | None:
        """The dimension of the scalar parameter with this name, which quoted dimensions may use."""
        value = self.env.get(name)
        if isinstance(value, Var):
            self.check_size(name, value.annotation)
        return scalar_dim(value)

    def check_size(self, name: str, annotation: Annotation) -> None:
        """Require a parameter whose name is used as a dimension to be int64."""
        if isinstance(annotation, PrimType) and annotation.dtype != "int64":
            raise ScriptError(
                "bad-annotation",
                f"dimensions must be int64, but the parameter {name} is {annotation.dtype}",
                help=f'write {name}: R.Prim("int64")',
            )

    def signature(self, node: ast.FunctionDef, options: Mapping[str, Any]) -> Signature:
        """Parse the parameters and result of a definition. Errors are collected."""
        sizes, types = declared_params(node, self.source)
        for symbol in sizes:
            self.symbols.declare(symbol)
        for param in types:
            if self.outer is not None:
                self.fail(
                    "data-type",
                    f"the local function {node.name} has a type parameter {param}",
                    node,
                    "functions of the module have type parameters, which their local functions may use",
                )
            self.env[param] = type_parameter(self, param, node)
        name = str(options.get("name", node.name))
        signature = Signature(
            node,
            name,
            [],
            None,
            node.returns,
            bool(options.get("pure", True)),
            bool(options.get("private", False)),
            self.symbols,
        )
        before = len(self.bag.errors)
        self.refuse_defaults(node)
        outer_env, self.env = self.env, dict(self.env)
        self.declare_quoted(node)
        seen: set[str] = set()
        for arg in [*node.args.posonlyargs, *node.args.args]:
            with self.bag.collect(self.span(arg)):
                if arg.arg in seen:
                    self.fail("duplicate-name", f"two parameters are called {arg.arg}", arg)
                seen.add(arg.arg)
                if arg.arg == "self" and arg.annotation is None:
                    self.fail(
                        "missing-annotation",
                        "functions of a module have no self",
                        arg,
                        "remove it; call other functions of the module as cls.f, with cls = Module",
                    )
                if arg.annotation is None:
                    self.fail(
                        "missing-annotation",
                        f"parameter {arg.arg} has no annotation",
                        arg,
                        f'write {arg.arg}: R.Tensor(("n", 4), "float32"), or {arg.arg}: R.Object for any value',
                    )
                annotation = self.annotation(arg.annotation, "define")
                if annotation == PrimType("int64") and not _says_value(arg.annotation):
                    annotation = PrimType("int64", self.symbols.declare(arg.arg))
                if arg.arg in self.symbols.symbols:  # a dimension of an earlier parameter
                    self.check_size(arg.arg, annotation)
                var = Var(arg.arg, annotation, span=self.span(arg))
                self.env[arg.arg] = var
                signature.params.append(var)
        mark_scalars(param.annotation for param in signature.params)
        broken = len(self.bag.errors) > before
        if not broken:
            with self.bag.collect():
                self.check_defined(signature)
        if node.returns is not None:
            with self.bag.collect(self.span(node.returns)):
                signature.ret = self.annotation(node.returns, "use")
        signature.broken = len(self.bag.errors) > before
        self.env = {**outer_env, **{param.name: param for param in signature.params}}
        return signature

    def refuse_defaults(self, node: ast.FunctionDef) -> None:
        args = node.args
        extras = [arg for arg in (args.vararg, *args.kwonlyargs, args.kwarg) if arg is not None]
        for extra in extras:
            with self.bag.collect():
                self.refuse(
                    "a starred or keyword-only parameter", extra, "write ordinary parameters"
                )
        for default in args.defaults:
            with self.bag.collect():
                self.refuse("a default value", default, "pass the value in every call")

    def declare_quoted(self, node: ast.FunctionDef) -> None:
        """Make the variables of quoted names in parameters, so that an earlier parameter may use those of a later one
        by bare name."""
        params = {arg.arg for arg in node.args.args}
        for name in quoted_names([arg.annotation for arg in node.args.args]):
            if name not in params:
                self.symbols.declare(name)

    def check_defined(self, signature: Signature) -> None:
        """Require every variable of the parameters to be a whole dimension somewhere, or the one unknown of a linear
        dimension."""
        dims: list[Dim] = []
        for param in signature.params:
            for_each_dim_outside_callables(param.annotation, dims)
        outer = self.symbols.outer.known() if self.symbols.outer is not None else set()
        known: set[SymVar] = {dim.symbol for dim in dims if dim.symbol is not None} | outer
        changed = True
        while changed:
            changed = False
            for dim in dims:
                unknown = [var for var in dim.vars if var not in known]
                if len(unknown) == 1 and solve_linear(dim, Dim.of(0), unknown[0]) is not None:
                    known.add(unknown[0])
                    changed = True
        for dim in dims:
            for var in dim.vars:
                if var not in known:
                    span = self.symbols.first_use.get(var) or self.span(signature.node)
                    raise ScriptError(
                        "symbol-undefined",
                        f"the value of {var.name} cannot be determined from the arguments",
                        span=span,
                        help=f'make it a dimension of a parameter, or add a parameter: R.Shape(["{var.name}"]), or '
                        f'R.Prim(value="{var.name}")',
                    )


def mark_scalars(annotations: Iterable[Annotation], new: AbstractSet[SymVar] | None = None) -> None:
    """Mark the symbols (those in `new`, if given) that only scalars define here as signed: they are not sizes."""
    sizes: set[SymVar | None] = set()
    values: set[SymVar | None] = set()
    todo = list(annotations)
    while todo:
        match todo.pop():
            case PrimType(value=Dim() as value):
                values.add(value.symbol)
            case TupleType(fields=fields):
                todo += fields
            case TensorType(shape=tuple() as dims) | ShapeType(dims=tuple() as dims):
                sizes |= {dim.symbol for dim in dims}
            case _:
                pass
    for symbol in values - sizes:
        if symbol is not None and (new is None or symbol in new):
            symbol.signed = True


def type_parameter(scope: ExprParser, name: str, node: ast.AST) -> TypeParam:
    """The type parameter of this name, which hides no namespace of the script."""
    if name in ("R", "T", "I"):
        problem = f"a type parameter {name} hides the namespace {name}"
        scope.fail("bad-value", problem, node, "choose another name: A, B, …")
    return TypeParam(name)


def _says_value(annotation: ast.expr) -> bool:
    """Does `R.Prim(…)` declare an unknown value: `value=None`?"""
    keywords = annotation.keywords if isinstance(annotation, ast.Call) else []
    return any(keyword.arg == "value" for keyword in keywords)


def for_each_dim_outside_callables(annotation: Annotation, found: list[Dim]) -> None:
    """Append the dimensions of an annotation to `found`, except those of function types."""
    if isinstance(annotation, CallableType):
        return
    if isinstance(annotation, TupleType):
        for item in annotation.fields:
            for_each_dim_outside_callables(item, found)
    else:
        for_each_dim(annotation, found.append)
