"""Index maps: where the element at (i, j, …) of a tensor goes, as formulas:
`T.index_map(lambda i, j: (j, i // 4, i % 4))`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relaxpy.errors import DeduceError
from relaxpy.ir.dim import Dim, SymVar

_AXES: list[SymVar] = []


def axis(number: int) -> SymVar:
    """What stands for an axis in every map: so maps that say the same are equal."""
    while len(_AXES) <= number:
        _AXES.append(SymVar(f"i{len(_AXES)}"))
    return _AXES[number]


@dataclass(frozen=True, slots=True)
class IndexMap:
    """The places `results` in the result for the place (axis(0), axis(1), …) of a tensor of `ndim` dimensions."""

    ndim: int
    results: tuple[Dim, ...]

    @staticmethod
    def of(function: Callable[..., Any] | IndexMap) -> IndexMap:
        """The map that a Python function of as many places is.

        Raises: DeduceError (`op-arguments`) for a function that takes or gives something else.
        """
        if isinstance(function, IndexMap):
            return function
        if not callable(function):
            raise _wrong(f"an index map is a function of places, got {function!r}")
        parameters = inspect.signature(function).parameters.values()
        if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
            raise _wrong("an index map takes a place for each axis, and nothing else")
        return IndexMap.made(
            len(parameters), function(*(axis(a).dim for a in range(len(parameters))))
        )

    @staticmethod
    def made(ndim: int, results: Any) -> IndexMap:
        """The map to `results`, a tuple or list of formulas. Raises as `of`."""
        if not isinstance(results, (tuple, list)) or not all(
            isinstance(r, (Dim, SymVar, int)) and not isinstance(r, bool) for r in results
        ):
            raise _wrong(f"an index map gives a tuple of places, got {results!r}")
        return IndexMap(ndim, tuple(map(Dim.of, results)))

    def at(self, values: Mapping[SymVar, int]) -> tuple[int, ...]:
        """The place for these values of all variables."""
        return tuple(result.evaluate(values) for result in self.results)

    def __repr__(self) -> str:
        """As script."""
        names = ", ".join(axis(a).name for a in range(self.ndim))
        results = ", ".join(map(repr, self.results))
        return f"T.index_map(lambda {names}: ({results}{',' if len(self.results) == 1 else ''}))"


def _wrong(message: str) -> DeduceError:
    return DeduceError(
        "op-arguments", message, help="write T.index_map(lambda i, j: (j, i // 4, i % 4))"
    ).about("index_map")
