"""How deep and how large a program may be: beyond, TVM, which walks programs by recursion in C++, ends the process."""

from __future__ import annotations

import ast

from relaxpy.errors import ScriptError, Source
from relaxpy.ir.python_operator import unreadable

MOST_PARAMS = 1024
DEEPEST_STATEMENT = 90
DEEPEST_EXPRESSION = 500
"""Beyond these TVM, which walks programs by recursion in C++, ends the process."""


def too_deep(node: ast.FunctionDef) -> tuple[str, int, ast.AST] | None:
    """The first node that is nested deeper than TVM can walk: its kind, the limit, the node."""
    todo: list[tuple[ast.AST, int, int]] = [(node, 0, 0)]
    while todo:
        part, statements, expressions = todo.pop()
        if isinstance(part, (ast.For, ast.With, ast.If, ast.While)):
            statements += _loops_of(part)
        elif isinstance(part, ast.expr):
            expressions += len(part.values) - 1 if isinstance(part, ast.BoolOp) else 1
        if statements > DEEPEST_STATEMENT:
            return "loops, blocks and branches", DEEPEST_STATEMENT, part
        if expressions > DEEPEST_EXPRESSION:
            return "expressions", DEEPEST_EXPRESSION, part
        todo += ((child, statements, expressions) for child in ast.iter_child_nodes(part))
    return None


def refuse_deep(node: ast.FunctionDef, source: Source) -> None:
    """Raise `ScriptError` for a program that is nested too deeply, or has numbers and texts that nothing can take."""
    for part in ast.walk(node):
        problem = unreadable(part.value) if isinstance(part, ast.Constant) else None
        if problem is not None:
            raise ScriptError("tir-script", problem, span=source.span(part))
    if (found := too_deep(node)) is not None:
        what, most, place = found
        raise ScriptError(
            "tir-script",
            f"{what} are at most {most} inside of each other",
            span=source.span(place),
            help="bind a part of it to a name: v = …" if what == "expressions" else None,
        )


def _loops_of(node: ast.AST) -> int:
    """How many loops or scopes a statement makes."""
    match node:
        case ast.For(iter=ast.Call(args=args)):
            return max(1, len(args))
        case ast.With(items=items):
            return len(items)
    return 1
