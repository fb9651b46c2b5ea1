"""Sizes: sympy's expressions over torch's symbols as `Dim`s over ours, with the names that the user gave."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.ir import Dim, SymVar
from relaxpy.ir.dim import DimOp, dim_op, dim_sum, product


class Sizes:
    """Torch's symbols (`s77`) as dimensions. Symbols that guards tie together are one."""

    def __init__(self) -> None:
        self.known: dict[str, Dim] = {}
        """Symbol of torch → its value."""
        self.checked: dict[Dim, Dim] = {}
        """Expressions that the program checks to be a number → that number."""

    def define(self, symbol: str, value: Dim) -> None:
        self.known[symbol] = value

    def unknown(self, value: Any) -> list[str]:
        """The symbols of a size of torch, an int or a SymInt, that are not defined yet."""
        if isinstance(value, int):
            return []
        return sorted(s.name for s in value.node.expr.free_symbols if s.name not in self.known)

    def substitute(self, var: SymVar, value: Dim) -> None:
        """Replace a variable everywhere."""
        self.known = {name: dim.substitute({var: value}) for name, dim in self.known.items()}

    def of(self, value: Any) -> Dim:
        """A size of torch, an int or a SymInt, as a dimension."""
        if isinstance(value, int):
            return Dim.of(value)
        found = self.expr(value.node.expr if hasattr(value, "node") else value)
        return self.checked.get(found, found)

    def expr(self, expr: Any) -> Dim:
        """An expression of sympy as a dimension; comparisons give 0 or 1. UsageError (`torch-size`) for a function that
        sizes do not have."""
        import sympy

        if expr is sympy.true or expr is sympy.false:
            return Dim.of(int(expr is sympy.true))
        if expr.is_Symbol:
            if expr.name not in self.known:
                raise UsageError("torch-size", f"the size {expr.name} is defined by no input")
            return self.known[expr.name]
        if expr.is_Integer:
            return Dim.of(int(expr))
        name = type(expr).__name__
        if name in ("TruncToInt", "FloorToInt"):
            whole = self._scaled(expr.args[0])
            if whole is not None:
                return whole
        if name in ("TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt"):
            return _rounded(name, *self._quotient(expr.args[0]))
        if name == "Piecewise":
            found = self.expr(expr.args[-1].expr)
            for pair in reversed(expr.args[:-1]):
                found = dim_op("select", self.expr(pair.cond), self.expr(pair.expr), found)
            return found
        if name not in FUNCTIONS:
            raise UsageError(
                "torch-size",
                f"a size is {expr}, and {name} is no function of sizes here",
                help="compute it with integers: +, -, *, //, %, min and max",
            )
        if name == "Pow":
            return self.expr(expr.args[0]) ** int(expr.args[1])
        return FUNCTIONS[name](*map(self.expr, expr.args))

    def _quotient(self, value: Any) -> tuple[Dim, Dim | int]:
        """A float of sizes as a size over a number, or over a size."""
        if type(value).__name__ == "IntTrueDiv" and not value.args[1].is_number:
            above, below = map(self.expr, value.args)
            return above, below
        return self._ratio(value)

    def _scaled(self, value: Any) -> Dim | None:
        """A size times a float, rounded down."""
        factors = [each for each in value.args if each.is_Float]
        others = [each for each in value.args if not each.is_Float]
        if type(value).__name__ != "Mul" or len(factors) != 1 or len(others) != 1:
            return None
        (other,) = others
        is_size = other.is_integer or type(other).__name__ == "ToFloat"
        return scaled(float(factors[0]), self.expr(other)) if is_size else None

    def _ratio(self, expr: Any) -> tuple[Dim, int]:
        """A float of sizes, as scale factors and steps make it, as a size over a positive number."""
        name = type(expr).__name__
        if expr.is_Float or (expr.is_Rational and not expr.is_Integer):
            above, below = float(expr).as_integer_ratio() if expr.is_Float else (expr.p, expr.q)
            if below <= 2**_POWERS:
                return Dim.of(int(above)), int(below)
        elif name in ("FloatTrueDiv", "IntTrueDiv"):
            (above, below), (by, parts) = map(self._ratio, expr.args)
            if by.value:
                sign = 1 if by.value > 0 else -1
                return above * (sign * parts), below * abs(by.value)
        elif name in ("Add", "Mul"):
            (above, below), *rest = map(self._ratio, expr.args)
            for more, parts in rest:
                above = above * parts + more * below if name == "Add" else above * more
                below *= parts
            return above, below
        else:
            return self.expr(expr), 1
        raise UsageError(
            "torch-size",
            f"a size is rounded from {expr}, which is no fraction of sizes with a denominator of at most {2**_POWERS}",
            help="give the size itself, or a factor such as 0.5 or 1.7",
        )


