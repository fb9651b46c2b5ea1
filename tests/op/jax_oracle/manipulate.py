"""Axes moved, added, removed and repeated in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

JAX: dict[str, Callable[..., Any]] = {
    "permute_dims": lambda op, x: jnp.transpose(x, op.axes),
    "expand_dims": lambda op, x: jnp.expand_dims(x, op.axis),
    "squeeze": lambda op, x: jnp.squeeze(x, op.axis),
    "broadcast_to": lambda _, x, shape: jnp.broadcast_to(x, shape),
}
