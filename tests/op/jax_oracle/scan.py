"""Running totals in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _scan(joined: Callable[..., Any], start: float) -> Callable[..., Any]:
    def run(op: Any, data: Any) -> Any:
        dtype = op.dtype or data.dtype
        axis = 0 if op.axis is None else op.axis
        x = data.reshape(-1) if op.axis is None else data
        narrow = str(dtype) in ("float16", "bfloat16")
        found = joined(x, axis=axis, dtype="float32" if narrow else dtype)
        if op.exclusive:
            before = [(int(a == axis % x.ndim), 0) for a in range(x.ndim)]
            found = jnp.pad(found, before, constant_values=start)
            found = jnp.take(found, jnp.arange(x.shape[axis]), axis)
        return found.astype(str(dtype))

    return run


def _of_lax(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis, dtype: function(x.astype(dtype), axis % x.ndim)


JAX: dict[str, Callable[..., Any]] = {
    "cumsum": _scan(jnp.cumsum, 0),
    "cumprod": _scan(jnp.cumprod, 1),
    "cumlogsumexp": _scan(_of_lax(jax.lax.cumlogsumexp), -jnp.inf),
}
