"""Print tensor programs as text: a `@T.prim_func` definition that parses back to an equal program.

TVM prints the body. We remove its header (imports, `n = TypeVar("n")`), quote the dimensions in the signature, and
write int64 literals bare, because our parser reads extents and indices as int64. Bare literals do not always parse back
the same (an int64 value is not an index), so the short text is parsed and compared; if it differs, the explicit text is
used.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from itertools import chain
from typing import Any

from relaxpy.errors import RelaxError
from relaxpy.ir.accessors import expect
from relaxpy.ir.nesting import parse_any_depth
from relaxpy.tir.tree.prepare import LAYOUT
from relaxpy.tir.tvm import tvm, tvm_ffi

_BARE = ("int64", "int32", "int8", "int16")
"""The dtype of literals that are printed bare, in the order tried. The last is never that of an index, for which a bare
literal would be int64."""


_BYTES = re.compile(r"(?:\\x[89A-Fa-f][0-9A-Fa-f])+")
"""Non-ASCII characters in strings, as TVM prints them: byte by byte."""


def _characters(found: re.Match[str]) -> str:
    encoded = bytes.fromhex(found[0].replace("\\x", ""))
    try:
        return repr(encoded.decode())[1:-1]
    except UnicodeDecodeError:
        return found[0]


@lru_cache(maxsize=2048)
def print_prim_func(func: Any, name: str) -> str:
    """Print TVM's PrimFunc as the definition of `name`, without header lines or indentation."""
    func = func.without_attr("global_symbol")
    texts = (_definition(func, name, bare) for bare in _BARE)
    return next((text for text in texts if _parses_back(text, func)), "") or _definition(
        func, name, _BARE[-1]
    )


def full_text(func: Any) -> str:
    """The complete text of a program without its name and source locations: programs with equal text are equal. Not for
    reading or parsing."""
    return func.without_attr("global_symbol").script(int_dtype=_BARE[-1], show_meta=True)


def listing(func: Any, name: str) -> str:
    """The definition of `name` for display: all integers bare, whether or not they parse back the same."""
    return _definition(func.without_attr("global_symbol"), name, _BARE[0])


def _definition(func: Any, name: str, int_dtype: str) -> str:
    func = func.with_attr("global_symbol", name)
    text, strings = func.script(int_dtype=int_dtype), ()
    if _ENTRY.search(text) is not None:
        text, strings = _with_table(func.script(int_dtype=int_dtype, show_meta=True))
    text = _BYTES.sub(_characters, text)
    text = _ENTRY.sub(lambda found: repr(strings[int(found[1])]), text)
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("@T.prim_func"))
    kept = [line for line in lines[start + 1 :] if line.strip() != '# with T.sblock("root"):']
    body = "\n".join(["@T.prim_func", *kept]).rstrip() + "\n"
    return _quote_dimensions(_TYPE_PARAMS.sub(r"\1(", body))


_ENTRY = re.compile(r'metadata\["ffi\.String"\]\[(\d+)\]')
"""A string of several lines, as TVM prints it: an entry of a table. In other strings, quotes are escaped."""


def _with_table(text: str) -> tuple[str, tuple[str, ...]]:
    """A program's text without the table that precedes it, `metadata = tvm.ir.load_json(…)`, and the strings of that
    table."""
    table, _, program = text.partition('""")\n')
    literal: str = ast.literal_eval(table.partition("(")[2] + '"""')
    entries = tvm.ir.load_json(literal.encode("latin-1").decode())
    return program, tuple(map(str, entries["ffi.String"]))


_TYPE_PARAMS = re.compile(r"^(def \w+)\[[^\]]*\]\(", re.MULTILINE)
"""The type parameters that TVM prints on Python 3.12 and later, `def f[n](`; quoted dimensions mean the same on all
versions."""


def _quote_dimensions(text: str) -> str:
    """Quote dimensions that name symbols: Python evaluates annotations, where symbols are not defined."""
    lines = text.splitlines()
    end = next(i for i, line in enumerate(lines) if line.endswith(":")) + 1
    (definition,) = ast.parse("\n".join([*lines[:end], "    pass"])).body  # a body may be long
    definition = expect(ast.FunctionDef, definition)
    edits: list[tuple[int, int, int]] = []
    for arg in definition.args.args:
        if isinstance(arg.annotation, ast.Call) and arg.annotation.args:
            layout = [k.value for k in arg.annotation.keywords if k.arg in LAYOUT]
            for size in chain(*map(_items, (arg.annotation.args[0], *layout))):
                names = {n.id for n in ast.walk(size) if isinstance(n, ast.Name)} - {"T"}
                if names:
                    end = size.end_col_offset
                    assert end is not None
                    edits.append((size.lineno - 1, size.col_offset, end))
    for line, start, end in sorted(edits, reverse=True):
        row = lines[line].encode()
        size = row[start:end]
        quote = b"'" if b'"' in size else b'"'  # names of dtypes are quoted
        lines[line] = (row[:start] + quote + size + quote + row[end:]).decode()
    return "\n".join(lines) + "\n"


def _items(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]


def _parses_back(text: str, func: Any) -> bool:
    from relaxpy.tir.parse import parse_prim_func

    (node,) = parse_any_depth(text).body
    node = expect(ast.FunctionDef, node)
    try:
        parsed = parse_prim_func(node, text, "<printed>", {})
    except RelaxError:
        return False
    return bool(tvm_ffi.structural_equal(parsed.func, func, map_free_vars=True))
