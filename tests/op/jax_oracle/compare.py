"""What jax says of `relaxpy/op/compare.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


def _compared(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def compare(_: Any, x1: Any, x2: Any) -> Any:
        if "uint64" in (x1.dtype, x2.dtype) and x1.dtype != x2.dtype:
            return NotImplemented  # jax compares it with signed numbers as floats
        if x1.dtype.kind == "i" and x2.dtype.kind == "f":
            x1 = x1.astype("float64")  # jax: the float's dtype, whatever it holds
        return function(x1, x2)

    return compare


JAX: dict[str, Callable[..., Any]] = {
    "equal": _compared(jnp.equal),
    "not_equal": _compared(jnp.not_equal),
    "less": _compared(jnp.less),
    "less_equal": _compared(jnp.less_equal),
    "greater": _compared(jnp.greater),
    "greater_equal": _compared(jnp.greater_equal),
}