def _rounded(name: str, above: Dim, below: Dim | int) -> Dim:
    if name == "CeilToInt":
        return -(-above // below)
    if name == "RoundToInt":  # a half to the even number
        twice = above * 2 + below
        found, half = twice // (below * 2), dim_op("eq", twice % (below * 2), 0)
        return found - half * (found % 2)
    return above // below


def scaled(factor: float, size: Dim) -> Dim | None:
    """`size` times a float, rounded down, as floats compute it; None if that is no fraction with a small denominator.

    1.7 stands for 17/10: the product is the nearest float to a number that is off by so little that it is rounded to
    the whole number which 17 * size / 10 is, if it is one. 0.7 is not 7/10: 0.7 * 90 is less than 63.
    """
    if factor < 0 or not math.isfinite(factor):
        return None
    exact = Fraction(factor)
    if exact.denominator <= 2**_POWERS:
        return size * exact.numerator // exact.denominator
    near = exact.limit_denominator(_LARGEST)
    is_close = float(near) == factor and (near - exact) * 2**54 < near
    return size * near.numerator // near.denominator if is_close else None


_POWERS = 16
_LARGEST = 1000
"""The denominator of a fraction that a float stands for, such as 1.333 or 0.15."""


def _all(op: str) -> Callable[..., Dim]:
    def joined(first: Dim, *rest: Dim) -> Dim:
        for each in rest:
            first = dim_op(op, first, each)
        return first

    return joined


def _sum(*dims: Dim) -> Dim:
    return dim_sum(dims)


def _product(*dims: Dim) -> Dim:
    return product(dims)


def _remainder(a: Dim, b: Dim) -> Dim:
    """What fills a size up to a multiple, `-n % b`, is written with the quotient: their sum is a multiple then."""
    found = a % b
    atom = found.atom
    if isinstance(atom, DimOp) and atom.op == "floormod" and atom.args[1] == b:
        size = atom.args[0]
        if any(coefficient < 0 for monomial, coefficient in size.terms if monomial):
            return size - size // b * b
    return found


def _quotient(a: Dim, b: Dim) -> Dim:
    """Of a size and a multiple of it, it is a number, as for torch, which asks for no division by 0 either."""
    if b.value is None and len(a.terms) == len(b.terms):
        times = a.terms[0][1] // b.terms[0][1]
        if b * times == a:
            return Dim.of(times)
    return a // b


FUNCTIONS: dict[str, Callable[..., Dim]] = {
    "Pow": lambda a, b: a**b,
    "Add": _sum,
    "Mul": _product,
    "FloorDiv": _quotient,
    "CleanDiv": _quotient,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": _remainder,
    "PythonMod": _remainder,
    "ModularIndexing": lambda a, b, c: (a // b) % c,
    "Min": _all("min"),
    "Max": _all("max"),
    "Where": lambda c, a, b: dim_op("select", c, a, b),
    "Equality": lambda a, b: dim_op("eq", a, b),
    "Unequality": lambda a, b: dim_op("ne", a, b),
    "StrictLessThan": lambda a, b: dim_op("lt", a, b),
    "StrictGreaterThan": lambda a, b: dim_op("lt", b, a),
    "LessThan": lambda a, b: dim_op("le", a, b),
    "GreaterThan": lambda a, b: dim_op("le", b, a),
    "And": _all("and"),
    "Or": _all("or"),
    "Not": lambda a: dim_op("not", a),
    "ToFloat": lambda a: a,
    "Identity": lambda a: a,
}
"""Class of sympy's or torch's functions of sizes → the dimension."""
