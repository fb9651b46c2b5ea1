"""Sampling at coordinates, in jax: `jax.scipy.ndimage.map_coordinates`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def affine_grid(op: Any, data: Any, size: Any) -> Any:
    axes = []
    for places in map(int, size):
        ends = 1.0 if op.align_corners else 1 - 1 / places
        axes.append(jnp.linspace(-ends, ends, places) if places > 1 else jnp.zeros(1))
    points = [*reversed(jnp.meshgrid(*axes, indexing="ij")), jnp.ones(tuple(map(int, size)))]
    result = jnp.einsum("nij,j...->ni...", data.astype(jnp.float32), jnp.stack(points))
    return result.astype(data.dtype)


def grid_sample(op: Any, data: Any, grid: Any) -> Any:
    if op.method == "bicubic" or op.padding_mode != "zeros" or not jnp.isfinite(grid).all():
        return NotImplemented
    x = data.transpose([op.layout.index(s) for s in f"NC{op.spatial}"]).astype(jnp.float32)
    coordinates = []
    for axis, size in enumerate(x.shape[2:]):
        g = grid[:, x.ndim - 3 - axis].astype(jnp.float32)
        at = (g + 1) * (size - 1) / 2 if op.align_corners else ((g + 1) * size - 1) / 2
        coordinates.append(at)
    order = 0 if op.method == "nearest" else 1
    result = jnp.stack([
        jnp.stack([
            jax.scipy.ndimage.map_coordinates(channel, [c[n] for c in coordinates], order=order)
            for channel in image
        ])
        for n, image in enumerate(x)
    ])  # fmt: skip
    return result.transpose([f"NC{op.spatial}".index(s) for s in op.layout]).astype(data.dtype)


JAX: dict[str, Callable[..., Any]] = {
    "image.affine_grid": affine_grid,
    "image.grid_sample": grid_sample,
}
