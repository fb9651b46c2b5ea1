"""Sorting in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


def _order(x: Any, axis: int, descending: bool) -> Any:
    if not descending:
        return jnp.argsort(x, axis=axis, stable=True)
    # jax puts NaNs last in descending order too; turned around twice, they come first, in order.
    backwards = jnp.argsort(jnp.flip(x, axis), axis=axis, stable=True)
    return x.shape[axis] - 1 - jnp.flip(backwards, axis)


def _sort(op: Any, x: Any) -> Any:
    found = jnp.sort(x, axis=op.axis)
    return jnp.flip(found, op.axis) if op.descending else found


def _topk(op: Any, data: Any) -> Any:
    order = _order(data, op.axis, op.largest)
    if op.k >= 1:
        order = jnp.take(order, jnp.arange(op.k), axis=op.axis)
    values = jnp.take_along_axis(data, order, axis=op.axis)
    found = {"values": values, "indices": order.astype(str(op.dtype))}
    return tuple(found.values()) if op.ret_type == "both" else found[op.ret_type]


JAX: dict[str, Callable[..., Any]] = {
    "sort": _sort,
    "argsort": lambda op, x: _order(x, op.axis, op.descending).astype(str(op.dtype)),
    "topk": _topk,
}
