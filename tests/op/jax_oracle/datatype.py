"""What jax says of `relaxpy/op/datatype.py`. XLA's conversions saturate, too, and make 0 of a NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

JAX: dict[str, Callable[..., Any]] = {
    "astype": lambda op, x: jnp.astype(x, op.dtype.numpy),
    "wrap_param": lambda op, x: jnp.astype(x, op.dtype.numpy),
}
