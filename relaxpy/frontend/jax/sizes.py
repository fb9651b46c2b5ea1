"""Sizes: JAX's symbolic dimensions as `Dim`s over our symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.ir import Dim
from relaxpy.ir.dim import dim_op, dim_sum, product

_OPERATIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": lambda a, b: dim_op("max", a, b),
    "min": lambda a, b: dim_op("min", a, b),
}


class OtherScopeError(Exception):
    """A size of another scope than that of the arguments."""


class Sizes:
    """The values of JAX's variables of sizes."""

    def __init__(self) -> None:
        self.known: dict[str, Dim] = {}
        """Variable of JAX → its value."""
        self.scope: Any = None
        """The scope of the variables; None: any."""

    def of(self, value: Any) -> Dim:
        """A size of JAX, an int or an expression of variables, as a dimension."""
        if not is_symbolic(value):
            return Dim.of(int(value))
        if self.scope is not None and value.scope is not self.scope:
            raise OtherScopeError
        terms: list[Dim] = []
        for term, factor in value._sorted_terms:
            powers = [self._factor(each) ** power for each, power in term._factors]
            terms.append(product((Dim.of(int(factor)), *powers)))
        return dim_sum(tuple(terms))

    def all(self, values: Sequence[Any]) -> list[Dim]:
        return [each if isinstance(each, Dim) else self.of(each) for each in values]

    def _factor(self, factor: Any) -> Dim:
        if factor.var is not None:
            if factor.var not in self.known:
                raise UsageError(
                    "jax-trace",
                    f"the size {factor.var} is in the shape of no argument",
                    help="pass an array that has it",
                )
            return self.known[factor.var]
        return _OPERATIONS[factor.operation](*map(self.of, factor.operands))


@cache
def dimension() -> type:
    """The class of JAX's symbolic dimensions."""
    from jax._src.export.shape_poly import _DimExpr

    return _DimExpr


def is_symbolic(value: Any) -> bool:
    return isinstance(value, dimension())
