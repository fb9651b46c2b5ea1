"""Traversal and rewriting of programs. Both dispatch on the class of a node (`visit_Call`), and otherwise traverse its
fields.

A `Rewriter` returns the same object where nothing changed, so a pass that changed nothing is detected at no cost.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    DataType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, DimLike, SymVar
from relaxpy.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    MatchCast,
    Node,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.op import Operator
from relaxpy.ir.recursion import deep_recursion

N = TypeVar("N", bound=Node)
A = TypeVar("A", bound=Annotation)

_fields: dict[type, tuple[str, ...]] = {}


def child_fields(kind: type) -> tuple[str, ...]:
    """Names of the fields of a node class that can hold nodes, dimensions or annotations."""
    found = _fields.get(kind)
    if found is None:
        skip = {"span", "name", "attrs", "pure", "data", "dtype", "index", "extent"}
        found = tuple(f.name for f in dataclasses.fields(kind) if f.name not in skip)
        _fields[kind] = found
    return found


class Visitor:
    """Visits every node once, in the order of evaluation. Define `visit_<Class>`; call `self.generic(node)` for the
    children. Annotations and dimensions are passed to `visit_annotation` and `visit_dim`."""

    _methods: ClassVar[dict[type, Callable[[Any, Any], None]]] = {}
    """The visiting method for each class of values, cached: most passes traverse whole programs."""
    _sees_dims: ClassVar[bool] = False
    """Whether this class overrides `visit_dim`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._methods = {}
        cls._sees_dims = cls.visit_dim is not Visitor.visit_dim

    def visit(self, node: object) -> None:
        """Visit a node, or any other value that a node's field can have."""
        kind = type(node)
        method = self._methods.get(kind)
        if method is None:
            method = self._methods[kind] = self._method(kind)
        method(self, node)

    @classmethod
    def _method(cls, kind: type) -> Callable[[Any, Any], None]:
        if issubclass(kind, Node):
            default = cls.generic if child_fields(kind) else _visit_nothing
            return getattr(cls, "visit_" + kind.__name__, default)
        if issubclass(kind, tuple):
            return _visit_items
        if issubclass(kind, Annotation):
            return cls.visit_annotation
        return cls.visit_dim if issubclass(kind, Dim) else _visit_nothing

    def generic(self, node: object) -> None:
        for name in child_fields(type(node)):
            self.visit(getattr(node, name))

    def visit_Call(self, node: Call) -> None:
        """The same as `generic`, written out for speed: most nodes are calls."""
        if isinstance(node.op, Expr):
            self.visit(node.op)
        for arg in node.args:
            self.visit(arg)
        for annotation in node.ty_args:
            self.visit_annotation(annotation)

    def visit_Tuple(self, node: Tuple) -> None:
        for item in node.fields:
            self.visit(item)

    def visit_VarBinding(self, node: VarBinding) -> None:
        self.visit(node.value)
        self.visit(node.var)

    def visit_MatchCast(self, node: MatchCast) -> None:
        self.visit(node.value)
        self.visit_annotation(node.annotation)
        self.visit(node.var)

    def visit_Var(self, node: Var) -> None:
        """Visit a use or a definition. Annotations of variables are not visited (they repeat at every use)."""

    visit_DataflowVar = visit_Var

    def visit_annotation(self, annotation: Annotation) -> None:
        if self._sees_dims:
            for_each_dim(annotation, self.visit_dim)
        if isinstance(annotation, TensorType) and isinstance(annotation.shape, Var):
            self.visit(annotation.shape)

    def visit_dim(self, dim: Dim) -> None:
        pass


def _visit_items(visitor: Visitor, values: tuple[Any, ...]) -> None:
    for value in values:
        visitor.visit(value)


def _visit_nothing(_visitor: Visitor, _value: object) -> None:
    """Ignore numbers, texts and operators."""


