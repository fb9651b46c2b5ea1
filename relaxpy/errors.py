"""Diagnostics: one error type, located in the user's source, with a source excerpt and a help line.

Every mistake of a user raises a :class:`RelaxError` of one of the families below. It renders as

    error[shape-mismatch]: matmul: inner dimensions differ: 4096 and 4095
      --> model.py:12:25
       |
    12 |         y = R.matmul(x, w)
       |                         ^
       |
     9 |     def main(x: R.Tensor(("n", 4096)), w: R.Tensor((4095, 128))):
       |              - x is R.Tensor((n, 4096))
       = help: transpose w, or check the checkpoint

Carets mark the error. Labels, underlined with `-`, mark other places that the message mentions: the definition of a
value, or the declared parameters of a function.

This module is a leaf: every layer, the runtime included, may import it.
"""

from __future__ import annotations

import difflib
import linecache
import os
import re
import stat
import sys
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import currentframe
from types import CodeType
from typing import Any, Self

_NEWLINE = re.compile("\r\n|\r|\n")
"""The line ends of Python; `str.splitlines` also splits at form feeds and other characters."""
_UNSHOWN = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories of control characters, surrogates and line separators, which are not printed."""
_LARGEST = 64 << 20
"""Maximum size in bytes of a file from which a source line is read."""
_WIDEST = 160
"""Maximum number of characters of a source line; longer lines are shown in part."""


@dataclass(frozen=True, slots=True)
class Source:
    """A Python source text and its file name."""

    text: str
    file: str
    lines: list[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", _NEWLINE.split(self.text))

    def span(self, node: Any) -> Span:
        """The range of a node of `ast`."""
        line = getattr(node, "lineno", None) or 1
        column = getattr(node, "col_offset", None) or 0
        end_line = getattr(node, "end_lineno", None) or line
        end = getattr(node, "end_col_offset", None)
        return self.range(line, column, end_line, column + 1 if end is None else end)

    def range(self, line: int, offset: int, end_line: int, end_offset: int) -> Span:
        """The range for offsets in UTF-8 bytes, as in `ast`; columns of a span count characters."""
        start, end = self._column(line, offset), self._column(end_line, end_offset)
        return Span(self.file, line, start, end_line, end, self.text)

    def _column(self, line: int, offset: int) -> int:
        if not 0 < line <= len(self.lines) or self.lines[line - 1].isascii():
            return offset
        return len(self.lines[line - 1].encode(errors="replace")[:offset].decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Span:
    """A range in a source file. Lines count from 1 and columns from 0, in characters; ends are exclusive."""

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    source: str | None = field(default=None, repr=False, compare=False)
    """The whole source text, if it is not in a file."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"

    def inside(self, other: Span | None) -> bool:
        """Is this range inside the other?"""
        if other is None or self.file != other.file:
            return False
        start, end = (self.line, self.column), (self.end_line, self.end_column)
        return (other.line, other.column) <= start and end <= (other.end_line, other.end_column)

    def source_line(self) -> str | None:
        """The text of the first line; None if the source is not available."""
        if self.source is not None:
            lines = _lines(self.source)
            return lines[self.line - 1] if 0 < self.line <= len(lines) else None
        if self.file not in linecache.cache and not _is_readable(self.file):
            return None
        return linecache.getline(self.file, self.line).rstrip("\n") or None


def span_of_code(code: CodeType, instruction: int, line: int) -> Span:
    """The range in the source of an instruction of running Python code, whose frame or traceback says `line`."""
    start, end, column, end_column = list(code.co_positions())[instruction // 2]
    return Span(code.co_filename, start or line, column or 0, end or 0, end_column or 0)


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_MODELS = f"{_PACKAGE}models{os.sep}"
"""Models in this folder count as user code: an error message shows their lines."""


def caller_span(*, beyond: str = "") -> Span | None:
    """The location of the nearest caller outside of relaxpy: file, line and columns of the call. With `beyond` it is
    the nearest outside of that package, too."""
    frame = currentframe()
    while frame is not None and (
        _is_ours(frame.f_code.co_filename)
        or (beyond and str(frame.f_globals.get("__name__", "")).partition(".")[0] == beyond)
    ):
        frame = frame.f_back
    return None if frame is None else span_of_code(frame.f_code, frame.f_lasti, frame.f_lineno)


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE) and not file.startswith(_MODELS)


_LIBRARIES = {"relaxpy", "tvm", "tvm_ffi", "numpy", "ml_dtypes", *sys.stdlib_module_names}
"""Packages whose code is no user's."""


