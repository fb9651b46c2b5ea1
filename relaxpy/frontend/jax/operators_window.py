"""Windows that move over an array, and reductions by a function of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.jax.importer import Site
from relaxpy.frontend.jax.operators_elementwise import maximum, minimum
from relaxpy.frontend.jax.table import PRIMITIVES, primitive
from relaxpy.ir import Expr

_COMBINES: dict[str, Any] = {
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
_WINDOWS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
_OF_BOOLS = {"and": "min", "or": "max"}


def windows(
    at: Site, x: Expr, reduction: str, window_dimensions: Sequence[Any], window_strides: Sequence[int],
    padding: Sequence[Any], base_dilation: Sequence[int], window_dilation: Sequence[int],
) -> Any:  # fmt: skip
    """Each window, reduced."""
    return op.reduce_window(
        x, at.dims(window_dimensions), at.dims([each for pair in padding for each in pair]),
        reduction=reduction, strides=list(window_strides), dilation=list(window_dilation),
        base_dilation=list(base_dilation),
    )  # fmt: skip


@primitive("reduce_window_sum", "reduce_window_max", "reduce_window_min")
def reduce_window_of(at: Site, x: Expr, **window: Any) -> Any:
    return windows(at, x, at.eqn.primitive.name.rpartition("_")[2], **window)


@primitive("select_and_scatter_add")
def select_and_scatter_add(
    at: Site, source: Expr, x: Expr, select_prim: Any, window_dimensions: Sequence[Any],
    window_strides: Sequence[int], padding: Sequence[Any], **_: Any,
) -> Any:  # fmt: skip
    return op.select_and_scatter_add(
        source, x, at.dims(window_dimensions), at.dims([each for pair in padding for each in pair]),
        select={"ge": "max", "le": "min"}[select_prim.name], strides=list(window_strides),
    )  # fmt: skip


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
    """The start takes part once in each window."""
    name = _one_primitive(at, jaxpr, len(operands) // 2)
    x, first = operands
    known = {**_WINDOWS, **(_OF_BOOLS if at.dtype.is_bool else {})}
    if name not in known:
        raise at.fail(
            "jax-operator",
            f"a window reduced by {name} is not supported",
            help=f"the functions of windows are {', '.join(known)}",
        )
    found = at.emit(windows(at, x, known[name], **window))
    return _COMBINES[name](at, found, first)


@primitive("reduce")
def reduce(at: Site, *operands: Any, jaxpr: Any, dimensions: Sequence[int], **_: Any) -> Any:
    name = _one_primitive(at, jaxpr, len(operands) // 2)
    x, first = operands
    found = at.emit(PRIMITIVES[_REDUCES[name]](at, x, axes=tuple(dimensions)))
    return _COMBINES[name](at, at.cast(found, at.dtype), first)
