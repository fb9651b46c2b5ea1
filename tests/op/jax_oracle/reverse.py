"""Elements backwards in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _reverse_sequence(op: Any, x: Any, lengths: Any) -> Any:
    rows = jnp.moveaxis(x, (op.batch_axis, op.seq_axis), (0, 1))
    if not rows.shape[0]:
        return x

    def one(row: Any, length: Any) -> Any:
        place = jnp.arange(row.shape[0])
        length = jnp.minimum(length, row.shape[0])
        return row[jnp.where(place < length, length - 1 - place, place)]

    return jnp.moveaxis(jax.vmap(one)(rows, lengths), (0, 1), (op.batch_axis, op.seq_axis))


JAX: dict[str, Callable[..., Any]] = {
    "flip": lambda op, x: jnp.flip(x, op.axis),
    "reverse_sequence": _reverse_sequence,
}
