"""What jax says of `relaxpy/op/special.py`, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special


def _wide(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, x: function(x.astype("float64")).astype(x.dtype)


def _digamma(_: Any, x: Any) -> Any:
    """jax has a NaN at 0."""
    found = jax.lax.digamma(x.astype("float64"))
    return jnp.where(x == 0, -1 / x.astype("float64"), found).astype(x.dtype)


JAX: dict[str, Callable[..., Any]] = {
    "erfc": _wide(jax.lax.erfc),
    "lgamma": _wide(jax.lax.lgamma),
    "digamma": _digamma,
    "bessel_i0e": _wide(jax.lax.bessel_i0e),
    "bessel_i1e": _wide(jax.lax.bessel_i1e),
    "bessel_i0": _wide(jax.scipy.special.i0),
    "bessel_i1": _wide(jax.scipy.special.i1),
    "ndtri": _wide(jax.scipy.special.ndtri),
    "log_ndtr": _wide(jax.scipy.special.log_ndtr),
}
