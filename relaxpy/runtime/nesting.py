"""Compiles Python code with deeper nesting than its tokenizer allows (100 levels of indentation)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import TypeAlias

from relaxpy.errors import ExecutableError

MAX_LEVELS = 80
"""The levels of indentation that are parsed in one piece."""

Arm: TypeAlias = "tuple[int, int]"
"""The lines first…last + 1 (from 0) of a branch. The first is a lone `pass`."""


def compile_nested(lines: Sequence[str], arms: Sequence[Arm], file: str) -> CodeType:
    """Compiles source whose `arms` are parsed separately, inner ones first, and then inserted at their places.

    No piece may be nested deeper than Python allows. Line numbers are kept.
    """
    if not arms:
        return compile("\n".join(lines) + "\n", file, "exec")
    rest = list(lines)
    parsed: dict[int, list[ast.stmt]] = {}
    for start, end in arms:
        branch = ast.parse("\n".join(["if 1:", *rest[start:end]]))
        ast.increment_lineno(branch, start - 1)
        _put_back(branch, parsed)
        assert isinstance(branch.body[0], ast.If)
        parsed[start + 1] = branch.body[0].body
        rest[start + 1 : end] = [""] * (end - start - 1)
    tree = ast.parse("\n".join(rest))
    _put_back(tree, parsed)
    return compile(tree, file, "exec")


@contextmanager
def nesting_checked(name: str) -> Iterator[None]:
    """Raises `ExecutableError` if Python's stack is too small for the nested branches of function `name`."""
    try:
        yield
    except RecursionError:
        pass
    else:
        return
    raise ExecutableError(
        "nesting",
        f"the branches of {name} are nested too deeply for Python's stack",
        help="move inner branches to a separate function, or raise sys.setrecursionlimit",
    )


def _put_back(tree: ast.Module, parsed: dict[int, list[ast.stmt]]) -> None:
    """Replaces the lone `pass` of each branch that was parsed before. `parsed`: line of the `pass` → branch."""
    if not parsed:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            node.body = parsed.pop(node.body[0].lineno, node.body)
            if node.orelse:
                node.orelse = parsed.pop(node.orelse[0].lineno, node.orelse)