def raised_in(error: BaseException) -> Span | None:
    """The innermost line in the traceback of an exception that is in nobody's library: in the code of the user, who
    passed it to relaxpy. None if there is none: then the defect is ours."""
    found, step = None, error.__traceback__
    while step is not None:
        frame = step.tb_frame
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]  # "" for C++
        if package == "__main__" or package not in ("", *_LIBRARIES):
            found = span_of_code(frame.f_code, step.tb_lasti, step.tb_lineno)
        step = step.tb_next
    return found


def defined_at(function: Any) -> Span | None:
    """The line at which a Python function is defined."""
    code = getattr(function, "__code__", None)
    return None if code is None else Span(code.co_filename, code.co_firstlineno)


OUR_DEFECT = "this is a bug in relaxpy: please report it with the program"


def _is_readable(file: str) -> bool:
    """Whether this is a regular file of a reasonable size. The name may come from an executable: it must not open a
    pipe, which could block, or a device."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST


@lru_cache(maxsize=4)
def _lines(text: str) -> list[str]:
    return _NEWLINE.split(text)


@dataclass(frozen=True, slots=True)
class Label:
    """A second place that an error refers to, with a text."""

    span: Span
    text: str


class RelaxError(Exception):
    """An error that the user can fix. `code` is its kind; docs/errors.md has a section for each."""

    arg: str | None = None
    """Name or position of the argument at fault in a call; with it the caller that knows the source places the
    caret."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        span: Span | None = None,
        labels: Iterable[Label] = (),
        notes: Sequence[str] = (),
        help: str | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.span = span
        self.labels = tuple(dict.fromkeys(labels))
        self.notes = tuple(notes)
        self.help = help

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        """The whole message as text."""
        marks = [_Mark(label.span, label.text) for label in self.labels if label.span != self.span]
        if self.span is not None:
            here = [label.text for label in self.labels if label.span == self.span]
            marks.insert(0, _Mark(self.span, "; ".join(here), main=True))
        shown = [mark for mark in marks if mark.main or mark.span.source_line() is not None]
        notes = [mark.note() for mark in marks if mark not in shown]
        pad = " " * max((len(str(mark.span.line)) for mark in shown), default=0)
        lines = [f"error[{self.code}]: {_shortened(self.message)}", *_excerpts(shown, pad)]
        lines += [f"{pad} = note: {_shortened(note)}" for note in (*notes, *self.notes)]
        if self.help is not None:
            lines.append(f"{pad} = help: {self.help}")
        # Names may come from a file, and contain terminal control characters.
        return "\n".join(map(_printable, "\n".join(lines).split("\n")))

    def show(self, text: str, span: Span | None) -> Self:
        """Return self after adding a text at another place: a label, or a note if the place is unknown."""
        if span is None:
            self.notes = tuple(dict.fromkeys((*self.notes, text)))
        else:
            self.labels = tuple(dict.fromkeys((*self.labels, Label(span, text))))
        return self

    def about(self, arg: str | None) -> Self:
        """Return self after setting the argument at fault."""
        self.arg = self.arg or arg
        return self

    def located(self, span: Span | None) -> Self:
        """Return self after setting `span`, unless it has one."""
        if self.span is None:
            self.span = span
        return self


@dataclass(frozen=True, slots=True)
class _Mark:
    """An underlined range: the place of the error, or a label."""

    span: Span
    text: str
    main: bool = False

    def note(self) -> str:
        """The label as a note, for a source that cannot be shown."""
        return f"{self.text} ({self.span})"

    def underline(self, line: str, start: int) -> str:
        """Carets or dashes under the part of the range on its first line; the shown line begins at column `start`."""
        first = min(self.span.column, start + len(line))
        last = self.span.end_column if self.span.end_line <= self.span.line else start + len(line)
        before, inside = line[: first - start], line[first - start : last - start].rstrip()
        sign = "^" if self.main else "-"
        text = f" {self.text}" if self.text else ""
        return _blank(before) + sign * max(1, sum(map(_columns, inside))) + text


