"""`def main[n, m](x: R.Tensor((n, m)))`: symbolic variables declared in PEP 695 syntax, which TVM prints on Python 3.12
and later. Earlier Pythons cannot parse it. For them the brackets are blanked out, so that every source location stays
right, and their contents are put back into the syntax tree."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.errors import ScriptError, Source

NATIVE = sys.version_info >= (3, 12)
"""Whether Python's own parser supports the syntax."""


SIZES, TYPES = ("int", "Dim"), ("Type",)
"""The kinds of parameters in brackets, `def f[A: Type, n: Dim](…)`: sizes, which also need none, and types."""
KINDS = [[kind] for kind in SIZES + TYPES]


def declared_symbols(node: ast.FunctionDef, source: Source) -> list[str]:
    """Names of sizes that a definition of a tensor program declares in brackets. Raises `ScriptError` for anything
    else."""
    symbols, types = declared_params(node, source)
    for name in types:
        raise ScriptError(
            "unsupported-syntax",
            f"a tensor program has no type parameter {name}",
            span=source.span(node),
            help="declare sizes: @T.prim_func def main[n, m](…)",
        )
    return symbols


def declared_params(node: ast.FunctionDef, source: Source) -> tuple[list[str], list[str]]:
    """Names of sizes and of types that a definition declares in brackets. Raises `ScriptError` for anything else."""
    symbols, types = list[str](), list[str]()
    for param in getattr(node, "type_params", ()):
        bound = getattr(param, "bound", None)
        kind = bound.id if isinstance(bound, ast.Name) else SIZES[0] if bound is None else ""
        if (
            type(param).__name__ != "TypeVar"
            or getattr(param, "default_value", None) is not None
            or kind not in SIZES + TYPES
        ):
            raise ScriptError(
                "unsupported-syntax",
                "this type parameter is not part of the language",
                span=source.span(param),
                help="type parameters are sizes and types: def main[n, m: Dim, A: Type](…)",
            )
        (types if kind in TYPES else symbols).append(str(param.name))
    return symbols, types


class TypeVar(ast.AST):
    """The parts of Python 3.12's `ast.TypeVar` that are needed here."""

    name: str
    bound: ast.expr | None
    _fields = ("name", "bound")
    _attributes = ("lineno", "col_offset", "end_lineno", "end_col_offset")


@dataclass(frozen=True)
class Header:
    """Type parameters that were blanked out: those of the function `name`, defined at `line`."""

    line: int
    name: str
    params: tuple[TypeVar, ...]


def blanked(text: str) -> tuple[str, list[Header]]:
    """A text with its type parameters replaced by spaces, and these parameters. Brackets with anything but names are
    kept."""
    headers: list[Header] = []
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return text, []
    lines = text.splitlines(keepends=True)
    for i, token in enumerate(tokens):
        if token.string != "[" or i < 2 or tokens[i - 2].string != "def":
            continue
        end = next((j for j in range(i, len(tokens)) if tokens[j].string == "]"), None)
        params = _params(tokens[i + 1 : end]) if end is not None else ()
        if end is None or not params or tokens[end].end[0] != token.start[0]:
            continue
        row = token.start[0] - 1
        line, first, last = lines[row], token.start[1], tokens[end].end[1]
        blank = " " * len(line[first:last].encode())  # locations in a tree count bytes
        lines[row] = line[:first] + blank + line[last:]
        headers.append(Header(row + 1, tokens[i - 1].string, params))
    return "".join(lines), headers


def _params(tokens: Sequence[tokenize.TokenInfo]) -> tuple[TypeVar, ...]:
    """`n, m: int` as nodes; empty for any other contents."""
    found: list[TypeVar] = []
    words = [token.string for token in tokens]
    at = 0
    while at < len(words):
        bounded = words[at + 1 : at + 2] == [":"] and words[at + 2 : at + 3] in KINDS
        after = at + (3 if bounded else 1)
        if not words[at].isidentifier() or words[after : after + 1] not in ([","], []):
            return ()
        token = tokens[at]
        line, start = token.start
        before = len(token.line[:start].encode())
        place = {"lineno": line, "col_offset": before, "end_lineno": line}
        place["end_col_offset"] = before + len(token.string.encode())
        bound = ast.Name(words[at + 2], ast.Load()) if bounded else None
        param = TypeVar(**place)
        param.name, param.bound = token.string, bound
        found.append(param)
        at = after + 1
    return tuple(found)


def put_back(tree: ast.Module, headers: Sequence[Header]) -> None:
    """Restore the type parameters of the definitions in a tree."""
    params = {(header.line, header.name): header.params for header in headers}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (node.lineno, node.name) in params:
            node.type_params = list(params[node.lineno, node.name])  # type: ignore[attr-defined]
