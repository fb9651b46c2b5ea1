"""Attention in jax: `jax.nn.dot_product_attention`; masks are given to it as such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def attention(op: Any, query: Any, key: Any, value: Any, bias: Any = None) -> Any:
    if value.shape[-1] != query.shape[-1]:  # jax wants one width: the rest are zeros
        wide = max(value.shape[-1], query.shape[-1])
        scale = op.scale or query.shape[-1] ** -0.5
        q, k, v = (
            jnp.pad(x, [(0, 0)] * 3 + [(0, wide - x.shape[-1])]) for x in (query, key, value)
        )
        result = _attend(op, q, k, v, bias, scale)
        return result if result is NotImplemented else result[..., : value.shape[-1]]
    return _attend(op, query, key, value, bias, op.scale)


def _attend(op: Any, query: Any, key: Any, value: Any, bias: Any, scale: Any) -> Any:
    mask = None
    if op.causal_mask is not None:
        queries, keys = query.shape[1], key.shape[1]
        offset = abs(keys - queries) if op.causal_mask == "BottomRight" else 0
        mask = jnp.tril(jnp.ones((queries, keys), bool), offset)
        if op.window_size is not None:
            mask &= jnp.triu(jnp.ones((queries, keys), bool), offset - op.window_size + 1)
        if not mask.any(axis=1).all():
            return NotImplemented  # a query that sees nothing: jax gives a mean, we give 0
        mask = mask[None, None]
    return jax.nn.dot_product_attention(query, key, value, bias=bias, mask=mask, scale=scale)


JAX: dict[str, Callable[..., Any]] = {
    "nn.attention": attention,
    "nn.attention_bias": attention,
}
