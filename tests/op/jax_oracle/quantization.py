"""What jax says of `relaxpy/op/quantization.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def one_hot(op: Any, indices: Any) -> Any:
    hit = jax.nn.one_hot(indices, op.depth, dtype=bool, axis=op.axis)
    return jnp.where(hit, op.on_value, op.off_value).astype(op.dtype_of_values().numpy)


def quantize(op: Any, data: Any, scale: Any, zero_point: Any) -> Any:
    step, zero = (
        jnp.moveaxis(jnp.atleast_1d(x), 0, -1).astype("float32") for x in (scale, zero_point)
    )
    moved = jnp.moveaxis(jnp.atleast_1d(data), op.axis % max(data.ndim, 1), -1).astype("float32")
    value = jnp.round(moved / step) + zero
    moved_back = jnp.moveaxis(value, -1, op.axis % max(data.ndim, 1)).reshape(data.shape)
    return moved_back.astype(op.out_dtype.numpy)  # saturating


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
