"""Matrix products in jax, narrow floats in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


def _wide(dtype: Any) -> str:
    return "float32" if str(dtype) in ("float16", "bfloat16") else str(dtype)


def _matmul(op: Any, x1: Any, x2: Any) -> Any:
    dtype = str(op.out_dtype or x1.dtype)
    wide = _wide(dtype)
    return jnp.matmul(x1.astype(wide), x2.astype(wide)).astype(dtype)


def _linear(op: Any, data: Any, weight: Any, bias: Any = None) -> Any:
    dtype = str(op.out_dtype or data.dtype)
    wide = _wide(dtype)
    found = jnp.matmul(data.astype(wide), weight.astype(wide).T)
    return (found if bias is None else found + bias.astype(wide)).astype(dtype)


JAX: dict[str, Callable[..., Any]] = {
    "matmul": _matmul,
    "linear": _linear,
    "outer": lambda op, x1, x2: jnp.outer(x1, x2),
}
