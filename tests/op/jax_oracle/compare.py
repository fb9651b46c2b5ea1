"""What jax says of `relaxpy/op/compare.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

JAX: dict[str, Callable[..., Any]] = {
    "equal": lambda _, x1, x2: x1 == x2,
    "not_equal": lambda _, x1, x2: x1 != x2,
    "less": lambda _, x1, x2: jnp.less(x1, x2),
    "less_equal": lambda _, x1, x2: jnp.less_equal(x1, x2),
    "greater": lambda _, x1, x2: jnp.greater(x1, x2),
    "greater_equal": lambda _, x1, x2: jnp.greater_equal(x1, x2),
}
