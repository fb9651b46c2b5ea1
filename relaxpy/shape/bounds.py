"""Declared ranges of symbolic variables, and proofs under them.

`R.func_attr({"tir_var_upper_bound": {"n": 2048}})` declares that n is at most 2048 in every call, and
`tir_var_lower_bound` declares a lower bound (the names are TVM's). A call outside of the bounds is refused. Without a
declaration, a size is at least 0 and the value of a scalar is any integer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.ir.dim import Dim, SymVar, dim_op
from relaxpy.ir.expr import Function
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.narrow import is_mapping

Range = tuple[int | None, int | None]
"""A closed interval; None: unbounded on that side."""
Bounds = Mapping[SymVar, Range]
"""Ranges by variable."""

UPPER, LOWER = "tir_var_upper_bound", "tir_var_lower_bound"

_assumed: ContextVar[Bounds] = ContextVar("assumed", default={})  # noqa: B039  (never changed in place)


def declared_bounds(attrs: Mapping[str, Any], symbols: Iterable[SymVar]) -> dict[SymVar, Range]:
    """The ranges that a function's attributes declare for its `symbols`. Raises `UsageError` for malformed
    attributes."""
    upper, lower = _limits(attrs, UPPER), _limits(attrs, LOWER)
    return {
        symbol: (lower.get(symbol.name, symbol.least), upper.get(symbol.name))
        for symbol in symbols
        if symbol.name in upper or symbol.name in lower
    }


def _limits(attrs: Mapping[str, Any], key: str) -> Mapping[str, int]:
    found = attrs.get(key, {})
    if is_mapping(found) and all(type(limit) is int for limit in found.values()):
        return found
    raise UsageError(
        "bad-value",
        f"{key} must map names of symbolic variables to integers, got {found!r}",
        help=f'write R.func_attr({{"{key}": {{"n": 2048}}}})',
    )


def requirements(attrs: Mapping[str, Any], symbols: Iterable[SymVar]) -> Iterator[tuple[Dim, str]]:
    """The conditions of the declared ranges on the values of these symbols, each with the message if it does not
    hold."""
    for symbol, (low, high) in declared_bounds(attrs, symbols).items():
        if high is not None:
            yield dim_op("le", symbol, high), f"{symbol} exceeds its upper bound {high}"
        if low is not None and low > 0:
            yield dim_op("le", low, symbol), f"{symbol} is less than its lower bound {low}"


def narrowed(known: Range | None, more: Range) -> Range:
    """The intersection of two ranges."""
    if known is None:
        return more
    lower = [limit for limit in (known[0], more[0]) if limit is not None]
    upper = [limit for limit in (known[1], more[1]) if limit is not None]
    return max(lower, default=None), min(upper, default=None)


def bounds_of(function: Function) -> Bounds:
    """The declared ranges of the symbols in a function's parameters."""
    if UPPER not in function.attrs and LOWER not in function.attrs:
        return {}
    params = [param.annotation for param in function.params]
    return declared_bounds(function.attrs, free_sym_vars(params))


def assumed() -> Bounds:
    """The ranges assumed here: those of the enclosing `assuming` blocks."""
    return _assumed.get()


@contextmanager
def assuming(bounds: Bounds) -> Iterator[None]:
    """Assume these ranges in the block, in addition to those assumed already: used while the body of a function is
    processed."""
    if not bounds:
        yield
        return
    token = _assumed.set({**_assumed.get(), **bounds})
    try:
        yield
    finally:
        _assumed.reset(token)


@contextmanager
def assuming_nothing() -> Iterator[None]:
    """Assume no declared ranges in the block: proofs made there hold everywhere."""
    token = _assumed.set({})
    try:
        yield
    finally:
        _assumed.reset(token)
