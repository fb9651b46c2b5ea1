"""Drawing from distributions in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


def _multinomial(op: Any, prob: Any, uniform_sample: Any, sample_indices: Any) -> Any:
    if not len(prob):
        return jnp.zeros(uniform_sample.shape, str(op.dtype))
    wide = prob.astype("float64" if str(prob.dtype) == "float64" else "float32")
    sums = jnp.cumsum(wide, axis=1)
    rows = sums[jnp.clip(sample_indices[:, 0].astype("int64"), 0, len(prob) - 1)]
    u = uniform_sample.astype(rows.dtype)
    first = jnp.argmax(rows > u, axis=1)
    last = jnp.argmax(rows == rows[:, -1:], axis=1)
    return jnp.where(rows[:, -1:] > u, first[:, None], last[:, None]).astype(str(op.dtype))


JAX: dict[str, Callable[..., Any]] = {"multinomial_from_uniform": _multinomial}
