"""Pooling in jax: `jax.lax.reduce_window`, with the padding that a last ragged window needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def windows(op: Any, x: Any, init: Any, combine: Any) -> Any:
    """`combine` over the windows of x, which has layout NC and space."""
    placed, padding = op.windows(), [(0, 0), (0, 0)]
    for size, w in zip(x.shape[2:], placed, strict=True):
        count = op.reach(size, w) // w.stride
        padding.append((w.before, (count - 1) * w.stride + w.span - size - w.before))
    return jax.lax.reduce_window(
        x, init, combine, (1, 1, *(w.size for w in placed)), (1, 1, *(w.stride for w in placed)),
        padding, window_dilation=(1, 1, *(w.dilation for w in placed)),
    )  # fmt: skip


def canonical(op: Any, x: Any) -> Any:
    return x.transpose([op.layout.index(s) for s in f"NC{op.spatial}"])


def placed(op: Any, x: Any) -> Any:
    return x.transpose([f"NC{op.spatial}".index(s) for s in op.out_layout or op.layout])


def max_pool(op: Any, data: Any) -> Any:
    if not op.layout.isalpha():
        return NotImplemented  # jax has no packed layouts
    floats = jnp.issubdtype(data.dtype, jnp.floating)
    lowest = -np.inf if floats else np.iinfo(data.dtype).min
    init = np.asarray(lowest, data.dtype)
    return placed(op, windows(op, canonical(op, data), init, jax.lax.max))


def avg_pool(op: Any, data: Any) -> Any:
    if not op.layout.isalpha():
        return NotImplemented  # jax has no packed layouts
    x = canonical(op, data).astype(jnp.float32)
    zero = np.float32(0)
    total = windows(op, x, zero, jax.lax.add)
    ones = jnp.ones_like(x)
    if op.count_include_pad:  # the padding counts; what a ragged window has beyond it does not
        pads = [(0, 0), (0, 0), *((w.before, w.after) for w in op.windows())]
        counted = type(op)(**{**_fields(op), "padding": 0})
        ones = jnp.pad(ones, pads, constant_values=1)
        count = windows(_Padded(op, counted), ones, zero, jax.lax.add)
    else:
        count = windows(op, ones, zero, jax.lax.add)
    return placed(op, total / jnp.maximum(count, 1)).astype(data.dtype)


class _Padded:
    """The windows of an operator over data that has its padding already."""

    def __init__(self, op: Any, bare: Any) -> None:
        self.op, self.bare = op, bare

    def windows(self) -> list[Any]:
        return self.bare.windows()

    def reach(self, size: int, w: Any) -> int:
        own = next(o for o in self.op.windows() if o.letter == w.letter)
        return self.op.reach(size - own.before - own.after, own)


def _fields(op: Any) -> dict[str, Any]:
    return {name: getattr(op, name) for name in op.attr_names()}


JAX: dict[str, Callable[..., Any]] = {
    **{f"nn.max_pool{n}d": max_pool for n in (1, 2, 3)},
    **{f"nn.avg_pool{n}d": avg_pool for n in (1, 2, 3)},
}
