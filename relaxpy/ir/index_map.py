"""Index maps: formulas for the new index of the element at (i, j, …) of a tensor: `T.index_map(lambda i, j: (j, i // 4,
i % 4))`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relaxpy.errors import DeduceError
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.narrow import is_sequence

_AXES: list[SymVar] = []


def axis(number: int) -> SymVar:
    """The symbol of axis `number`, shared by all maps: so equal maps compare equal."""
    while len(_AXES) <= number:
        _AXES.append(SymVar(f"i{len(_AXES)}"))
    return _AXES[number]


@dataclass(frozen=True, slots=True)
class IndexMap:
    """The mapping from the index (axis(0), axis(1), …) of a tensor of `ndim` dimensions to the index `results`."""

    ndim: int
    results: tuple[Dim, ...]

    @staticmethod
    def of(function: Callable[..., Any] | IndexMap) -> IndexMap:
        """The index map of a Python function, which takes an index for each axis.

        Raises: DeduceError (`op-arguments`) for a function with other parameters or results.
        """
        if isinstance(function, IndexMap):
            return function
        if not callable(function):
            raise _wrong(f"an index map is a function of indices, got {function!r}")
        parameters = inspect.signature(function).parameters.values()
        if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
            raise _wrong("an index map has one parameter for each axis, and no others")
        return IndexMap.made(
            len(parameters), function(*(axis(a).dim for a in range(len(parameters))))
        )

    @staticmethod
    def made(ndim: int, results: Any) -> IndexMap:
        """The map to `results`, a tuple or list of formulas. Raises the same errors as `of`."""
        if not is_sequence(results) or not all(
            isinstance(r, (Dim, SymVar, int)) and not isinstance(r, bool) for r in results
        ):
            raise _wrong(f"an index map must return a tuple of indices, got {results!r}")
        return IndexMap(ndim, tuple(map(Dim.of, results)))

    def at(self, values: Mapping[SymVar, int]) -> tuple[int, ...]:
        """The result index for these values of all variables."""
        return tuple(result.evaluate(values) for result in self.results)

    def __repr__(self) -> str:
        """The map as script."""
        names = ", ".join(axis(a).name for a in range(self.ndim))
        results = ", ".join(map(repr, self.results))
        return f"T.index_map(lambda {names}: ({results}{',' if len(self.results) == 1 else ''}))"


def _wrong(message: str) -> DeduceError:
    return DeduceError(
        "op-arguments", message, help="write T.index_map(lambda i, j: (j, i // 4, i % 4))"
    ).about("index_map")
