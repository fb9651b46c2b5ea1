"""Normalisation in jax: `jax.nn.standardize` where that has the axes, means and variances elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def axes_of(axes: Any, ndim: int) -> tuple[int, ...]:
    return tuple(sorted(a % ndim for a in ((axes,) if isinstance(axes, int) else axes)))


def spread(weight: Any, ndim: int, axes: Sequence[int]) -> Any:
    sizes = iter(weight.shape)
    return weight.reshape([next(sizes) if a in axes else 1 for a in range(ndim)])


def weighted(op: Any, x: Any, gamma: Any, beta: Any, axes: Sequence[int]) -> Any:
    x = x * spread(gamma, x.ndim, axes) if op.scale else x
    return x + spread(beta, x.ndim, axes) if op.center else x


def layer_norm(op: Any, x: Any, gamma: Any, beta: Any) -> Any:
    axes = axes_of(op.axes, x.ndim)
    return weighted(op, jax.nn.standardize(x, axes, epsilon=op.epsilon), gamma, beta, axes)


def rms_norm(op: Any, x: Any, weight: Any) -> Any:
    axes = axes_of(op.axes, x.ndim)
    square = jnp.mean(jnp.square(x), axes, keepdims=True)
    return x * jax.lax.rsqrt(square + op.epsilon) * spread(weight, x.ndim, axes)


def instance_norm(op: Any, x: Any, gamma: Any, beta: Any) -> Any:
    normal = jax.nn.standardize(x, axes_of(op.axes, x.ndim), epsilon=op.epsilon)
    return weighted(op, normal, gamma, beta, axes_of(op.channel_axis, x.ndim))


def group_norm(op: Any, x: Any, gamma: Any, beta: Any) -> Any:
    channel = op.channel_axis % x.ndim
    parts = jnp.split(x, op.num_groups, channel)
    axes = (channel, *axes_of(op.axes, x.ndim))
    normal = [jax.nn.standardize(part, axes, epsilon=op.epsilon) for part in parts]
    return weighted(op, jnp.concatenate(normal, channel), gamma, beta, (channel,))


def batch_norm(op: Any, x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
    (axis,) = axes_of(op.axis, x.ndim)
    others = tuple(a for a in range(x.ndim) if a != axis)
    used = (jnp.mean(x, others), jnp.var(x, others)) if op.training else (mean, var)
    m, v = (spread(value, x.ndim, (axis,)) for value in used)
    normal = jax.nn.standardize(x, others, mean=m, variance=v, epsilon=op.epsilon)
    moved = [
        old + op.momentum * (new - old) if op.training else old
        for old, new in zip((mean, var), used, strict=True)
    ]
    return (weighted(op, normal, gamma, beta, (axis,)), *moved)


JAX: dict[str, Callable[..., Any]] = {
    "nn.layer_norm": layer_norm,
    "nn.rms_norm": rms_norm,
    "nn.instance_norm": instance_norm,
    "nn.group_norm": group_norm,
    "nn.batch_norm": batch_norm,
}
