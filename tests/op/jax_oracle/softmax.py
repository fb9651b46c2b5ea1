"""Softmax and its logarithm in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

JAX: dict[str, Callable[..., Any]] = {
    "nn.softmax": lambda op, x: jax.nn.softmax(x, op.axis) if x.size else NotImplemented,
    "nn.log_softmax": lambda op, x: jax.nn.log_softmax(x, op.axis) if x.size else NotImplemented,
}
