"""Normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.onnx.write_table import writes
from relaxpy.onnx.write_values import Tensor
from relaxpy.onnx.writer import Place
from relaxpy.op import norm


def normalized(at: Place, x: Any, dtype: str, axes: Sequence[int], epsilon: float) -> str:
    """(x - mean) / sqrt(variance + epsilon)."""
    apart = at.node("Sub", x, at.node("ReduceMean", x, at.ints(axes), keepdims=1))
    spread = at.node("ReduceMean", at.node("Mul", apart, apart), at.ints(axes), keepdims=1)
    return at.node("Div", apart, at.node("Sqrt", at.node("Add", spread, at.number(epsilon, dtype))))


def along(at: Place, weight: Tensor, ndim: int, axes: Sequence[int]) -> Any:
    """A weight of these axes, to be broadcast with a tensor of `ndim`."""
    first = min(axes)
    return at.unsqueeze(weight, [a - first for a in range(first, ndim) if a not in axes])


def weighted(
    at: Place, op: Any, value: str, gamma: Tensor, beta: Tensor, ndim: int, axes: Sequence[int]
) -> str:
    """Scaled and shifted, as far as the operator asks for it."""
    if op.scale:
        value = at.node("Mul", value, along(at, gamma, ndim, axes))
    return at.node("Add", value, along(at, beta, ndim, axes)) if op.center else value


def are_last(axes: Sequence[int], ndim: int) -> bool:
    return list(axes) == list(range(ndim - len(axes), ndim))


@writes(norm.LayerNorm)
def layer_norm(at: Place, op: norm.LayerNorm, x: Tensor, gamma: Tensor, beta: Tensor) -> Any:
    axes = op.axes_of(x.ndim)
    if any(dim.value == 0 for dim in at.dims(x)):
        return at.node("Identity", x)
    if are_last(axes, x.ndim) and op.scale:
        return at.node(
            "LayerNormalization", x, gamma, beta if op.center else None, axis=axes[0], epsilon=float(op.epsilon)
        )  # fmt: skip
    return weighted(at, op, normalized(at, x, x.dtype, axes, op.epsilon), gamma, beta, x.ndim, axes)


@writes(norm.RmsNorm)
def rms_norm(at: Place, op: norm.RmsNorm, x: Tensor, weight: Tensor) -> Any:
    axes = op.axes_of(x.ndim)
    if at.opset >= 23 and are_last(axes, x.ndim):
        return at.node("RMSNormalization", x, weight, axis=axes[0], epsilon=float(op.epsilon))
    wide = "float32" if x.dtype.is_narrow else x.dtype
    own = at.cast(x, wide)
    mean = at.node("ReduceMean", at.node("Mul", own, own), at.ints(axes), keepdims=1)
    scale = at.node("Sqrt", at.node("Add", mean, at.number(op.epsilon, wide)))
    found = at.node(
        "Mul", at.node("Div", own, scale), at.cast(along(at, weight, x.ndim, axes), wide, x.dtype)
    )
    return at.cast(found, x.dtype, wide)


@writes(norm.InstanceNorm)
def instance_norm(at: Place, op: norm.InstanceNorm, x: Tensor, gamma: Tensor, beta: Tensor) -> Any:
    axes = _axes(op.axes, x.ndim)
    channel = op.channel_axis % x.ndim
    if channel == 1 and axes == list(range(2, x.ndim)) and op.scale and op.center:
        return at.node("InstanceNormalization", x, gamma, beta, epsilon=float(op.epsilon))
    return weighted(
        at, op, normalized(at, x, x.dtype, axes, op.epsilon), gamma, beta, x.ndim, [channel]
    )


@writes(norm.GroupNorm)
def group_norm(at: Place, op: norm.GroupNorm, x: Tensor, gamma: Tensor, beta: Tensor) -> Any:
    axes = _axes(op.axes, x.ndim)
    channel = op.channel_axis % x.ndim
    if (
        at.opset >= 21
        and channel == 1
        and axes == list(range(2, x.ndim))
        and op.scale
        and op.center
    ):
        return at.node(
            "GroupNormalization",
            x,
            gamma,
            beta,
            epsilon=float(op.epsilon),
            num_groups=op.num_groups,
        )
    dims = list(at.dims(x))
    apart = [*dims[:channel], op.num_groups, dims[channel] // op.num_groups, *dims[channel + 1 :]]
    over = [a + (a > channel) for a in axes] + [channel + 1]
    found = normalized(at, at.reshape(x, apart), x.dtype, sorted(over), op.epsilon)
    return weighted(at, op, at.reshape(found, dims), gamma, beta, x.ndim, [channel])


def _axes(axes: tuple[int, ...] | int, ndim: int) -> list[int]:
    return sorted(a % ndim for a in ((axes,) if isinstance(axes, int) else axes))


@writes(norm.BatchNorm)
def batch_norm(
    at: Place,
    op: norm.BatchNorm,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    mean: Tensor,
    variance: Tensor,
) -> Any:
    axis = op.axis % x.ndim
    epsilon = float(op.epsilon)
    if not op.training:
        if axis == 1 and op.scale and op.center:
            found = at.node("BatchNormalization", x, gamma, beta, mean, variance, epsilon=epsilon)
        else:
            root = at.node("Sqrt", at.node("Add", variance, at.number(epsilon, x.dtype)))
            after = list(range(1, x.ndim - axis))
            apart = at.node("Sub", x, at.unsqueeze(mean, after))
            found = at.node("Div", apart, at.unsqueeze(root, after))
            found = weighted(at, op, found, gamma, beta, x.ndim, [axis])
        return [found, mean, variance]
    others = [a for a in range(x.ndim) if a != axis]
    middle = at.node("ReduceMean", x, at.ints(others), keepdims=1)
    apart = at.node("Sub", x, middle)
    spread = at.node("ReduceMean", at.node("Mul", apart, apart), at.ints(others), keepdims=1)
    root = at.node("Sqrt", at.node("Add", spread, at.number(epsilon, x.dtype)))
    found = weighted(at, op, at.node("Div", apart, root), gamma, beta, x.ndim, [axis])
    moved: list[str] = []
    for old, new in ((mean, middle), (variance, spread)):
        kept = at.node("Mul", old, at.number(1 - op.momentum, x.dtype))
        flat = at.node("Reshape", new, at.ints([-1]))
        moved.append(at.node("Add", kept, at.node("Mul", flat, at.number(op.momentum, x.dtype))))
    return [found, *moved]


@writes(norm.Dropout)
def dropout(at: Place, op: norm.Dropout, x: Tensor) -> Any:
    from relaxpy.onnx.writes_shape import filled

    return [at.node("Identity", x), filled(at, at.node("Shape", x), 1, x.dtype)]
