"""What jax says of `relaxpy/op/unary.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from relaxpy.ir.dtype import DType


def of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function without attributes."""
    return lambda _, *xs: function(*xs)


def clip(op: Any, x: Any) -> Any:
    low, high = op.bounds(DType(x.dtype))
    return jnp.clip(x, low, high)


NAMES = (
    "exp log sqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh negative abs sign square floor ceil round "
    "trunc isfinite isinf isnan logical_not bitwise_not"
)

JAX: dict[str, Callable[..., Any]] = {
    **{name: of(getattr(jnp, name)) for name in NAMES.split()},
    "rsqrt": of(jax.lax.rsqrt),
    "erf": of(jax.lax.erf),
    "sigmoid": of(jax.nn.sigmoid),
    "clip": clip,
    "population_count": of(jax.lax.population_count),
    "count_leading_zeros": of(jax.lax.clz),
    "reduce_precision": lambda op, x: jax.lax.reduce_precision(
        x, op.exponent_bits, op.mantissa_bits
    ),
}
