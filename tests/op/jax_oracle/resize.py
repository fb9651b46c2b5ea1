"""Resizing in jax: `jax.image.resize`, which has half pixels, and renormalises at the borders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.image


def resize(op: Any, data: Any, size: Any) -> Any:
    kernel = {"linear": "linear", "cubic": "cubic"}.get(op.method)
    half = op.coordinate_transformation_mode == "half_pixel"
    # jax's cubic kernel has alpha -0.5, and leaves out what is outside
    same_cubic = op.method != "cubic" or (op.cubic_alpha == -0.5 and op.cubic_exclude)
    if kernel is None or not half or not same_cubic:
        return NotImplemented
    dtype = op.out_dtype.numpy if op.out_dtype else data.dtype
    if dtype.kind in "iu":
        return NotImplemented  # jax rounds to the nearest
    shape = list(data.shape)
    for letter, places in zip(op.spatial, size, strict=True):
        shape[op.layout.index(letter)] = int(places)
    return jax.image.resize(data.astype(dtype), shape, kernel, antialias=False)


JAX: dict[str, Callable[..., Any]] = {"image.resize2d": resize, "image.resize3d": resize}
