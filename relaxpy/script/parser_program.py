"""Parsing of tensor programs: values of the surrounding Python that they use, macro expansion, and then TVM's
parser."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relaxpy.errors import Source
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.module import TensorProgram
from relaxpy.script import ir as namespace_i
from relaxpy.script import relax as namespace_r
from relaxpy.script import tir as namespace_t
from relaxpy.script.dialects.type_params import declared_symbols
from relaxpy.script.macro import Macro, expand_macros
from relaxpy.script.scope import Surroundings


@dataclass(frozen=True, slots=True)
class _Known:
    """A parsed definition, which is valid wherever its names have no values around it."""

    program: TensorProgram
    names: Sequence[str]


MOST_KEPT = 2048
"""Maximum number of cached definitions."""

_KNOWN: dict[str, _Known] = {}
"""Cached definitions by their text. Printed programs are parsed again, and a pass leaves most of a module unchanged."""


def read_program(
    node: ast.FunctionDef, source: Source, around: Surroundings, env: Mapping[str, Any]
) -> TensorProgram:
    """Parse a `@T.prim_func` definition to a tensor program; this loads the compiler. `env` and `around` give the
    values of names that the definition does not define."""
    text = definition_text(node, source)
    known = _KNOWN.get(text)
    if known is not None and not _values_of(known.names, around, env):
        return replace(known.program, span=source.span(node))  # type: ignore[type-var]
    from relaxpy.tir.parse import parse_prim_func, refuse_deep

    refuse_deep(node, source)
    names = _names(node)
    values = _values_of(names, around, env)
    whole, values = expand_macros(node, source, values, namespace_t)
    symbols = declared_symbols(whole, source)
    program: TensorProgram = parse_prim_func(whole, source.text, source.file, values, symbols)
    if whole is node and not values and not symbols:
        if len(_KNOWN) >= MOST_KEPT:
            _KNOWN.clear()
        _KNOWN[text] = _Known(program, names)
    return program


def definition_text(node: ast.FunctionDef, source: Source) -> str:
    """The lines of a definition, decorators included. They are dedented, unless a line may be inside a string or
    continue another; in these cases the indentation could matter."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = source.lines[first - 1 : node.end_lineno]
    text = "\n".join(lines)
    margin = " " * node.col_offset
    plain = '"""' not in text and "'''" not in text and "\\\n" not in text
    if not margin or not plain or not all(line.startswith(margin) or not line for line in lines):
        return f"{node.col_offset}:{text}"
    return "0:" + "\n".join(line[len(margin) :] for line in lines)


def _names(node: ast.AST) -> list[str]:
    return list(dict.fromkeys(c.id for c in ast.walk(node) if isinstance(c, ast.Name)))


def _values_of(used: Sequence[str], around: Surroundings, env: Mapping[str, Any]) -> dict[str, Any]:
    """The surrounding values that a definition uses, without the script's own namespaces."""
    found: dict[str, Any] = {}
    names = list(used)
    for name in names:
        value = env.get(name, around.values.get(name))
        if value is None or any(
            value is known for known in (namespace_i, namespace_r, namespace_t)
        ):
            continue
        if isinstance(value, Dim) and value.symbol is not None and not value.symbol.name:
            value = SymVar(name).dim
        if isinstance(value, Macro) and not value.hygienic and name not in found:
            names += [c.id for c in ast.walk(value.node) if isinstance(c, ast.Name)]
        found[name] = value
    return found
