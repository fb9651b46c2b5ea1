"""Torch's guards on sizes: conditions under which a traced program is the user's.

Torch keeps them as Python text (`(L['x'].size()[0] % 2) == 0`), neither in the graph nor in the ranges. Equalities of
sizes make two symbols one. Everything else that is not true for all sizes is checked when the program runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from traceback import FrameSummary
from typing import Any

from relaxpy.errors import Span, UsageError
from relaxpy.frontend.spans import is_users, line_span
from relaxpy.frontend.torch.comparisons import Comparison
from relaxpy.frontend.torch.sizes import FUNCTIONS, Sizes
from relaxpy.ir import Dim
from relaxpy.ir.dim import dim_op


@dataclass(frozen=True)
class Place:
    """Where torch came upon a condition."""

    condition: Any
    """In sympy's terms, over torch's symbols."""
    file: str
    span: Span | None
    """The line, if it is not torch's own."""

    @property
    def is_inequality(self) -> bool:
        """Does it say that two numbers differ?"""
        return type(self.condition).__name__ == "Unequality"


def places_of_guards(program: Any, comparisons: Sequence[Comparison]) -> Iterator[Place]:
    """The conditions of a program that was traced in this process."""
    import sympy

    env = sizes_of(program)
    if env is None:
        return
    for each in comparisons:
        relation = getattr(sympy, each.relation)
        sides = env.replace(each.left), env.replace(each.right)
        yield Place(relation(*sides, evaluate=False), each.file, line_span(each.file, each.line))
    for guard in env.guards:
        frame = guard.sloc.framework_loc
        if isinstance(frame, FrameSummary):
            own = is_users(frame.filename)
            span = line_span(frame.filename, frame.lineno or 1) if own else None
            yield Place(env.replace(guard.expr), frame.filename, span)


def sizes_of(program: Any) -> Any:
    """What torch knows of the sizes of a program (`ShapeEnv`); None: of a program without tensors."""
    import torch

    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if isinstance(node.meta.get("val"), torch.Tensor) and mode is not None:
            return mode.shape_env
    return None


Inputs = Mapping[str, Any]
"""Text of an input in guards (`L['x']`) → its sizes, or for an integer argument its value."""


def read_guard(text: str, inputs: Inputs) -> Dim | None:
    """The condition of a guard, as a dimension that is 0 or 1. None for a condition on strides, which programs here do
    not depend on. UsageError (`torch-size`) for what is no condition on sizes."""
    tree = ast.parse(text.strip(), mode="eval").body
    if any(isinstance(n, ast.Attribute) and n.attr in _STRIDES for n in ast.walk(tree)):
        return None
    try:
        return _read(tree, inputs)
    except (KeyError, IndexError, TypeError, UsageError):
        raise UsageError(
            "torch-size",
            f"torch took this program to be valid only if {text}, which cannot be checked here",
        ) from None


_STRIDES = ("stride", "storage_offset", "is_contiguous")

_BINARY: dict[type, str] = {
    ast.Add: "Add", ast.Mult: "Mul", ast.FloorDiv: "FloorDiv", ast.Mod: "Mod", ast.Pow: "Pow",
}  # fmt: skip

_COMPARISONS: dict[type, str] = {
    ast.Eq: "Equality", ast.NotEq: "Unequality", ast.Lt: "StrictLessThan",
    ast.LtE: "LessThan", ast.Gt: "StrictGreaterThan", ast.GtE: "GreaterThan",
}  # fmt: skip

_NAMES = {
    "Eq": "Equality", "Ne": "Unequality", "Lt": "StrictLessThan", "Le": "LessThan",
    "Gt": "StrictGreaterThan", "Ge": "GreaterThan", "min": "Min", "max": "Max", "int": "Identity",
    "sym_float": "ToFloat",
}  # fmt: skip
"""Names in guards → classes of sympy, where they differ."""


_ROUNDED = {
    "trunc": "TruncToInt",
    "floor": "FloorToInt",
    "ceil": "CeilToInt",
    "round": "RoundToInt",
}
"""Python's functions from floats to integers → torch's classes."""


def _rounded(name: str, number: ast.AST, inputs: Inputs) -> Dim:
    """A float of sizes that is rounded to an integer, as `Sizes` computes it."""
    from torch.utils._sympy import functions

    sizes = Sizes()
    return sizes.expr(getattr(functions, _ROUNDED[name])(_float(number, inputs, sizes)))


def _float(tree: ast.AST, inputs: Inputs, sizes: Sizes) -> Any:
    """A number that is computed of sizes, in sympy's terms; each size is a symbol, which is defined in `sizes`."""
    import sympy
    from torch.utils._sympy import functions

    match tree:
        case ast.Constant(value=int() | float() as value):
            return sympy.sympify(value)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_float(inner, inputs, sizes)
        case ast.BinOp(
            left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as op, right=right
        ):
            a, b = (_float(side, inputs, sizes) for side in (left, right))
            if isinstance(op, ast.Div):
                kind = (
                    functions.IntTrueDiv
                    if a.is_integer and b.is_integer
                    else functions.FloatTrueDiv
                )
                return kind(a, b)
            return (
                a * b if isinstance(op, ast.Mult) else a - b if isinstance(op, ast.Sub) else a + b
            )
        case ast.Call(func=ast.Attribute(attr="sym_float"), args=[inner]):
            return functions.ToFloat(_float(inner, inputs, sizes))
        case _:
            symbol = sympy.Symbol(f"size{len(sizes.known)}", integer=True, nonnegative=True)
            sizes.define(symbol.name, _read(tree, inputs))
            return symbol


def _read(tree: ast.AST, inputs: Inputs) -> Dim:
    match tree:
        case ast.Constant(value=bool() | int() as value):
            return Dim.of(int(value))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_read(inner, inputs)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return dim_op("not", _read(inner, inputs))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _read(left, inputs) - _read(right, inputs)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)):
            return _read(left, inputs) ** power
        case ast.BinOp(left=left, op=op, right=right):
            return FUNCTIONS[_BINARY[type(op)]](_read(left, inputs), _read(right, inputs))
        case ast.BoolOp(op=op, values=values):
            name = "And" if isinstance(op, ast.And) else "Or"
            return FUNCTIONS[name](*(_read(value, inputs) for value in values))
        case ast.Compare(left=first, ops=ops, comparators=rest):
            sides = [_read(side, inputs) for side in (first, *rest)]
            parts = [
                FUNCTIONS[_COMPARISONS[type(op)]](a, b)
                for op, a, b in zip(ops, sides, sides[1:], strict=False)
            ]
            return FUNCTIONS["And"](*parts)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[number]) if (
            name in _ROUNDED
        ):
            return _rounded(name, number, inputs)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr="sym_float" as name), args=args):
            return FUNCTIONS[_NAMES.get(name, name)](*(_read(arg, inputs) for arg in args))
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=tensor, attr="size" | "shape")),
            slice=ast.Constant(value=int() as axis),
        ):
            return inputs[ast.unparse(tensor)][axis]
        case _:
            found = inputs[ast.unparse(tree)]
            return found if isinstance(found, Dim) else Dim.of(int(found))
