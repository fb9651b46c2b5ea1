"""Parsing of source text to a Python syntax tree, and finding the definition that a decorator belongs to."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from types import CodeType, FrameType

from relaxpy.errors import ScriptError, Source, Span
from relaxpy.ir.nesting import is_too_deep, parse_nested
from relaxpy.script.dialects.older_words import with_todays_keywords
from relaxpy.script.dialects.type_params import NATIVE, blanked, put_back
from relaxpy.script.typed import typed_text, why_lost

Definition = ast.ClassDef | ast.FunctionDef


@lru_cache(maxsize=32)
def parse_python(source: Source) -> ast.Module:
    """The syntax tree of a text. Raises `ScriptError` for invalid Python."""
    try:
        return _tree(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # Python gives no location for a text that it cannot read at all.
        at = source.text.find("\0") if not isinstance(error, UnicodeEncodeError) else error.start
        before = Source(source.text[: max(at, 0)], source.file).lines
        line = getattr(error, "lineno", None) or len(before)
        column = max(0, (getattr(error, "offset", None) or len(before[-1]) + 1) - 1)
        end_line = getattr(error, "end_lineno", None) or line
        end = max(column + 1, (getattr(error, "end_offset", None) or 0) - 1)
        message = getattr(error, "msg", None) or str(error) or "the program is nested too deeply"
        span = Span(source.file, line, column, end_line, end, source.text)
    raise ScriptError("python-syntax", f"not valid Python: {message}", span=span)


def _tree(text: str) -> ast.Module:
    try:
        return with_todays_keywords(ast.parse(text), text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        if not is_too_deep(error):
            if NATIVE or not isinstance(error, SyntaxError):
                raise
            plain, headers = blanked(text)
            if not headers:
                raise
            tree = _tree(plain)
            put_back(tree, headers)
            return tree
    return with_todays_keywords(parse_nested(text), text)


def source_of(code: CodeType, line: int, frame: FrameType, name: str) -> Source:
    """The text of the file, cell or statement that a code is in, with the definition of `name` at `line`. Raises
    `ScriptError` if there is none."""
    file = code.co_filename
    lines = linecache.getlines(file, frame.f_globals)
    text = "".join(lines) or typed_text(code, line, frame)
    if not text:
        raise ScriptError(
            "no-source",
            f"the source of {name} cannot be read: {why_lost(code)}",
            help='put it into a file or a notebook cell, or write the text itself: relaxpy.parse("""…""")',
        )
    return _source(text, file)


@lru_cache(maxsize=32)
def _source(text: str, file: str) -> Source:
    return Source(text, file)


def find_definition(source: Source, name: str, line: int) -> Definition:
    """The class or function `name` that has a decorator, or is itself defined, at `line`."""
    found: Definition | None = None
    for node in ast.walk(parse_python(source)):
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name != name:
            continue
        places = [*node.decorator_list, node]
        if any(p.lineno <= line <= (p.end_lineno or p.lineno) for p in places):
            found = node  # the innermost comes last
        elif found is None and not node.decorator_list:
            found = node  # `I.ir_module(C)` as a call, not as a decorator
    if found is None:
        raise ScriptError(
            "no-source",
            f"the source of {name} is not at line {line} of {source.file}: has the file changed?",
            help="restart Python to load the changed file",
        )
    return found
