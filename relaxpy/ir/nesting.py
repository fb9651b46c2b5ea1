"""Parsing Python that is nested deeper than Python's own parser allows.

Its tokenizer stops at 100 levels of indentation and 200 of brackets, and its parser may run out of stack earlier.
Programs written by passes, and printed by `script`, have no such limit. So a text that Python refuses for its depth is
parsed in pieces. The contents of every bracket at each 40th level, and of every suite at each 80th, are blanked out,
parsed separately at their original position (so that source locations stay right), and put back into the tree.
"""

from __future__ import annotations

import ast
import keyword
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

BRACKETS = 40
INDENTS = 80
"""Levels of indentation between two cuts."""

_TOKEN = re.compile(
    rb'''#[^\n]*|"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*\''''
    rb"""|\\\r?\n|[()\[\]{}\n]""",
    re.DOTALL,
)
_VALUE_BEFORE = re.compile(rb"(?:[\w\x80-\xff]+|[)\]}\"'])(?=\s*\Z)")


def is_too_deep(error: BaseException) -> bool:
    """Did Python refuse a text for its depth?"""
    if isinstance(error, SyntaxError):
        return "too many levels of indentation" in str(error.msg) or "nested" in str(error.msg)
    return isinstance(error, (MemoryError, RecursionError))


def parse_any_depth(text: str) -> ast.Module:
    """The syntax tree of a text, by Python's parser unless it is too deep for that."""
    try:
        return ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        if not is_too_deep(error):
            raise
    return parse_nested(text)


def parse_nested(text: str) -> ast.Module:
    """The syntax tree of a text of any depth. Raises `SyntaxError` for invalid Python."""
    scan = _Scan(text.encode())
    lines = bytes(scan.text).split(b"\n")
    suites: dict[int, list[ast.stmt]] = {}
    for first, end in scan.suites(lines):
        source = b"\n".join([b"if 1:", *lines[first:end]])
        tree = _parse(source, first - 1)
        _put_back(tree, scan.pieces, suites)
        assert isinstance(tree.body[0], ast.If)
        indent = len(lines[first]) - len(lines[first].lstrip())
        suites[first + 1] = tree.body[0].body
        lines[first:end] = [lines[first][:indent] + b"pass", *[b""] * (end - first - 1)]
    tree = _parse(b"\n".join(lines), 0)
    _put_back(tree, scan.pieces, suites)
    return tree


@dataclass(frozen=True, slots=True)
class _Piece:
    """The contents of a bracket, parsed separately."""

    kind: str
    """`call`, `subscript`, `group` for a parenthesis, `display` for a list, set or dict."""
    node: ast.expr


