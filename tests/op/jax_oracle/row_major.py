"""Elements in row-major order in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

JAX: dict[str, Callable[..., Any]] = {
    "reshape": lambda _, x, shape: jnp.reshape(x, shape),
    "flatten": lambda _, x: jnp.ravel(x),
    "size": lambda _, x: jnp.int64(jnp.size(x)),
}