class Rewriter:
    """Rebuilds changed nodes and shares unchanged ones. Define `rewrite_<Class>` returning a node.

    Definitions of variables go through `define`, which records the new variable; uses are replaced by it. So a rewriter
    that changes an annotation at its definition changes it at every use.
    """

    _methods: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {}
    """The rewriting method for each class of values, cached."""
    _changes_dims: ClassVar[bool] = False
    """Whether this class does more with dimensions than substituting symbols."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._methods = {}
        cls._changes_dims = cls.rewrite_dim is not Rewriter.rewrite_dim

    def __init__(self) -> None:
        self.vars: dict[Var, Any] = {}
        self.syms: dict[SymVar, DimLike] = {}

    def rewrite(self, node: object) -> Any:
        """The rewritten node, or any other value that a node's field can have."""
        kind = type(node)
        method = self._methods.get(kind)
        if method is None:
            method = self._methods[kind] = self._method(kind)
        return method(self, node)

    @classmethod
    def _method(cls, kind: type) -> Callable[[Any, Any], Any]:
        if issubclass(kind, Node):
            default = cls.generic if child_fields(kind) else _unchanged
            return getattr(cls, "rewrite_" + kind.__name__, default)
        if issubclass(kind, tuple):
            return _rewrite_items
        if issubclass(kind, Annotation):
            return cls.rewrite_annotation
        return cls.rewrite_dim if issubclass(kind, Dim) else _unchanged

    def generic(self, node: N) -> N:
        changed: dict[str, Any] = {}
        for name in child_fields(type(node)):
            old = getattr(node, name)
            new = self.rewrite(old)
            if new is not old:
                changed[name] = new
        return rebuild(node, changed) if changed else node

    def rewrite_Var(self, node: Var) -> Any:
        return self.vars.get(node, node)

    rewrite_DataflowVar = rewrite_Var

    def rewrite_Call(self, node: Call) -> Any:
        """The same as `generic`, written out for speed: most nodes are calls."""
        op = self.rewrite(node.op) if isinstance(node.op, Expr) else node.op
        args, ty_args = _rewrite_items(self, node.args), _rewrite_items(self, node.ty_args)
        if op is node.op and args is node.args and ty_args is node.ty_args:
            return node
        return rebuild(node, {"op": op, "args": args, "ty_args": ty_args})

    def define(self, var: Var, annotation: Annotation | None = None) -> Var:
        """The new variable for a definition: another one if its annotation changes, used in place of `var` from then
        on."""
        new = annotation or self.rewrite_annotation(var.annotation)
        if new is var.annotation or new == var.annotation:
            self.vars.pop(var, None)
            return var
        fresh = type(var)(var.name, new, span=var.span)
        self.vars[var] = fresh
        return fresh

    def rewrite_VarBinding(self, node: VarBinding) -> Any:
        if isinstance(node.value, Function):  # it may be recursive
            var, value = self.define(node.var), self.rewrite(node.value)
        else:
            value = self.rewrite(node.value)
            var = self.define(node.var)
        return (
            node
            if value is node.value and var is node.var
            else VarBinding(var, value, span=node.span)
        )

    def rewrite_MatchCast(self, node: MatchCast) -> Any:
        value = self.rewrite(node.value)
        annotation = self.rewrite_annotation(node.annotation)
        var = self.define(node.var)
        if value is node.value and var is node.var and annotation is node.annotation:
            return node
        return MatchCast(var, value, annotation, span=node.span)

    def rewrite_Function(self, node: Function) -> Function:
        params = tuple(self.define(param) for param in node.params)
        if all(a is b for a, b in zip(params, node.params, strict=True)):
            params = node.params
        body = self.rewrite(node.body)
        ret = self.rewrite_annotation(node.ret)
        if params is node.params and body is node.body and ret is node.ret:
            return node
        return dataclasses.replace(node, params=params, body=body, ret=ret)

    def rewrite_annotation(self, annotation: A) -> A:
        if (
            isinstance(annotation, TensorType)
            and not (self._changes_dims or self.syms)
            and not isinstance(annotation.shape, Var)
        ):
            return annotation  # the common case for most rewriters
        return map_annotation(annotation, self.rewrite_dim, self.rewrite)

    def rewrite_dim(self, dim: Dim) -> Dim:
        return dim.substitute(self.syms) if self.syms else dim


