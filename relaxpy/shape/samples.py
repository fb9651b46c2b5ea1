"""Formulas evaluated at sample points: a cheap way to refute inequalities before a proof is tried.

A proof of `a <= b` takes tens of microseconds; a point where a is larger refutes it at no cost, if both were evaluated
before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import nan
from random import Random

import numpy as np

from relaxpy.ir.dim import Dim, SymVar
from relaxpy.shape.bounds import Bounds

_POINTS = 32
_LARGEST = 4096
"""The width of the sampled range of a variable without an upper bound."""


class SampledDims:
    """A growing list of formulas over the same variables, with their values at the same points."""

    def __init__(self, variables: Iterable[SymVar], bounds: Bounds) -> None:
        """The points are the same in every process, and within `bounds`."""
        random = Random(0)
        self._points = [dict[SymVar, int]() for _ in range(_POINTS)]
        for variable in variables:
            low, high = bounds.get(variable, (0, None))
            low = max(0, low or 0)
            high = max(low, low + _LARGEST if high is None else high)
            for point in self._points:
                # Small and large values: for any two variables, each is the larger one at some point.
                point[variable] = random.choice((low, random.randint(low, high), high))
        self._evaluated: dict[Dim, np.ndarray] = {}
        self._values: np.ndarray = np.empty((16, _POINTS))
        self._count = 0

    def append(self, dim: Dim) -> None:
        """Add a formula to the list."""
        if self._count == len(self._values):
            self._values = np.concatenate((self._values, np.empty_like(self._values)))
        self._values[self._count] = self._evaluate(dim)
        self._count += 1

    def possibly_at_least(self, dim: Dim) -> list[int]:
        """The indices of the formulas that are at least `dim` at every point; for no other can that be proved. Rounding
        to float64 keeps the order."""
        refuted = (self._values[: self._count] < self._evaluate(dim)).any(axis=1)
        return np.flatnonzero(~refuted).tolist()

    def _evaluate(self, dim: Dim) -> np.ndarray:
        found = self._evaluated.get(dim)
        if found is None:
            found = self._evaluated[dim] = np.array([_value(dim, p) for p in self._points])
        return found


def _value(dim: Dim, point: Mapping[SymVar, int]) -> float:
    """The value at a point; NaN, which refutes nothing, if it is undefined."""
    try:
        return float(dim.evaluate(point))
    except (ZeroDivisionError, OverflowError):
        return nan
