"""Places of extremes in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


def _median(op: Any, x: Any) -> Any:
    """The lower of two in the middle, which jax calls a quantile by the method "lower"."""
    axis = op.axis[0] if isinstance(op.axis, tuple) else op.axis
    rows = x.astype("float64").reshape(-1) if axis is None else x.astype("float64")
    along = axis or 0
    values = jnp.quantile(rows, 0.5, axis=along, method="lower", keepdims=True)
    if axis is None:
        return values.reshape((1,) * x.ndim if op.keepdims else ()).astype(x.dtype)
    # Where it is: in a stable order, among equals, the one that is in the middle.
    order = jnp.argsort(rows, axis=along, stable=True)
    first_nan = jnp.argmax(jnp.isnan(rows), axis=along, keepdims=True)
    middle = jnp.take(order, jnp.array([(rows.shape[along] - 1) // 2]), axis=along)
    index = jnp.where(jnp.isnan(values), first_nan, middle)
    if not op.keepdims:
        values, index = values.squeeze(along), index.squeeze(along)
    return values.astype(x.dtype), index.astype("int64")


JAX: dict[str, Callable[..., Any]] = {
    "argmax": lambda op, x: jnp.argmax(x, axis=op.axis, keepdims=op.keepdims).astype("int64"),
    "argmin": lambda op, x: jnp.argmin(x, axis=op.axis, keepdims=op.keepdims).astype("int64"),
    "median": _median,
}
