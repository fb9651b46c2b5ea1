"""What jax says of `relaxpy/op/create.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp


def dtype_of(op: Any, x: Any) -> Any:
    return op.dtype.numpy if op.dtype else x.dtype


def full(op: Any, shape: Any, fill_value: Any) -> Any:
    return jnp.full(shape, fill_value, dtype_of(op, fill_value))


def full_like(op: Any, x: Any, fill_value: Any) -> Any:
    return jnp.full_like(x, jnp.asarray(fill_value).astype(dtype_of(op, x)), dtype_of(op, x))


def arange(op: Any, start: Any, end: Any = None, step: Any = None) -> Any:
    first, last = (0, start) if end is None else (start, end)
    return jnp.arange(first, last, 1 if step is None else step).astype(op.dtype.numpy)


def hamming_window(op: Any, window_size: int) -> Any:
    if not (op.alpha == 0.54 and op.beta == 0.46):  # jax has Hamming's own numbers
        return NotImplemented
    window = jnp.hamming(window_size + 1)[:-1] if op.periodic else jnp.hamming(window_size)
    return window.astype(op.dtype.numpy)


JAX: dict[str, Callable[..., Any]] = {
    "zeros": lambda op, shape: jnp.zeros(shape, op.dtype.numpy),
    "ones": lambda op, shape: jnp.ones(shape, op.dtype.numpy),
    "full": full,
    "arange": arange,
    "float_arange": lambda op: jnp.arange(op.start, op.end, op.step).astype(op.dtype.numpy),
    "zeros_like": lambda op, x: jnp.zeros_like(x, dtype_of(op, x)),
    "ones_like": lambda op, x: jnp.ones_like(x, dtype_of(op, x)),
    "full_like": full_like,
    "hamming_window": hamming_window,
}
