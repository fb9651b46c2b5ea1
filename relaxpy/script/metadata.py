"""The data of a text's constants: `metadata = I.metadata(…)` after the program, or TVM's format."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from relaxpy.errors import ScriptError, Source, Span
from relaxpy.script.constants import StoredConstants, read_beside
from relaxpy.script.dialects.tvm_metadata import read_tvm_metadata

_OURS, _TVMS = "I.metadata", "tvm.ir.load_json"


def is_metadata(node: ast.stmt) -> bool:
    """Is this `metadata = I.metadata(…)`, or TVM's `metadata = tvm.ir.load_json("…")`?"""
    match node:
        case ast.Assign(
            targets=[ast.Name(id="metadata")], value=ast.Call(func=func, args=[_], keywords=[])
        ):
            return ast.unparse(func) in (_OURS, _TVMS)
    return False


def read_metadata(node: ast.stmt, source: Source) -> StoredConstants | dict[str, list[Any]]:
    """The constants of a statement for which `is_metadata` is true: by name, or TVM's nodes by kind. Raises
    `ScriptError`."""
    match node:
        case ast.Assign(value=ast.Call(func=func, args=[given])) if ast.unparse(func) == _OURS:
            return _stored(given, source)
        case ast.Assign(value=ast.Call(args=[ast.Constant(value=str() as text)])):
            return read_tvm_metadata(text)
    raise ScriptError("bad-value", "this is not metadata", span=source.span(node))


def metadata_of(body: Sequence[ast.stmt], source: Source) -> dict[str, Any]:
    """The metadata of a file that Python runs, under its name; empty if there is none. It follows the program, so
    Python has not executed it yet when a decorator is called."""
    found = next((node for node in body if is_metadata(node)), None)
    return {} if found is None else {"metadata": read_metadata(found, source)}


def _stored(given: ast.expr, source: Source) -> StoredConstants:
    match given:
        case ast.Constant(value=str() as name):
            try:
                return read_beside(name, source.file)
            except ScriptError as error:
                raise error.located(source.span(given)) from None
        case ast.Dict(keys=keys, values=values):
            entries: dict[str, str] = {}
            places: dict[str, Span] = {}
            for key, value in zip(keys, values, strict=True):
                match key, value:
                    case ast.Constant(value=str() as name), ast.Constant(value=str() as text):
                        entries[name], places[name] = text, source.span(value)
                    case _:
                        break
            else:
                return StoredConstants(entries, places)
    raise ScriptError(
        "constant-data",
        "I.metadata takes a dict of names and data, or a file name",
        span=source.span(given),
        help="script() generates it; to write data by hand use R.const([…], dtype)",
    )