def _rewrite_items(rewriter: Rewriter, values: tuple[Any, ...]) -> tuple[Any, ...]:
    new = tuple(map(rewriter.rewrite, values))
    return values if all(map(operator.is_, new, values)) else new


def _unchanged(_rewriter: Rewriter, value: Any) -> Any:
    """Return numbers, texts and operators unchanged."""
    return value


def rebuild(node: N, changes: dict[str, Any]) -> N:
    """`dataclasses.replace` for nodes, including those with their own constructor."""
    if isinstance(node, ShapeExpr):
        return ShapeExpr(changes["dims"], span=node.span)  # type: ignore[return-value]
    if isinstance(node, PrimValue):
        return PrimValue(changes["value"], node.dtype, span=node.span)  # type: ignore[return-value]
    if isinstance(node, Constant):
        return node
    new = dataclasses.replace(node, **changes)
    if isinstance(new, Call) and isinstance(new.op, Operator):
        return new.op.normal(new)  # type: ignore[return-value]
    return new


def for_each_dim(annotation: Annotation, visit: Callable[[Dim], None]) -> None:
    """Call `visit` for every dimension in an annotation, in order; once for those of equal parts of a tuple."""
    match annotation:
        case TensorType(shape=tuple() as dims) | ShapeType(dims=tuple() as dims):
            for dim in dims:
                visit(dim)
        case PrimType(value=Dim() as value):
            visit(value)
        case TupleType():
            for leaf in annotation.leaf_types:
                for_each_dim(leaf, visit)
        case CallableType(params=params, ret=ret):
            for item in params or ():
                for_each_dim(item, visit)
            for_each_dim(ret, visit)
        case DataType(args=args):
            for item in args:
                for_each_dim(item, visit)
        case _:
            pass


def map_annotation(
    annotation: Any, dim: Callable[[Dim], Dim], var: Callable[[Var], Any] = lambda v: v
) -> Any:
    """The annotation with every dimension mapped by `dim`, and a shape variable by `var`; the same object if nothing
    changes."""
    match annotation:
        case TensorType(shape=tuple() as dims, dtype=dtype, vdevice=vdevice):
            new = tuple(map(dim, dims))
            return annotation if new == dims else TensorType(new, dtype, vdevice=vdevice)
        case TensorType(shape=Var() as shape, dtype=dtype, ndim=ndim, vdevice=vdevice):
            changed = var(shape)
            if changed is shape:
                return annotation
            if isinstance(changed, ShapeExpr):
                return TensorType(changed.dims, dtype, vdevice=vdevice)
            return TensorType(changed, dtype, ndim, vdevice)
        case ShapeType(dims=tuple() as dims):
            new = tuple(map(dim, dims))
            return annotation if new == dims else ShapeType(new)
        case PrimType(dtype=dtype, value=Dim() as value):
            changed = dim(value)
            return annotation if changed == value else PrimType(dtype, changed)
        case TupleType():
            new = {leaf: map_annotation(leaf, dim, var) for leaf in annotation.leaf_types}
            return map_leaves(annotation, new)
        case CallableType(params=params, ret=ret, pure=pure):
            new = None if params is None else tuple(map_annotation(p, dim, var) for p in params)
            changed = map_annotation(ret, dim, var)
            return (
                annotation if (new, changed) == (params, ret) else CallableType(new, changed, pure)
            )
        case DataType(name=name, args=args):
            new = tuple(map_annotation(item, dim, var) for item in args)
            return annotation if new == args else DataType(name, new)
        case _:
            return annotation


def map_leaves(annotation: Any, new: Mapping[Annotation, Annotation]) -> Any:
    """The annotation with what tuples contain (`TupleType.leaf_types`) replaced; the same object if nothing changes."""
    if not isinstance(annotation, TupleType):
        return new[annotation]
    if all(new[leaf] is leaf for leaf in annotation.leaf_types):
        return annotation
    return TupleType(map_leaves(item, new) for item in annotation.fields)


