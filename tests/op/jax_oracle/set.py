"""Results whose size depends on the data in jax, outside of a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


def _unique(op: Any, x: Any) -> Any:
    if not op.sorted or str(x.dtype) == "bfloat16":
        return NotImplemented
    values, first, inverse, counts = jnp.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=op.axis
    )
    asked = (
        (True, values), (op.return_index, first.astype("int64")),
        (op.return_inverse, inverse.reshape(-1).astype("int64")),
        (op.return_counts, counts.astype("int64")),
    )  # fmt: skip
    found = tuple(result for wanted, result in asked if wanted)
    return found if len(found) > 1 else found[0]


JAX: dict[str, Callable[..., Any]] = {
    "unique": _unique,
    "nonzero": lambda _, x: jnp.stack(jnp.nonzero(jnp.atleast_1d(x))).astype("int64"),
}