_LONGEST_TEXT = 4000
"""Maximum number of characters of a message: annotations in it may be of any length."""


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[: _LONGEST_TEXT // 2]} … {text[-_LONGEST_TEXT // 4 :]}"


def _excerpts(marks: Sequence[_Mark], pad: str) -> Iterator[str]:
    """Each place's source line once, with its underlines. The first mark is the place of the error."""
    groups: dict[tuple[str, int], list[_Mark]] = {}
    for mark in marks:
        groups.setdefault((mark.span.file, mark.span.line), []).append(mark)
    file = None
    for (name, number), group in groups.items():
        if name != file:
            yield f"{pad}{'-->' if group[0].main else ':::'} {group[0].span}"
            file = name
        line = group[0].span.source_line()
        if line is None:
            continue
        start = _start(line, group[0].span.column)
        line = line[start : start + _WIDEST]
        yield f"{pad} |"
        yield f"{number:>{len(pad)}} | {_printable(line)}"
        yield from (f"{pad} | {mark.underline(line, start)}".rstrip() for mark in group)


def _start(line: str, column: int) -> int:
    """The first column shown of a long line."""
    return 0 if len(line) <= _WIDEST else max(0, column - _WIDEST // 2)


def _columns(char: str) -> int:
    """The number of terminal columns that a character takes."""
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def _blank(text: str) -> str:
    """Whitespace as wide as `text`, with tabs kept."""
    return "".join("\t" if char == "\t" else " " * _columns(char) for char in text)


def _printable(line: str) -> str:
    """The line with control characters and unencodable characters replaced."""
    return "".join(
        "�" if char != "\t" and unicodedata.category(char) in _UNSHOWN else char for char in line
    )


class ScriptError(RelaxError):
    """A mistake in decorated Python or in TVMScript text."""


class DeduceError(RelaxError):
    """An operator or call with invalid arguments."""


class VerifyError(RelaxError):
    """A module that is not well formed."""


class PassError(RelaxError):
    """A module that a pass cannot process."""

    module: object = None
    """The module before the pass, if the pass crashed."""


class BuildError(RelaxError):
    """A module or target that cannot be built."""


class ExecutableError(RelaxError):
    """An executable that cannot be loaded: damaged, of another version, or for another machine."""


class RuntimeCheckError(RelaxError):
    """A value that does not match its annotation, or a failed kernel or library call, at run time."""


def short_warnings() -> None:
    """From now on, write warnings in one line, without the place that gives them: for programs, whose users wrote no
    line of it."""

    def line(message: Warning | str, *_: object) -> str:
        return f"warning: {message}\n"

    warnings.formatwarning = line


def out_of_range(program: str, name: str, dim: int, index: int, extent: int) -> str:
    """The message of a `tir-bounds` error, for compiled and interpreted programs. The error is an index into dimension
    `dim` of the buffer `name`, the value of an axis (dimension -1), or a negative size (dimension -2)."""
    if dim == -2:
        return f"{program}: {name} must not be negative, got {index}"
    if dim == -1:
        return f"{program}: {name} must be less than its extent {extent}, got {index}"
    return f"{program}: index {index} is out of bounds for dimension {dim} of {name}, of extent {extent}"


class UsageError(RelaxError):
    """Wrong arguments to a public function or to the command line."""


class ErrorGroup(RelaxError):
    """Several errors found in one run, rendered one below the other."""

    def __init__(self, errors: Sequence[RelaxError]) -> None:
        first = errors[0]
        super().__init__(
            first.code,
            first.message,
            span=first.span,
            labels=first.labels,
            notes=first.notes,
            help=first.help,
        )
        self.errors = tuple(errors)

    def render(self) -> str:
        count = len(self.errors)
        tail = f"\n\n{count} errors" if count > 1 else ""
        return "\n\n".join(error.render() for error in self.errors) + tail


class ErrorBag:
    """Collects located errors, so that one run reports all of them."""

    def __init__(self) -> None:
        self.errors: list[RelaxError] = []

    def add(self, error: RelaxError) -> None:
        self.errors.extend(error.errors if isinstance(error, ErrorGroup) else [error])

    @contextmanager
    def collect(self, span: Span | None = None) -> Iterator[None]:
        """Collect a `RelaxError` raised in the block, and continue after it."""
        try:
            yield
        except RelaxError as error:
            self.add(error.located(span))

    def raise_if_any(self) -> None:
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise ErrorGroup(self.errors)


def did_you_mean(
    name: object, known: Iterable[str], shown: Callable[[str], str] = repr, most: int = 1
) -> str | None:
    """The question `did you mean 'x'?` for a name that is not known, with at most so many of those that are; None if
    none is like it."""
    near = " or ".join(map(shown, nearest(str(name), known, most)))
    return f"did you mean {near}?" if near else None


def nearest(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names that are most like this one, the most alike first."""
    return difflib.get_close_matches(name, list(known), most, cutoff)


def shortened(problems: Collection[str], most: int = 12) -> list[str]:
    """The first problems of a list, and how many there are beside them."""
    shown = [*problems][:most]
    left = len(problems) - len(shown)
    return [*shown, *([f"... and {left} more"] if left else [])]


def wrong_weights(
    owner: str, problems: Collection[str], help: str, *, what: str = "weights"
) -> UsageError:
    """The error (`bad-weights`) for tensors by name that do not match those that their owner takes: what is missing,
    unexpected, or of another type."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return UsageError(
        "bad-weights",
        f"the {what} do not match the {owner}: {count}",
        notes=shortened(problems),
        help=help,
    )
