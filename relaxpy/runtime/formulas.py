"""Formulas over the integer heap as lines of Python: constant parts computed, deep ones piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from relaxpy.runtime.bytecode import (
    Alloc,
    FunctionCode,
    Heap,
    IntExpr,
    IntOp,
    Kernel,
    Library,
    MakePrim,
    MakeShape,
    Packed,
    View,
)
from relaxpy.runtime.integers import POLYNOMIAL, compute, fits_int64, python_op

_MOST_PARENTHESES = 40
"""Of a formula on one line, one in the other."""


class Formulas:
    """Writes the formulas of one function. A slot of the heap is a local variable `s<i>`."""

    def __init__(
        self,
        code: FunctionCode,
        written: Collection[int],
        emit: Callable[[str], None],
        temp: Callable[[], str],
    ) -> None:
        """`written` are the slots that instructions write, the others are constants; `emit` takes lines that
        come before the one with the formula, `temp` gives names for them."""
        self._code = code
        self._written = written
        self._emit = emit
        self._temp = temp

    def fold(self, expr: IntExpr) -> IntExpr:
        """The expression with constant slots replaced by their numbers, and constant parts computed."""
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
                    # What no slot holds is computed at run time: a product of many has any number of digits.
                    if fits_int64(value):
                        return value
            return IntOp(expr.op, args)
        return expr

    def text(self, expr: IntExpr, narrow: bool = False) -> str:
        """The formula as Python. A `narrow` one fails where kernels, in 64 bits, would come to another value: sums may
        wrap on the way, what a minimum or a quotient is taken of may not."""
        return self._text(self.fold(expr), narrow)[0]

    def _text(self, expr: IntExpr, narrow: bool) -> tuple[str, int]:
        """A folded formula as Python, and how many parentheses deep it is: Python reads 200. Deep ones are computed
        piece by piece, on lines of their own."""
        if isinstance(expr, Heap):
            return f"s{expr.index}", 0
        if not isinstance(expr, IntOp):
            return repr(expr), 0
        args = [self._text(arg, narrow) for arg in expr.args]
        if narrow and expr.op not in POLYNOMIAL:
            args = [
                (f"int64({text})", deep + 1)
                if isinstance(arg, IntOp) and arg.op in POLYNOMIAL
                else (text, deep)
                for arg, (text, deep) in zip(expr.args, args, strict=True)
            ]
        text, deep = python_op(expr.op, [arg for arg, _ in args]), 1 + max(d for _, d in args)
        if deep < _MOST_PARENTHESES:
            return text, deep
        name = self._temp()
        self._emit(f"{name} = {text}")
        return name, 0


def slots_seen(code: FunctionCode) -> Iterator[int]:
    """The slots of sizes and scalars that values are made of, and that others are called with."""
    for instr in code.code:
        match instr:
            case (
                MakeShape(shape=shape, ndim=ndim)
                | Alloc(shape=shape, ndim=ndim)
                | View(shape=shape, ndim=ndim)
            ):
                yield from range(shape, shape + ndim)
            case Kernel(args=args) | Library(args=args) | Packed(args=args):
                yield from (arg.index for arg in args if isinstance(arg, Heap))
            case MakePrim(value=Heap(index)):
                yield index
            case _:
                pass
