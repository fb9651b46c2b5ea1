"""Interval arithmetic: the range of a dimension for given ranges of its variables, over its normal form.

Used for a number rather than a proof: the maximum size that memory is planned for.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TypeAlias

from relaxpy.ir.dim import INT_FUNCTIONS, Atom, Dim, DimOp, SymVar
from relaxpy.shape.bounds import Range

_Interval: TypeAlias = tuple[float, float]
"""A closed interval of integers; its ends may be infinite."""

_TRUTH: _Interval = (0, 1)


def interval(dim: Dim, ranges: Mapping[SymVar, Range]) -> Range:
    """A range that contains every value of `dim`; None: unbounded on that side. Without a range, a variable is at least
    0 if it is a size, else any integer. The bounds are exact if no variable occurs twice."""
    low, high = _dim(dim, ranges)
    return (None if low == -inf else int(low)), (None if high == inf else int(high))


def upper_bound(dim: Dim, ranges: Mapping[SymVar, Range]) -> int | None:
    """An upper bound of `dim`; None if it is unbounded."""
    return interval(dim, ranges)[1]


def _dim(dim: Dim, ranges: Mapping[SymVar, Range]) -> _Interval:
    low: float = 0
    high: float = 0
    for monomial, coefficient in dim.terms:
        term: _Interval = (coefficient, coefficient)
        for atom, power in monomial:
            factor = _atom(atom, ranges)
            for _ in range(power):
                term = _times(term, factor)
        low, high = low + term[0], high + term[1]
    return low, high


def _atom(atom: Atom, ranges: Mapping[SymVar, Range]) -> _Interval:
    if isinstance(atom, SymVar):
        low, high = ranges.get(atom, (atom.least, None))
        return (-inf if low is None else low), (inf if high is None else high)
    args = [_dim(arg, ranges) for arg in atom.args]
    return _op(atom, args)


def _op(atom: DimOp, args: list[_Interval]) -> _Interval:
    match atom.op, args:
        case "floordiv", [a, (low, high)] if low == high and 0 < low < inf:
            return _floor(a[0], low), _floor(a[1], low)
        case "floordiv", [(low, high), (least, _)] if low >= 0 and least >= 1:
            return 0, _floor(high, least)
        case "floormod", [(low, high), (least, most)] if least >= 1:
            return 0, min(most - 1, high) if low >= 0 else most - 1
        case "min", _:
            return min(low for low, _ in args), min(high for _, high in args)
        case "max", _:
            return max(low for low, _ in args), max(high for _, high in args)
        case "select", [_, then, other]:
            return min(then[0], other[0]), max(then[1], other[1])
        case (("floordiv" | "floormod"), _):
            return -inf, inf
        case _:
            assert atom.op in INT_FUNCTIONS
            return _TRUTH


def _floor(value: float, divisor: float) -> float:
    return value if value in (inf, -inf) else value // divisor


def _times(a: _Interval, b: _Interval) -> _Interval:
    products = [_product(x, y) for x in a for y in b]
    return min(products), max(products)


def _product(x: float, y: float) -> float:
    return 0 if x == 0 or y == 0 else x * y
