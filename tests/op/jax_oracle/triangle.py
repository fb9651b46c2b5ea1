"""What jax says of `relaxpy/op/triangle.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

JAX: dict[str, Callable[..., Any]] = {
    "eye": lambda op, n, m=None, k=None: jnp.eye(n, m, k or 0, op.dtype.numpy),
    "eye_like": lambda op, x, k=None: jnp.eye(
        *x.shape, k or 0, op.dtype.numpy if op.dtype else x.dtype
    ),
    "triu": lambda _, x, k=None: jnp.triu(x, k or 0),
    "tril": lambda _, x, k=None: jnp.tril(x, k or 0),
}
