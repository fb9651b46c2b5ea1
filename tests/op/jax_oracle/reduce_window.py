"""What jax says of `relaxpy/op/reduce_window.py`: windows reduced from the neutral element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from relaxpy.op.data_layout import per_axis


def _reduce_window(op: Any, x: Any, window: Any, padding: Any = ()) -> Any:
    combine = {
        "sum": jax.lax.add, "prod": jax.lax.mul, "max": jax.lax.max, "min": jax.lax.min,
    }[op.reduction]  # fmt: skip
    if x.dtype == bool:
        combine = jax.lax.bitwise_or if op.reduction == "max" else jax.lax.bitwise_and
        start: Any = op.reduction == "min"
    else:
        low, high = (-jnp.inf, jnp.inf) if x.dtype.kind == "f" else _limits(x.dtype)
        start = {"sum": 0, "prod": 1, "max": low, "min": high}[op.reduction]
    narrow = x.dtype == jnp.float16 and op.reduction in ("sum", "prod")
    numbers = (op.strides, op.base_dilation, op.dilation)
    strides, base, dilation = (per_axis(n, x.ndim) for n in numbers)
    around = list(zip(padding[::2], padding[1::2], strict=True)) or [(0, 0)] * x.ndim
    wide = x.astype("float32") if narrow else x
    start = jnp.asarray(start, wide.dtype)
    found = jax.lax.reduce_window(wide, start, combine, window, strides, around, base, dilation)
    return found.astype(x.dtype)


def _limits(dtype: Any) -> tuple[int, int]:
    return jnp.iinfo(dtype).min, jnp.iinfo(dtype).max


JAX: dict[str, Callable[..., Any]] = {"reduce_window": _reduce_window}
