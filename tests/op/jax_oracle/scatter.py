"""Writing at places in jax, which leaves updates out of range out; of several replacements any may stay there, and
means it has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np


def _scattered(x: Any, places: tuple[Any, ...], updates: Any, reduction: str) -> Any:
    dtype = x.dtype
    if reduction in ("add", "mul") and str(dtype) in ("float16", "bfloat16"):
        x, updates = x.astype("float32"), updates.astype("float32")
    where = x.at[places]
    match reduction:
        case "update" if _repeats(x, places):
            return NotImplemented
        case "update":
            return where.set(updates, mode="drop")
        case "add":
            return where.add(updates, mode="drop").astype(dtype)
        case "mul":
            return where.multiply(updates, mode="drop").astype(dtype)
        case "min":
            return where.min(updates, mode="drop")
        case "max":
            return where.max(updates, mode="drop")
        case _:
            total = where.add(updates, mode="drop")
            count = jnp.ones(x.shape, "int64").at[places].add(1, mode="drop")
            return total // count if jnp.issubdtype(dtype, jnp.integer) else total / count


def _repeats(x: Any, places: tuple[Any, ...]) -> bool:
    """Whether a place that exists is named more than once."""
    ones = np.ones((), "int64")
    return bool((jnp.zeros(x.shape, "int64").at[places].add(ones, mode="drop") > 1).any())


def _scatter_elements(op: Any, x: Any, indices: Any, updates: Any) -> Any:
    places = list(jnp.indices(indices.shape))
    places[op.axis] = indices
    return _scattered(x, tuple(places), updates, op.reduction)


def _scatter_nd(op: Any, x: Any, indices: Any, updates: Any) -> Any:
    places = tuple(jnp.moveaxis(indices, -1, 0))
    return _scattered(x, places, updates, op.reduction) if places else NotImplemented


JAX: dict[str, Callable[..., Any]] = {
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "index_put": lambda op, x, indices, values: _scattered(
        x, tuple(indices), values, "add" if op.accumulate else "update"
    ),
}
