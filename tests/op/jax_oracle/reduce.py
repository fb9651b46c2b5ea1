"""Reductions in jax, narrow floats in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


def _wide(x: Any) -> Any:
    return x.astype("float32") if str(x.dtype) in ("float16", "bfloat16") else x


def _reduction(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    def run(op: Any, x: Any) -> Any:
        wide = _wide(x)
        return function(wide, axis=op.axis, keepdims=op.keepdims, **options).astype(x.dtype)

    return run


def _same_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of a function that would widen narrow integers."""

    def run(op: Any, x: Any) -> Any:
        wide = _wide(x)
        found = function(wide, axis=op.axis, keepdims=op.keepdims, dtype=wide.dtype)
        return found.astype(x.dtype)

    return run


def _extreme(function: Callable[..., Any], low: bool) -> Callable[..., Any]:
    def run(op: Any, x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jnp.floating):
            start = -jnp.inf if low else jnp.inf
        else:
            start = jnp.iinfo(x.dtype).min if low else jnp.iinfo(x.dtype).max
        return function(x, axis=op.axis, keepdims=op.keepdims, initial=start)

    return run


JAX: dict[str, Callable[..., Any]] = {
    "sum": _same_dtype(jnp.sum),
    "prod": _same_dtype(jnp.prod),
    "mean": _reduction(jnp.mean),
    "variance": _reduction(jnp.var),
    "std": _reduction(jnp.std),
    "max": _extreme(jnp.max, low=True),
    "min": _extreme(jnp.min, low=False),
    "any": lambda op, x: jnp.any(x, axis=op.axis, keepdims=op.keepdims),
    "all": lambda op, x: jnp.all(x, axis=op.axis, keepdims=op.keepdims),
}
