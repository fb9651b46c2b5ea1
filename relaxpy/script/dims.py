"""Dimensions as text: `"n * 4"`, `"T.max(n, 4) // 2"`, `"n << 1"`, `"n if n > 4 else 4"`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import partial
from typing import cast

from relaxpy.errors import ScriptError, Span
from relaxpy.ir.dim import (
    BITWISE,
    Atom,
    Dim,
    DimLike,
    Monomial,
    SymVar,
    bitwise,
    dim_op,
    dim_sum,
    product,
)
from relaxpy.ir.python_operator import is_too_large


def ceildiv(a: DimLike, b: DimLike) -> Dim:
    """The quotient rounded up."""
    return -(-Dim.of(a) // Dim.of(b))


def power(base: Dim, exponent: Dim) -> Dim | None:
    """A product of equal factors; None if their number is not known, or negative."""
    times = exponent.value
    if times is None or times < 0 or is_too_large(operator.pow, (base.value or 0, times)):
        return None
    return Dim.of(base**times)


def choose(condition: Dim, then: Dim, otherwise: Dim) -> Dim:
    """`then if condition else otherwise` for a comparison `condition`. Of comparisons it is one. Both are computed, but
    each divides by 1 where it is not chosen."""
    opposite = dim_op("not", condition)
    then, otherwise = _where(condition, then), _where(opposite, otherwise)
    values = (then, otherwise)
    if any(v.is_truth for v in values) and all(v.is_truth or v.value in (0, 1) for v in values):
        return dim_op("or", dim_op("and", condition, then), dim_op("and", opposite, otherwise))
    return dim_op("select", condition, then, otherwise)


def _where(condition: Dim, value: Dim) -> Dim:
    """A dimension with divisors that are 1 unless the condition holds."""

    def atom(found: Atom) -> Dim:
        if isinstance(found, SymVar):
            return found.dim
        args = [_where(condition, arg) for arg in found.args]
        if found.op in ("floordiv", "floormod") and args[1].value is None:
            args[1] = dim_op("select", condition, args[1], 1)
        return dim_op(found.op, *args)

    def term(factors: Monomial, coefficient: int) -> Dim:
        return (
            product(tuple(atom(each) for each, power in factors for _ in range(power)))
            * coefficient
        )

    return dim_sum(term(*each) for each in value.terms)


DIM_FUNCTIONS: dict[str, Callable[..., Dim]] = {
    "min": lambda a, b: dim_op("min", a, b),
    "max": lambda a, b: dim_op("max", a, b),
    "abs": cast("Callable[..., Dim]", abs),
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

DIM_OPERATORS: dict[type[ast.operator], Callable[[Dim, Dim], Dim | None]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: power,
    ast.LShift: partial(bitwise, "<<"),
    ast.RShift: partial(bitwise, ">>"),
    ast.BitAnd: partial(bitwise, "&"),
    ast.BitOr: partial(bitwise, "|"),
    ast.BitXor: partial(bitwise, "^"),
}
"""Operators of dimensions; None where the operands are such that the result is no dimension (`operator_help`)."""


def operator_help(op: ast.operator) -> str:
    """What operators like this one dimensions have."""
    if isinstance(op, ast.Div):
        return "write // to round down; n * 1.0 is a float"
    if isinstance(op, ast.Pow):
        return "n ** k takes a number k, at least 0"
    return BITWISE


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


def _wrong(text: str, span: Span | None, help: str | None = None) -> ScriptError:
    return ScriptError(
        "bad-annotation",
        f"{text!r} is not a dimension",
        span=span,
        help=help
        or 'a dimension consists of integers, names, +, -, *, //, %, min and max: "n * 4 + 1"',
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
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ~go(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in DIM_OPERATORS:
            found = DIM_OPERATORS[type(op)](go(left), go(right))
            if found is None:
                raise _wrong(text, span, operator_help(op))
            return found
        case ast.IfExp(test=test, body=then, orelse=otherwise):
            condition = go(test)
            if not condition.is_truth and condition.value is None:
                raise _wrong(text, span, "compare the condition: n != 0")
            return choose(condition, go(then), go(otherwise))
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
