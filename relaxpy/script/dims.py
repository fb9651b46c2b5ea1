"""Dimensions as text: `"n * 4"`, `"T.max(n, 4) // 2"`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from relaxpy.errors import ScriptError, Span
from relaxpy.ir.dim import Dim, DimLike, dim_op


def ceildiv(a: DimLike, b: DimLike) -> Dim:
    """The quotient rounded up."""
    return -(-Dim.of(a) // Dim.of(b))


DIM_FUNCTIONS: dict[str, Callable[..., Dim]] = {
    "min": lambda a, b: dim_op("min", a, b),
    "max": lambda a, b: dim_op("max", a, b),
    "floordiv": lambda a, b: dim_op("floordiv", a, b),
    "floormod": lambda a, b: dim_op("floormod", a, b),
    # Dimensions are not negative, so that truncation is rounding down.
    "truncdiv": lambda a, b: dim_op("floordiv", a, b),
    "truncmod": lambda a, b: dim_op("floormod", a, b),
    "ceildiv": ceildiv,
    "Select": lambda c, a, b: dim_op("select", c, a, b),
    "if_then_else": lambda c, a, b: dim_op("select", c, a, b),
    "And": lambda a, b: dim_op("and", a, b),
    "Or": lambda a, b: dim_op("or", a, b),
    "Not": lambda a: dim_op("not", a),
    "int64": Dim.of,
    "int32": Dim.of,
}
"""Functions of dimensions in the script, by their name in T."""

DIM_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

DIM_COMPARISONS: dict[type[ast.cmpop], tuple[str, bool]] = {
    ast.Eq: ("eq", False),
    ast.NotEq: ("ne", False),
    ast.Lt: ("lt", False),
    ast.LtE: ("le", False),
    ast.Gt: ("lt", True),
    ast.GtE: ("le", True),
}
"""Comparison → (function of dimensions, operands swapped?)."""


def compare_dims(op: ast.cmpop, left: DimLike, right: DimLike) -> Dim | None:
    """`left op right` as 0 or 1; None for an operator that dimensions do not have."""
    found = DIM_COMPARISONS.get(type(op))
    if found is None:
        return None
    name, swapped = found
    return dim_op(name, right, left) if swapped else dim_op(name, left, right)


def parse_dim(text: str, symbol: Callable[[str], Dim], span: Span | None = None) -> Dim:
    """Parse a dimension; `symbol` returns the variable of a name. Raises `ScriptError` at `span`."""
    if text.isidentifier():
        return symbol(text)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _wrong(text, span) from None
    return _evaluate(tree.body, text, symbol, span)


def _wrong(text: str, span: Span | None) -> ScriptError:
    return ScriptError(
        "bad-annotation",
        f"{text!r} is not a dimension",
        span=span,
        help='a dimension consists of integers, names, +, -, *, //, %, min and max: "n * 4 + 1"',
    )


def _evaluate(node: ast.expr, text: str, symbol: Callable[[str], Dim], span: Span | None) -> Dim:
    def go(inner: ast.expr) -> Dim:
        return _evaluate(inner, text, symbol, span)

    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return Dim.of(value)
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -go(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in DIM_OPERATORS:
            return DIM_OPERATORS[type(op)](go(left), go(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            found = compare_dims(op, go(left), go(right))
            if found is not None:
                return found
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=[]):
            if name in DIM_FUNCTIONS:
                try:
                    return DIM_FUNCTIONS[name](*map(go, args))
                except TypeError:
                    raise _wrong(text, span) from None
    raise _wrong(text, span)
