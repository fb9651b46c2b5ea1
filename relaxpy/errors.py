"""Diagnostics: one error type, located in the user's source, with an excerpt and a way out.

Everything that a user can get wrong raises a :class:`RelaxError` of one of the families below. It
renders as

    error[shape-mismatch]: matmul: inner dimensions differ: 4096 and 4095
      --> model.py:12:14
       |
    12 |         y = R.matmul(x, w)
       |                         ^
       = note: w is R.Tensor((4095, 128), "float32")
       = help: transpose w, or check the checkpoint

This module is a leaf: every layer, the runtime included, may import it.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True, slots=True)
class Span:
    """A range in a source file. Lines count from 1 and columns from 0, as in `ast`; ends are
    exclusive."""

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    source: str | None = field(default=None, repr=False, compare=False)
    """The whole source text, for text that is in no file."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"

    def source_line(self) -> str | None:
        """The text of the first line, or None where the source cannot be had."""
        if self.source is not None:
            lines = self.source.splitlines()
            return lines[self.line - 1] if 0 < self.line <= len(lines) else None
        return linecache.getline(self.file, self.line).rstrip("\n") or None

    def excerpt(self) -> list[str]:
        """The location, the source line and carets under the range, as lines of text."""
        number = str(self.line)
        pad = " " * len(number)
        lines = [f"{pad}--> {self}"]
        text = self.source_line()
        if text is not None:
            if self.end_line == self.line:
                end = self.end_column
            else:
                end = len(text) if self.end_line > self.line else self.column + 1
            width = max(1, min(end, len(text)) - self.column)
            tabs = "".join("\t" if c == "\t" else " " for c in text[: self.column])
            lines += [f"{pad} |", f"{number} | {text}", f"{pad} | {tabs}{'^' * width}"]
        return lines


class RelaxError(Exception):
    """Something that the user can mend: `code` names the kind (docs/errors.md has a section for
    each)."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        span: Span | None = None,
        notes: Sequence[str] = (),
        help: str | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.span = span
        self.notes = tuple(notes)
        self.help = help

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        pad = ""
        if self.span is not None:
            pad = " " * len(str(self.span.line))
            lines += self.span.excerpt()
        lines += [f"{pad} = note: {note}" for note in self.notes]
        if self.help is not None:
            lines.append(f"{pad} = help: {self.help}")
        return "\n".join(lines)

    def located(self, span: Span | None) -> Self:
        """Self, with `span` filled in if there was none."""
        if self.span is None:
            self.span = span
        return self


class ScriptError(RelaxError):
    """A mistake in decorated Python or in TVMScript text."""


class DeduceError(RelaxError):
    """An operator or call whose arguments do not fit. `arg` names the argument at fault, so that
    whoever knows the source can put the caret under it."""

    arg: str | None = None

    def about(self, arg: str | None) -> DeduceError:
        """Self, with the argument at fault noted."""
        self.arg = self.arg or arg
        return self


class VerifyError(RelaxError):
    """A module that is not well formed."""


class PassError(RelaxError):
    """A pass that cannot take this module."""

    module: object = None
    """The module before the pass, where the pass crashed."""


class BuildError(RelaxError):
    """A module or target that cannot be built."""


class ExecutableError(RelaxError):
    """A file that cannot be loaded: damaged, of another version, or for another machine."""


class RuntimeCheckError(RelaxError):
    """A value that does not fit its annotation, or a kernel or library call that failed, at run
    time."""


class UsageError(RelaxError):
    """Wrong arguments to a public function or to the command line."""


class ErrorGroup(RelaxError):
    """Several errors found in one go; rendered one below the other."""

    def __init__(self, errors: Sequence[RelaxError]) -> None:
        first = errors[0]
        super().__init__(
            first.code, first.message, span=first.span, notes=first.notes, help=first.help
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
        """Take a `RelaxError` raised inside, and go on after the block."""
        try:
            yield
        except RelaxError as error:
            self.add(error.located(span))

    def raise_if_any(self) -> None:
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise ErrorGroup(self.errors)
