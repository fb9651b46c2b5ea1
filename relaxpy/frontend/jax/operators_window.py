"""Windows that move over an array, and reductions by a function of the user's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.jax.importer import Site
from relaxpy.frontend.jax.operators_elementwise import constant, maximum, minimum
from relaxpy.frontend.jax.operators_shape import bordered, spread
from relaxpy.frontend.jax.table import PRIMITIVES, primitive
from relaxpy.ir import Dim, Expr

Combine = Callable[[Site, Expr, Expr], Any]

_COMBINES: dict[str, Combine] = {
    "add": lambda at, x, y: op.add(x, y),
    "mul": lambda at, x, y: op.multiply(x, y),
    "max": maximum,
    "min": minimum,
    "and": lambda at, x, y: op.bitwise_and(x, y),
    "or": lambda at, x, y: op.bitwise_or(x, y),
    "xor": lambda at, x, y: op.bitwise_xor(x, y),
}
"""Name of a primitive → what it makes of two tensors."""

_REDUCES = {
    "add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min", "and": "reduce_and",
    "or": "reduce_or", "xor": "reduce_xor",
}  # fmt: skip


def windows(
    at: Site, x: Expr, combine: Combine, neutral: Expr, window_dimensions: Sequence[int],
    window_strides: Sequence[int], padding: Sequence[Any], base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> Any:  # fmt: skip
    """Combine the elements of each window, one axis after the other: these functions may be taken in any order."""
    shape = at.shape
    for axis, width in enumerate(window_dimensions):
        before, after = at.dims(padding[axis])
        x = spread(at, x, axis, Dim.of(base_dilation[axis] - 1), neutral)
        x = bordered(at, x, axis, before, after, neutral)
        stride, apart = window_strides[axis], window_dilation[axis]
        if width == 1 and stride == 1:
            continue
        found = None
        for k in range(width):
            start = k * apart
            end = start + (shape[axis] - 1) * stride + 1
            row = at.emit(op.strided_slice(x, [axis], [start], [end], [stride]))
            found = row if found is None else at.emit(combine(at, found, row))
        assert found is not None
        x = found
    return x


def _neutral(at: Site, x: Expr, name: str) -> Any:
    dtype = at.dtype_of(x)
    if name in ("max", "min") and not dtype.is_bool:
        low, high = (-math.inf, math.inf) if dtype.is_float else map(int, dtype.limits)
        return constant(low if name == "max" else high, dtype)
    if name == "and":
        return constant(True if dtype.is_bool else -1, dtype)
    return constant(name in ("mul", "min"), dtype)


@primitive("reduce_window_sum")
def reduce_window_sum(at: Site, x: Expr, **window: Any) -> Any:
    return windows(at, x, _COMBINES["add"], _neutral(at, x, "add"), **window)


@primitive("reduce_window_max")
def reduce_window_max(at: Site, x: Expr, **window: Any) -> Any:
    return windows(at, x, _COMBINES["max"], _neutral(at, x, "max"), **window)


@primitive("reduce_window_min")
def reduce_window_min(at: Site, x: Expr, **window: Any) -> Any:
    return windows(at, x, _COMBINES["min"], _neutral(at, x, "min"), **window)


def _one_primitive(at: Site, jaxpr: Any, count: int) -> str:
    """The primitive that a function of two arrays is. UsageError (`jax-operator`) for any other function."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    eqns = jaxpr.eqns
    while len(eqns) == 1 and eqns[0].primitive.name in ("jit", "pjit"):
        eqns = eqns[0].params["jaxpr"].jaxpr.eqns
    if count == 1 and len(eqns) == 1 and eqns[0].primitive.name in _COMBINES:
        return eqns[0].primitive.name
    raise at.fail(
        "jax-operator",
        f"{at.eqn.primitive.name} takes the functions {', '.join(_COMBINES)} of one array here",
        help="write the reduction with jax.lax.scan or jax.lax.associative_scan",
    )


@primitive("reduce_window")
def reduce_window(at: Site, *operands: Any, jaxpr: Any, consts: Any = (), **window: Any) -> Any:
    count = len(operands) // 2
    name = _one_primitive(at, jaxpr, count)
    x, first = operands
    # The start takes part once in each window.
    found = windows(at, x, _COMBINES[name], _neutral(at, x, name), **window)
    return _COMBINES[name](at, at.emit(found), first)


@primitive("reduce")
def reduce(at: Site, *operands: Any, jaxpr: Any, dimensions: Sequence[int], **_: Any) -> Any:
    name = _one_primitive(at, jaxpr, len(operands) // 2)
    x, first = operands
    found = at.emit(PRIMITIVES[_REDUCES[name]](at, x, axes=tuple(dimensions)))
    return _COMBINES[name](at, at.cast(found, at.dtype), first)
