"""What jax says of `relaxpy/op/binary.py`. XLA leaves integer division by zero to the machine; ours gives 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function without attributes."""
    return lambda _, *xs: function(*xs)


def zero_by_zero(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with 0 where an integer is divided by 0."""

    def divided(_: Any, x1: Any, x2: Any) -> Any:
        if jnp.issubdtype(x1.dtype, jnp.floating):
            return function(x1, x2)
        x1, x2 = jnp.broadcast_arrays(x1, x2)
        return jnp.where(x2 == 0, 0, function(x1, jnp.where(x2 == 0, 1, x2)))

    return divided


def toward_zero(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; of integers, its result in float64, rounded toward zero."""

    def rounded(_: Any, x1: Any, x2: Any) -> Any:
        if jnp.issubdtype(x1.dtype, jnp.floating):
            return function(x1, x2)
        return jnp.trunc(function(x1.astype("float64"), x2.astype("float64"))).astype(x1.dtype)

    return rounded


def power(_: Any, x1: Any, x2: Any) -> Any:
    if jnp.issubdtype(x1.dtype, jnp.floating):
        return jnp.power(x1, x2)
    x1, x2 = jnp.broadcast_arrays(x1, x2)
    # jax has no negative powers of integers.
    return NotImplemented if (x2 < 0).any() else jnp.power(x1, x2)


def shift(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that broadcasts nothing by itself."""
    return lambda _, x1, x2: function(*jnp.broadcast_arrays(x1, x2))


NAMES = "add subtract multiply maximum minimum logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor"

JAX: dict[str, Callable[..., Any]] = {
    **{name: of(getattr(jnp, name)) for name in NAMES.split()},
    "atan2": toward_zero(jnp.arctan2),
    "log_add_exp": toward_zero(jnp.logaddexp),
    "nextafter": shift(jax.lax.nextafter),
    "divide": zero_by_zero(lambda x1, x2: jax.lax.div(*jnp.broadcast_arrays(x1, x2))),
    "mod": zero_by_zero(jnp.fmod),
    "floor_divide": zero_by_zero(jnp.floor_divide),
    "floor_mod": zero_by_zero(jnp.mod),
    "power": power,
    "left_shift": shift(jax.lax.shift_left),
    "right_shift": shift(jax.lax.shift_right_arithmetic),
    "ewise_fma": of(lambda x1, x2, x3: x1 * x2 + x3),
}
