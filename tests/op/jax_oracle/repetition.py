"""Elements several times in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

JAX: dict[str, Callable[..., Any]] = {
    "repeat": lambda op, x: jnp.repeat(x, op.repeats, op.axis),
    "tile": lambda op, x: jnp.tile(x, op.repeats),
}
