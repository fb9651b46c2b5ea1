"""Activation functions in jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def prelu(op: Any, x: Any, alpha: Any) -> Any:
    shape = [-1 if a == op.axis % x.ndim else 1 for a in range(x.ndim)]
    return jnp.where(x > 0, x, x * alpha.reshape(shape))


def softplus(op: Any, x: Any) -> Any:
    scaled = x * op.beta
    return jnp.where(scaled > op.threshold, x, jax.nn.softplus(scaled) / op.beta)


JAX: dict[str, Callable[..., Any]] = {
    "nn.relu": lambda _, x: jax.nn.relu(x),
    "nn.relu6": lambda _, x: jax.nn.relu6(x),
    "nn.leakyrelu": lambda op, x: jax.nn.leaky_relu(x, op.alpha),
    "nn.prelu": prelu,
    "nn.selu": lambda _, x: jax.nn.selu(x),
    "nn.gelu": lambda _, x: jax.nn.gelu(x, approximate=False),
    "nn.gelu_tanh": lambda _, x: jax.nn.gelu(x, approximate=True),
    "nn.silu": lambda _, x: jax.nn.silu(x),
    "nn.softplus": softplus,
}
