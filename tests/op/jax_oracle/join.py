"""Several tensors as one, one as several, in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


def _split(op: Any, x: Any, cuts: Any) -> Any:
    if isinstance(cuts, int):
        step = -(-x.shape[op.axis] // cuts)
        cuts = [step * i for i in range(1, cuts)]
    parts = tuple(jnp.split(x, list(cuts), op.axis))
    return parts if len(parts) > 1 else parts[0]


JAX: dict[str, Callable[..., Any]] = {
    "concat": lambda op, tensors: jnp.concatenate(tensors, op.axis),
    "stack": lambda op, tensors: jnp.stack(tensors, op.axis),
    "meshgrid": lambda op, tensors: tuple(
        jnp.meshgrid(*map(jnp.atleast_1d, tensors), indexing=op.indexing)
    ),
    "split": _split,
}