class _Scan:
    """One pass over a text: it cuts out the brackets at each 40th level, and finds the lines that begin a statement."""

    def __init__(self, text: bytes) -> None:
        self.text = bytearray(text)
        self.pieces: dict[tuple[int, int], _Piece] = {}
        """Line and column of a placeholder → the piece that it replaces."""
        self.continued: set[int] = set()
        """Lines (from 0) that do not begin a statement."""
        self._starts = [0, *(match.end() for match in re.finditer(b"\n", text))]
        brackets: list[int] = []
        line = 0
        for token in _TOKEN.finditer(text):
            found = token[0]
            if found == b"\n":
                line += 1
                if brackets:
                    self.continued.add(line)
            elif found in b"([{":
                brackets.append(token.start())
            elif found not in b")]}":  # a string, a comment, or the end of a line that goes on
                for _ in range(found.count(b"\n")):
                    line += 1
                    self.continued.add(line)
            elif brackets:
                start = brackets.pop()
                if len(brackets) % BRACKETS == BRACKETS - 1:
                    self._cut(start, token.start())

    def _place(self, offset: int) -> tuple[int, int]:
        """Line (from 1) and column of a byte offset."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1]

    def _cut(self, start: int, end: int) -> None:
        """Parse the bracket from `start` to `end`, and replace its contents by a placeholder."""
        contents = bytes(self.text[start + 1 : end])
        blank = len(contents) - len(contents.lstrip())
        if blank == len(contents):
            return
        line, column = self._place(start)
        kind = self._kind(start)
        subject = b"_" if kind in ("call", "subscript") else b""
        opening = b"(" + subject + b"\n" + b" " * column
        tree = _parse(opening + bytes(self.text[start : end + 1]) + b"\n)", line - 2)
        _put_back(tree, self.pieces, {})
        statement = tree.body[0]
        assert isinstance(statement, ast.Expr)
        self.pieces[self._place(start + 1 + blank)] = _Piece(kind, statement.value)
        self.text[start + 1 : end] = re.sub(rb"[^\n]", b" ", contents)
        self.text[start + 1 + blank] = ord("_")

    def _kind(self, start: int) -> str:
        """The kind of the bracket at `start`: after a value it is a call or subscript."""
        word = _VALUE_BEFORE.search(self.text, max(0, start - 100), start)
        after_value = word is not None and not keyword.iskeyword(word[0].decode(errors="replace"))
        if self.text[start] == ord("("):
            return "call" if after_value else "group"
        return "subscript" if after_value and self.text[start] == ord("[") else "display"

    def suites(self, lines: list[bytes]) -> Iterator[tuple[int, int]]:
        """The line ranges first…end (from 0) of the suites at every 80th level, innermost first."""
        levels: list[int] = []
        open_suites: list[int] = []
        for number, line in enumerate(lines):
            code = line.strip()
            if number in self.continued or not code or code.startswith(b"#"):
                continue
            before = line[: len(line) - len(line.lstrip())]
            indent = len(before.expandtabs())
            while levels and levels[-1] >= indent:
                if len(levels) % INDENTS == 0 and levels[-1] > indent:
                    yield open_suites.pop(), number
                if levels[-1] == indent:
                    break
                levels.pop()
            if not levels or levels[-1] < indent:
                levels.append(indent)
                if len(levels) % INDENTS == 0:
                    open_suites.append(number)
        for first in reversed(open_suites):
            yield first, len(lines)


def _parse(source: bytes, shift: int) -> ast.Module:
    """The tree of a piece whose lines are `shift` lines further down in the text."""
    try:
        tree = ast.parse(source.decode())
    except SyntaxError as error:
        if error.lineno is not None:
            error.lineno += shift
        if error.end_lineno is not None:
            error.end_lineno += shift
        raise
    return ast.increment_lineno(tree, shift)


def _put_back(
    tree: ast.Module, pieces: dict[tuple[int, int], _Piece], suites: dict[int, list[ast.stmt]]
) -> None:
    """Replace placeholders by the separately parsed pieces. `suites`: the line of a lone `pass` → the suite."""
    ends = {line: suite[-1] for line, suite in suites.items()}
    for node in ast.walk(tree):
        if suites and isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            _put_back_suites(node, suites, ends)
        match node:
            case ast.Call(args=[ast.Name() as name, *_]) if piece := _taken(pieces, name, "call"):
                assert isinstance(piece, ast.Call)
                node.args, node.keywords = piece.args, piece.keywords
            case ast.Subscript(slice=ast.Name() as name) if piece := _taken(
                pieces, name, "subscript"
            ):
                assert isinstance(piece, ast.Subscript)
                node.slice = piece.slice
            case ast.List(elts=[ast.Name() as name]) | ast.Set(elts=[ast.Name() as name]) if (
                piece := _taken(pieces, name, "display")
            ):
                _become(node, piece)
            case ast.Name() if piece := _taken(pieces, node, "group"):
                _become(node, piece)
            case _:
                pass


def _put_back_suites(
    node: ast.AST, suites: dict[int, list[ast.stmt]], ends: dict[int, ast.stmt]
) -> None:
    for field in ("body", "orelse", "finalbody"):
        suite: list[ast.stmt] | None = getattr(node, field, None)
        if isinstance(suite, list) and suite and isinstance(suite[0], ast.Pass):
            setattr(node, field, suites.pop(suite[0].lineno, suite))
    last = ends.get(getattr(node, "end_lineno", None) or 0)
    if last is not None and not isinstance(node, ast.Pass):
        node.end_lineno, node.end_col_offset = last.end_lineno, last.end_col_offset  # type: ignore[attr-defined]


def _taken(
    pieces: dict[tuple[int, int], _Piece], placeholder: ast.Name, kind: str
) -> ast.expr | None:
    """The contents of the placeholder, if it is one of this kind."""
    place = (placeholder.lineno, placeholder.col_offset)
    piece = pieces.get(place)
    if piece is None or piece.kind != kind:
        return None
    return pieces.pop(place).node


def _become(node: ast.expr, other: ast.expr) -> None:
    """Turn `node` into a copy of `other`, in place, for the references to it. A piece is parsed as a value; where the
    placeholder is assigned to, so is what replaces it."""
    context = getattr(node, "ctx", None)
    if isinstance(context, (ast.Store, ast.Del)):
        _assign_to(other, context)
    node.__class__ = other.__class__
    node.__dict__.clear()
    node.__dict__.update(vars(other))


def _assign_to(target: ast.expr, context: ast.expr_context) -> None:
    """Give a target and the targets in it this context."""
    if hasattr(target, "ctx"):
        target.ctx = context  # type: ignore[attr-defined]
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                _assign_to(part, context)
        case ast.Starred(value=value):
            _assign_to(value, context)
        case _:
            pass
