"""Classification of the values that the parser computes, and the location of arguments in a call."""

from __future__ import annotations

import ast
import inspect
import types
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from relaxpy.errors import RelaxError, Span
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Call,
    Constant,
    DataTypeImm,
    Expr,
    PrimValue,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
)
from relaxpy.op.base import Op
from relaxpy.op.function import operator_of
from relaxpy.script import ir as namespace_i
from relaxpy.script import relax as namespace_r
from relaxpy.script import tir as namespace_t
from relaxpy.script.dims import parse_dim
from relaxpy.script.scope import (
    scalar_dim,
)

NAMESPACES = {namespace_i: "I", namespace_r: "R", namespace_t: "T"}


def is_value(value: Any) -> bool:
    """Is this a runtime value of the program, not one known at parse time?"""
    return (
        isinstance(value, Expr) and scalar_dim(value) is None and not isinstance(value, PrimValue)
    )


def holds_expr(value: Any) -> bool:
    """Is this an expression, or a tuple or list that contains one, at any depth?"""
    if isinstance(value, (tuple, list)):
        return any(map(holds_expr, value))
    return isinstance(value, Expr)


def known_scalar(value: Any) -> Any:
    """The dimension of a scalar variable, if it is known; any other value unchanged."""
    dim = scalar_dim(value)
    return value if dim is None else dim


def namespace_member(base: Any, name: str) -> Any:
    """The member `R.name` of a namespace, excluding names that its file only imports. Raises `AttributeError`."""
    if name.startswith("_"):
        raise AttributeError(name)
    if isinstance(base, types.ModuleType) and name not in base.__all__:
        return base.__getattr__(name)
    return getattr(base, name)


def is_of_script(func: Any) -> bool:
    """Is this a function of the script language? Any text may call those."""
    if operator_of(func) is not None:
        return True
    module = getattr(func, "__module__", None) or type(func).__module__
    if isinstance(func, type) and module == "builtins":
        return True
    return str(module).startswith("relaxpy.script.") or func in (len, abs)


def with_span(value: Any, span: Span) -> Any:
    """A newly made value with its source location."""
    match value:
        case Call() | Tuple() | TupleGetItem() if value.span is None:
            return replace(value, span=span)
        case ShapeExpr() if value.span is None:
            return ShapeExpr(value.dims, span=span)
        case PrimValue() if value.span is None:
            return PrimValue(value.value, value.dtype, span=span)
        case Constant() if value.span is None:
            return Constant.shared(value.data, span)
        case StringImm() if value.span is None:
            return StringImm(value.value, span=span)
        case DataTypeImm() if value.span is None:
            return DataTypeImm(value.dtype, span=span)
        case _:
            return value


def argument_node(node: ast.expr, op: Any, name: str | None) -> ast.expr | None:
    """The argument `name` (or index, for functions) of a call, as an expression of the source; None if there is none.
    `args.2` is the third item of the argument `args`."""
    if name is None:
        return None
    name, _, part = name.partition(".")
    if part:
        whole = argument_node(node, op, name)
        items = whole.elts if isinstance(whole, (ast.Tuple, ast.List)) else []
        return items[int(part)] if int(part) < len(items) else whole
    if isinstance(node, ast.BinOp):
        values: list[ast.expr] = [node.left, node.right]
    elif isinstance(node, ast.Compare):
        values = [node.left, *node.comparators]
    elif isinstance(node, ast.UnaryOp):
        values = [node.operand]
    elif isinstance(node, ast.BoolOp):
        values = list(node.values)
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == name:
                return keyword.value
        values = node.args
    else:
        return None
    if name.isdigit():
        index = int(name)
    else:
        names = _parameters(op)
        if name not in names:
            return None
        index = names.index(name)
    return values[index] if index < len(values) else None


def _parameters(op: Any) -> Sequence[str]:
    """The parameter names of an operator (class or instance) or a function of the script, in order."""
    kind = op if isinstance(op, type) else type(op)
    if issubclass(kind, Op):
        return [spec.name for spec in kind.args] + list(kind.attr_names())
    if isinstance(op, types.FunctionType):
        return list(inspect.signature(op).parameters)
    return getattr(op, "arg_names", ())


def returns(body: Sequence[ast.stmt]) -> Iterator[ast.Return]:
    """The return statements of a body, without those of nested functions."""
    todo: deque[ast.AST] = deque(body)
    while todo:
        node = todo.popleft()
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.expr)):
            todo += ast.iter_child_nodes(node)


def lone_names(nodes: Sequence[ast.expr | None]) -> list[str]:
    """Quoted names that are a whole dimension in annotations, without those in `R.Callable(…)`."""
    return [text for text in _quoted(nodes) if text.isidentifier()]


def quoted_names(nodes: Sequence[ast.expr | None]) -> list[str]:
    """All names in quoted dimensions of annotations, without those in `R.Callable(…)`."""
    found: dict[str, None] = {}

    def use(name: str) -> Dim:
        found[name] = None
        return SymVar(name).dim

    for text in _quoted(nodes):
        with suppress(RelaxError):  # reported when the annotation is parsed
            parse_dim(text, use, None)
    return list(found)


def _quoted(nodes: Sequence[ast.expr | None]) -> list[str]:
    """Quoted dimensions in annotations, without those in `R.Callable(…)`."""
    found: dict[str, None] = {}
    todo: list[ast.AST] = [node for node in nodes if node is not None]
    while todo:
        node = todo.pop(0)
        items: list[ast.expr] = []
        match node:
            case ast.Call(func=ast.Attribute(attr="Callable")):
                continue
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                items = elts
            case ast.Call(keywords=keywords):
                items = [keyword.value for keyword in keywords if keyword.arg == "value"]
        texts = [item.value for item in items if isinstance(item, ast.Constant)]
        found |= {text: None for text in texts if isinstance(text, str)}
        todo += ast.iter_child_nodes(node)
    return list(found)
