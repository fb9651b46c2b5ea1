"""Losses in jax, in float32 at least."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _wide(x: Any) -> Any:
    return x.astype("float32") if str(x.dtype) in ("float16", "bfloat16") else x


def _cross_entropy(op: Any, predictions: Any, labels: Any) -> Any:
    x = _wide(predictions)
    total = -jnp.vdot(x, _wide(labels))
    return (total / x.shape[0] if x.ndim > 1 else total).astype(predictions.dtype)


def _nll_loss(op: Any, predictions: Any, targets: Any, weights: Any = None) -> Any:
    x = _wide(predictions)
    axis = min(1, x.ndim - 1)
    classes = x.shape[axis]
    chosen = jax.nn.one_hot(targets.astype("int64"), classes, axis=axis, dtype=x.dtype)
    counts = (targets != op.ignore_index) & (targets >= 0) & (targets < classes)
    each = jnp.ones(classes, x.dtype) if weights is None else _wide(weights)
    weight = jnp.where(counts, each[jnp.clip(targets.astype("int64"), 0, classes - 1)], 0)
    found = -jnp.sum(x * chosen, axis=axis) * weight
    if op.reduction != "none":
        found = jnp.sum(found)
    if op.reduction == "mean":
        found = found / jnp.sum(weight)
    return found.astype(predictions.dtype)


JAX: dict[str, Callable[..., Any]] = {
    "nn.cross_entropy_with_logits": _cross_entropy,
    "nn.nll_loss": _nll_loss,
}
