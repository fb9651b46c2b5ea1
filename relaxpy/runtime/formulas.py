"""Writes formulas over the integer heap as Python: constant parts are folded, and deeply nested ones are split."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from relaxpy.runtime.bytecode import FunctionCode, Heap, IntExpr, IntOp
from relaxpy.runtime.integers import compute, fits_int64, python_op
from relaxpy.runtime.intervals import INT64, Interval, fits, interval, within

_LAZY = ("select", "and", "or")
_MOST_PARENTHESES = 40
"""The deepest nesting of a formula on one line."""


class Formulas:
    """Writes the formulas of one function. Heap slot i is the local variable `s<i>`."""

    def __init__(
        self,
        code: FunctionCode,
        written: Collection[int],
        emit: Callable[[str], None],
        temp: Callable[[], str],
    ) -> None:
        """`written` are the slots that instructions write; the others are constants. `emit` writes lines that precede
        the line with the formula; `temp` gives names for them."""
        self._code = code
        self._written = written
        self._emit = emit
        self._temp = temp

    def fold(self, expr: IntExpr) -> IntExpr:
        """The formula with constant slots replaced by their values and constant parts folded."""
        if isinstance(expr, Heap):
            return expr if expr.index in self._written else self._code.heap_init[expr.index]
        if isinstance(expr, IntOp):
            args = tuple(self.fold(arg) for arg in expr.args)
            if all(isinstance(arg, int) for arg in args):
                try:
                    value = compute(expr.op, [arg for arg in args if isinstance(arg, int)])
                except ZeroDivisionError:
                    pass  # fails when it is reached, with its place
                else:
                    # A number that does not fit a slot is computed at run time: a product of many numbers can have any
                    # length.
                    if fits_int64(value):
                        return value
            return IntOp(expr.op, args)
        return expr

    def text(self, expr: IntExpr) -> str:
        """The formula as Python with integers of arbitrary precision."""
        return self._text(self.fold(expr), None)[0]

    def over(self, expr: IntExpr, sizes: Mapping[int, str]) -> str:
        """A formula as Python in which `Heap(i)` is not a heap slot but the expression `sizes[i]`."""
        if isinstance(expr, Heap):
            return sizes[expr.index]
        if isinstance(expr, IntOp):
            return python_op(expr.op, [self.over(arg, sizes) for arg in expr.args])
        return repr(expr)

    def checked(self, expr: IntExpr, slots: Mapping[int, Interval]) -> str:
        """The formula as Python that raises if an operation overflows 64 bits, given the intervals of the slots."""
        return self._text(self.fold(expr), slots)[0]

    def either(self, condition: str, then: Callable[[], str], other: Callable[[], str]) -> str:
        """The Python of a choice between two formulas. Lines that only one of them needs run only if it is chosen."""
        return self._chosen(condition, [self._captured(then), self._captured(other)])

    def _text(
        self, expr: IntExpr, slots: Mapping[int, Interval] | None
    ) -> tuple[str, int, Interval]:
        """A folded formula as Python, its nesting depth (Python allows 200 parentheses), and its interval. Deeply
        nested parts are computed on lines of their own."""
        if isinstance(expr, Heap):
            found = INT64 if slots is None else slots.get(expr.index, INT64)
            return f"s{expr.index}", 0, found
        if not isinstance(expr, IntOp):
            return repr(expr), 0, (expr, expr)
        if expr.op in _LAZY:
            text, deep, intervals = self._lazy(expr, slots)
        else:
            args = [self._text(arg, slots) for arg in expr.args]
            text = python_op(expr.op, [each for each, _, _ in args])
            deep, intervals = 1 + max(d for _, d, _ in args), [each for _, _, each in args]
        exact = interval(expr.op, intervals)
        if slots is not None and not fits(exact):
            text, deep = f"int64({text})", deep + 1
        if deep >= _MOST_PARENTHESES:
            name = self._temp()
            self._emit(f"{name} = {text}")
            text, deep = name, 0
        return text, deep, within(exact)

    def _lazy(
        self, expr: IntOp, slots: Mapping[int, Interval] | None
    ) -> tuple[str, int, list[Interval]]:
        """An operation with short-circuit evaluation: an operand, and the lines that it needs, run only if the operands
        before it require that."""
        first = self._text(expr.args[0], slots)
        found = [first]
        pieces: list[list[str]] = []
        for arg in expr.args[1:]:
            lines: list[str] = []
            with self._captured_in(lines):
                found.append(self._text(arg, slots))
            pieces.append(lines)
        texts = [text for text, _, _ in found]
        intervals = [each for _, _, each in found]
        if not any(pieces):
            return python_op(expr.op, texts), 1 + max(deep for _, deep, _ in found), intervals
        if expr.op == "select":
            choice = [(lines, text) for lines, text in zip(pieces, texts[1:], strict=True)]
            return self._chosen(texts[0], choice), 0, intervals
        name = self._temp()
        self._emit(f"{name} = 1 if {texts[0]} else 0")
        for lines, text in zip(pieces, texts[1:], strict=True):
            self._emit(f"if {name}:" if expr.op == "and" else f"if not {name}:")
            for line in (*lines, f"{name} = 1 if {text} else 0"):
                self._emit(f" {line}")
        return name, 0, intervals

    def _chosen(self, condition: str, choice: list[tuple[list[str], str]]) -> str:
        """A choice between two formulas, each given with the lines that it needs."""
        (before, then), (others, other) = choice
        if not before and not others:
            return f"({then} if {condition} else {other})"
        name = self._temp()
        self._emit(f"if {condition}:")
        for line in (*before, f"{name} = {then}"):
            self._emit(f" {line}")
        self._emit("else:")
        for line in (*others, f"{name} = {other}"):
            self._emit(f" {line}")
        return name

    def _captured(self, write: Callable[[], str]) -> tuple[list[str], str]:
        lines: list[str] = []
        with self._captured_in(lines):
            text = write()
        return lines, text

    @contextmanager
    def _captured_in(self, lines: list[str]) -> Iterator[None]:
        """Redirects emitted lines to this list."""
        emit, self._emit = self._emit, lines.append
        try:
            yield
        finally:
            self._emit = emit
