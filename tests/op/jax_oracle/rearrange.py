"""Elements moved, in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


def pixel_shuffle(op: Any, x: Any) -> Any:
    """Pixel by pixel: the squares put side by side."""
    r = op.upscale_factor
    rows = [
        jnp.stack([x[..., i * r + j :: r * r, :, :] for j in range(r)], -1).reshape(
            *x.shape[:-3], x.shape[-3] // (r * r), x.shape[-2], x.shape[-1] * r
        )
        for i in range(r)
    ]
    return jnp.stack(rows, -2).reshape(*rows[0].shape[:-2], x.shape[-2] * r, x.shape[-1] * r)


JAX: dict[str, Callable[..., Any]] = {
    "nn.batch_flatten": lambda _, x: jnp.reshape(x, (x.shape[0], -1)) if x.size else NotImplemented,
    "nn.pixel_shuffle": pixel_shuffle,
}