class UsedVars(Visitor):
    """`used_vars` for many expressions. What a branch or a function uses is cached while that node is alive, so that
    nested ones are traversed once."""

    _bodies: ClassVar[WeakKeyDictionary[SeqExpr, tuple[Var, ...]]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._found: dict[Var, None] = {}

    def __call__(self, expr: Expr) -> tuple[Var, ...]:
        if isinstance(expr, Var):
            return (expr,)
        self._found = {}
        if isinstance(expr, (SeqExpr, If, Function)):
            with deep_recursion():
                self.visit(expr)
        else:
            self.visit(expr)  # flat
        return tuple(self._found)

    def visit_Var(self, node: Var) -> None:
        self._found[node] = None

    visit_DataflowVar = visit_Var

    def visit_SeqExpr(self, node: SeqExpr) -> None:
        found = self._bodies.get(node)
        if found is None:
            outer, self._found = self._found, {}
            self.generic(node)
            found = self._bodies[node] = tuple(self._found)
            self._found = outer
        self._found.update(dict.fromkeys(found))


def used_vars(expr: Expr) -> tuple[Var, ...]:
    """All variables in `expr`, including those that it defines, in order of first use."""
    return UsedVars()(expr)


class _FreeVars(Visitor):
    _functions: ClassVar[WeakKeyDictionary[Function, tuple[Var, ...]]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self.bound: set[Var] = set()
        self.free: dict[Var, None] = {}

    def visit_Var(self, node: Var) -> None:
        if node not in self.bound:
            self.free[node] = None

    visit_DataflowVar = visit_Var

    def visit_VarBinding(self, node: VarBinding) -> None:
        if isinstance(node.value, Function):
            self.bound.add(node.var)  # a local function may be recursive
        self.visit(node.value)
        self.bound.add(node.var)

    def visit_MatchCast(self, node: MatchCast) -> None:
        self.visit(node.value)
        self.visit_annotation(node.annotation)
        self.bound.add(node.var)

    def visit_Function(self, node: Function) -> None:
        found = self._functions.get(node)
        if found is None:
            outer = self.bound, self.free
            self.bound, self.free = set(node.params), {}
            self.visit(node.body)
            found = self._functions[node] = tuple(self.free)
            self.bound, self.free = outer
        for var in found:
            self.visit_Var(var)


def free_vars(expr: Expr) -> tuple[Var, ...]:
    """Variables used in `expr` and not defined in it, in order of first use."""
    visitor = _FreeVars()
    with deep_recursion():
        visitor.visit(expr)
    return tuple(visitor.free)


def free_sym_vars(annotations: Iterable[Annotation]) -> tuple[SymVar, ...]:
    """The symbolic variables that annotations mention, in order of first use."""
    found: dict[SymVar, None] = {}
    for annotation in annotations:
        for_each_dim(annotation, lambda dim: found.update(dict.fromkeys(dim.vars)))
    return tuple(found)


def symbols_of_local_functions(function: Function) -> frozenset[SymVar]:
    """The symbols in the local functions of a function."""
    visitor = _LocalFunctions()
    visitor.visit(function.body)
    return frozenset(visitor.found)


class _LocalFunctions(Visitor):
    def __init__(self) -> None:
        self.found: set[SymVar] = set()

    def visit_Function(self, node: Function) -> None:
        self.found.update(used_symbols(node))


__all__ = [
    "Rewriter",
    "UsedVars",
    "Visitor",
    "child_fields",
    "for_each_dim",
    "free_sym_vars",
    "free_vars",
    "map_annotation",
    "map_leaves",
    "rebuild",
    "used_vars",
]


class _UsedSymbols(Visitor):
    def __init__(self) -> None:
        self.found: dict[SymVar, None] = {}
        self._vars: set[Var] = set()

    def visit_Var(self, node: Var) -> None:
        if node not in self._vars:
            self._vars.add(node)
            self.visit_annotation(node.annotation)

    visit_DataflowVar = visit_Var

    def visit_dim(self, dim: Dim) -> None:
        self.found.update(dict.fromkeys(dim.vars))


def used_symbols(*nodes: Node) -> list[SymVar]:
    """All symbolic variables in nodes, including those of variables' annotations, in order of first use."""
    visitor = _UsedSymbols()
    with deep_recursion():
        for node in nodes:
            visitor.visit(node)
    return list(visitor.found)
