"""Limits on the depth and size of a program. Beyond them TVM, which walks programs by recursion in C++, ends the
process."""

from __future__ import annotations

import ast

from relaxpy.errors import ScriptError, Source
from relaxpy.ir.python_operator import unreadable

MOST_PARAMS = 1024
DEEPEST_STATEMENT = 90
DEEPEST_EXPRESSION = 500
"""Limits on nesting. Beyond them TVM, which walks programs by recursion in C++, ends the process."""


def refuse_deep(node: ast.FunctionDef, source: Source) -> None:
    """Raise `ScriptError` for a program that is nested too deeply, or contains numbers or strings that are too
    large."""
    todo: list[tuple[ast.AST, int, int]] = [(node, 0, 0)]
    while todo:  # ast.walk, ast.iter_child_nodes and isinstance would take three times as long
        part, statements, expressions = todo.pop()
        kind = type(part)
        if kind is ast.Name:
            continue
        if kind is ast.Constant:
            problem = unreadable(part.value)  # type: ignore[attr-defined]
            if problem is not None:
                raise ScriptError("tir-script", problem, span=source.span(part))
            continue
        if kind in _SCOPES:
            statements += _loops_of(part)
            if statements > DEEPEST_STATEMENT:
                raise _too_deep("loops, blocks and branches", DEEPEST_STATEMENT, part, source)
        elif kind in _EXPRESSIONS:
            expressions += len(part.values) - 1 if kind is ast.BoolOp else 1  # type: ignore[attr-defined]
            if expressions > DEEPEST_EXPRESSION:
                raise _too_deep("expressions", DEEPEST_EXPRESSION, part, source)
        for field in part._fields:
            value = getattr(part, field, None)
            if type(value) is list:
                todo += [(v, statements, expressions) for v in value if isinstance(v, ast.AST)]
            elif isinstance(value, ast.AST):
                todo.append((value, statements, expressions))


_SCOPES = (ast.For, ast.With, ast.If, ast.While)
_EXPRESSIONS = frozenset(ast.expr.__subclasses__())


def _too_deep(what: str, most: int, place: ast.AST, source: Source) -> ScriptError:
    return ScriptError(
        "tir-script",
        f"{what} can be nested at most {most} deep",
        span=source.span(place),
        help="bind a part of it to a variable: v = …" if what == "expressions" else None,
    )


def _loops_of(node: ast.AST) -> int:
    """The number of loops or scopes that a statement creates."""
    match node:
        case ast.For(iter=ast.Call(args=args)):
            return max(1, len(args))
        case ast.With(items=items):
            return len(items)
    return 1
