"""What jax says of `relaxpy/op/quantization.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32


def one_hot(op: Any, indices: Any) -> Any:
    hit = jax.nn.one_hot(indices, op.depth, dtype=bool, axis=op.axis)
    return jnp.where(hit, op.on_value, op.off_value).astype(op.dtype_of_values().numpy)


def quantize(op: Any, data: Any, scale: Any, zero_point: Any) -> Any:
    step, zero = (
        jnp.moveaxis(jnp.atleast_1d(x), 0, -1).astype("float32") for x in (scale, zero_point)
    )
    moved = jnp.moveaxis(jnp.atleast_1d(data), op.axis % max(data.ndim, 1), -1).astype("float32")
    value = jnp.moveaxis(moved / step, -1, op.axis % max(data.ndim, 1)).reshape(data.shape)
    value = ROUNDED[op.rounding](value, op.seed)
    whole = jnp.moveaxis(jnp.atleast_1d(value), op.axis % max(data.ndim, 1), -1) + zero
    codes = jnp.moveaxis(whole, -1, op.axis % max(data.ndim, 1)).reshape(data.shape)
    codes = codes.astype(op.out_dtype.numpy)  # saturating
    limits = jnp.iinfo(op.out_dtype.numpy)
    return jnp.maximum(codes, limits.min + op.narrow_range)


def half_away(value: Any, _: int) -> Any:
    return jnp.trunc(value) + jnp.sign(value) * (abs(value - jnp.trunc(value)) >= 0.5)


def stochastic(value: Any, seed: int) -> Any:
    counts = jnp.arange(value.size, dtype="uint64")
    key = jnp.array([seed >> 32, seed & 0xFFFFFFFF], "uint32")
    high = jnp.array([*(counts >> 32), *counts], "uint32")
    first = threefry_2x32(key, high)[: value.size].reshape(value.shape)
    chance = (first >> 8).astype("float32") * 2.0**-24
    return jnp.floor(value) + (chance < value - jnp.floor(value))


ROUNDED: dict[str, Callable[..., Any]] = {
    "half_to_even": lambda value, _: jnp.round(value),
    "floor": lambda value, _: jnp.floor(value),
    "ceil": lambda value, _: jnp.ceil(value),
    "half_away": half_away,
    "stochastic": stochastic,
}


def dequantize(op: Any, data: Any, scale: Any, zero_point: Any) -> Any:
    zero, step = (jnp.atleast_1d(x) for x in (zero_point, scale))
    moved = jnp.moveaxis(data, op.axis, -1).astype("float64")
    value = step.astype("float32") * (moved - zero.astype("float64")).astype("float32")
    limits = jnp.finfo(op.out_dtype.numpy)
    return jnp.moveaxis(jnp.clip(value, limits.min, limits.max), -1, op.axis).astype(
        op.out_dtype.numpy
    )


JAX: dict[str, Callable[..., Any]] = {
    "one_hot": one_hot,
    "quantize": quantize,
    "dequantize": dequantize,
}
