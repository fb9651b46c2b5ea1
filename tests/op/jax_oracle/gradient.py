"""Gradients as jax finds them, of what its own operators compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.op.jax_oracle.loss import JAX as LOSSES
from tests.op.jax_oracle.pool import avg_pool, canonical, max_pool


def _wide(x: Any) -> Any:
    return x.astype("float32") if str(x.dtype) in ("float16", "bfloat16") else x


def _pulled_back(function: Callable[..., Any], x: Any, output_grad: Any) -> Any:
    """The gradient of `function` at x for a gradient of its result."""
    _, pull = jax.vjp(function, _wide(x))
    (found,) = pull(_wide(output_grad))
    return found.astype(x.dtype)


def _nll_loss(op: Any, output_grad: Any, predictions: Any, targets: Any, *weights: Any) -> Any:
    wide = tuple(map(_wide, weights))
    return _pulled_back(
        lambda x: LOSSES["nn.nll_loss"](op, x, targets, *wide), predictions, output_grad
    )


def _take(op: Any, output_grad: Any, x: Any, indices: Any) -> Any:
    axis = op.axis or 0
    if x.shape[axis] == 0:
        return jnp.zeros_like(x)
    places = jnp.clip(indices.astype("int64"), 0, x.shape[axis] - 1)
    return _pulled_back(lambda x: jnp.take(x, places, axis=axis, mode="clip"), x, output_grad)


def _max_pool(op: Any, output_grad: Any, data: Any) -> Any:
    # jax has no gradient of dilated windows, nor where the last places are in no window.
    sizes = canonical(op, data).shape[2:]
    ends = [
        (op.reach(n, w) // w.stride - 1) * w.stride + w.span - w.before
        for n, w in zip(sizes, op.windows())
    ]
    if any(w.dilation != 1 for w in op.windows()) or any(end < n for end, n in zip(ends, sizes)):
        return NotImplemented
    return _pulled_back(lambda x: max_pool(op, x), data, output_grad)


def _avg_pool(op: Any, output_grad: Any, data: Any) -> Any:
    return _pulled_back(lambda x: avg_pool(op, x), data, output_grad)


JAX: dict[str, Callable[..., Any]] = {
    "grad.avg_pool2d_backward": _avg_pool,
    "grad.max_pool2d_backward": _max_pool,
    "grad.nll_loss_backward": _nll_loss,
    "grad.take_backward": _take,
}
