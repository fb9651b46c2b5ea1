"""What jax says of `relaxpy/op/datatype.py`. XLA's conversions saturate, too, and make 0 of a NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _bitcast(op: Any, x: Any) -> Any:
    return jax.lax.bitcast_convert_type(x.astype("uint8") if x.dtype == bool else x, op.dtype.numpy)


JAX: dict[str, Callable[..., Any]] = {
    "bitcast": _bitcast,
    "astype": lambda op, x: jnp.astype(x, op.dtype.numpy),
    "wrap_param": lambda op, x: jnp.astype(x, op.dtype.numpy),
}
