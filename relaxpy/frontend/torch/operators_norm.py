"""Normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_elementwise import size_tensor
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Dim, Expr, TupleGetItem
from relaxpy.ir.dim import product


def scales(at: Site, x: Expr, dims: list[Any], weight: Any, bias: Any) -> tuple[Any, Any]:
    """Weight and bias, of ones and zeros where there are none."""
    dtype = at.dtype_of(x)
    shape = [Dim.of(d) for d in dims]
    return (
        op.ones(shape, dtype) if weight is None else weight,
        op.zeros(shape, dtype) if bias is None else bias,
    )


def _in_one_dtype(at: Site, x: Expr, *factors: Expr) -> list[Expr]:
    """Under autocast the factors, or statistics, are float32 and x is narrow: torch computes in the wider dtype."""
    dtypes = [at.dtype_of(each) for each in (x, *factors)]
    widest = max(dtypes, key=lambda dtype: dtype.bits)
    same = all(dtype == widest for dtype in dtypes)
    return [each if same else at.emit(at.cast(each, widest)) for each in (x, *factors)]


@operator("layer_norm.default")
def layer_norm(
    at: Site, x: Expr, dims: list[Any], weight: Any, bias: Any, epsilon: float, *rest: Any
) -> Any:
    axes = list(range(-len(dims), 0))
    gamma, beta = scales(at, x, dims, weight, bias)
    wide, gamma, beta = _in_one_dtype(at, x, gamma, beta)
    found = at.emit(op.nn.layer_norm(wide, gamma, beta, axes=axes, epsilon=epsilon))
    return at.cast(found, at.dtype_of(x))


@operator("rms_norm.default")
def rms_norm(at: Site, x: Expr, dims: list[Any], weight: Any, epsilon: Any) -> Any:
    gamma, _ = scales(at, x, dims, weight, None)
    if epsilon is None:
        epsilon = float(np.finfo(at.dtype_of(x).numpy).eps)
    wide, gamma = _in_one_dtype(at, x, gamma)
    axes = list(range(-len(dims), 0))
    return at.cast(at.emit(op.nn.rms_norm(wide, gamma, axes=axes, epsilon=epsilon)), at.dtype_of(x))


@operator("group_norm.default")
def group_norm(
    at: Site, x: Expr, groups: int, weight: Any, bias: Any, epsilon: float, *rest: Any
) -> Any:
    channels = at.shape_of(x)[1]
    gamma, beta = scales(at, x, [channels], weight, bias)
    axes = list(range(2, at.ndim(x)))
    wide, gamma, beta = _in_one_dtype(at, x, gamma, beta)
    found = at.emit(
        op.nn.group_norm(
            wide, gamma, beta, num_groups=groups, channel_axis=1, axes=axes, epsilon=epsilon
        )
    )
    return at.cast(found, at.dtype_of(x))


def statistics(at: Site, x: Expr, axes: list[int], epsilon: float) -> tuple[Any, Any, Any]:
    """The mean, the variance, and 1 / sqrt(variance + epsilon) over `axes`, which are kept, at least in float32."""
    wide = at.cast(x, "float32" if at.dtype_of(x).is_narrow else at.dtype_of(x))
    mean = at.emit(op.mean(wide, axis=axes, keepdims=True))
    variance = at.emit(op.variance(wide, axis=axes, keepdims=True))
    return mean, variance, op.rsqrt(op.add(variance, float(epsilon)))


@operator("native_layer_norm.default")
def native_layer_norm(
    at: Site, x: Expr, dims: list[Any], weight: Any, bias: Any, epsilon: float
) -> Any:
    axes = list(range(-len(dims), 0))
    mean, _, scale = statistics(at, x, axes, epsilon)
    return layer_norm(at, x, dims, weight, bias, epsilon), mean, scale


@operator("native_group_norm.default")
def native_group_norm(
    at: Site, x: Expr, weight: Any, bias: Any, batch: Any, channels: Any, size: Any, groups: int,
    epsilon: float,
) -> Any:  # fmt: skip
    rows = at.emit(op.reshape(x, (batch, groups, Dim.of(channels) // groups * size)))
    mean, _, scale = statistics(at, rows, [2], epsilon)
    both = [at.emit(op.reshape(at.emit(each), (batch, groups))) for each in (mean, scale)]
    return group_norm(at, x, groups, weight, bias, epsilon), *both


@operator("_native_batch_norm_legit_no_training.default")
def batch_norm(
    at: Site, x: Expr, weight: Any, bias: Any, mean: Expr, variance: Expr, momentum: float,
    epsilon: float,
) -> Any:  # fmt: skip
    gamma, beta = scales(at, x, [at.shape_of(x)[1]], weight, bias)
    empty = op.zeros((0,), at.dtype_of(mean))
    x, gamma, beta, mean, variance = _in_one_dtype(at, x, gamma, beta, mean, variance)
    y = at.emit(
        op.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, epsilon=epsilon, training=False)
    )
    return at.cast(at.emit(TupleGetItem(y, 0)), at.dtype), empty, empty


def batch_statistics(
    at: Site, x: Expr, weight: Any, bias: Any, epsilon: float
) -> tuple[Any, Any, Any, Any]:
    """Batch normalisation by the statistics of the batch: the result, the mean, the variance and the scale of each
    channel."""
    rank, channels = at.ndim(x), at.shape_of(x)[1]
    mean, variance, scale = statistics(at, x, [0, *range(2, rank)], epsilon)
    scale = at.emit(scale)
    y = at.emit(op.multiply(op.subtract(at.cast(x, at.dtype_of(mean)), mean), scale))
    column = (1, channels, *[1] * (rank - 2))
    if weight is not None:
        y = at.emit(op.multiply(y, op.reshape(at.cast(weight, at.dtype_of(y)), column)))
    if bias is not None:
        y = at.emit(op.add(y, op.reshape(at.cast(bias, at.dtype_of(y)), column)))
    mean, variance, scale = (
        at.emit(op.reshape(each, (channels,))) for each in (mean, variance, scale)
    )
    return y, mean, variance, scale


@operator("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    at: Site, x: Expr, weight: Any, bias: Any, training: bool, momentum: float, epsilon: float
) -> Any:
    y, mean, _, scale = batch_statistics(at, x, weight, bias, epsilon)
    return y, mean, scale


@operator("_native_batch_norm_legit_functional.default")
def batch_norm_functional(
    at: Site, x: Expr, weight: Any, bias: Any, mean: Any, variance: Any, training: bool,
    momentum: float, epsilon: float,
) -> Any:  # fmt: skip
    if not training:
        y, *empty = batch_norm(at, x, weight, bias, mean, variance, momentum, epsilon)
        return y, *empty, mean, variance
    y, new_mean, new_variance, scale = batch_statistics(at, x, weight, bias, epsilon)
    sizes = at.shape_of(x)
    count = product((sizes[0], *sizes[2:]))
    # What is kept is the variance of a sample: over the count less one.
    dtype = at.dtype_of(new_variance)
    whole, less = (size_tensor(at, n, dtype) for n in (count, count - 1))
    unbiased = at.emit(op.divide(op.multiply(new_variance, at.emit(whole)), at.emit(less)))

    def moved(old: Expr, new: Expr) -> Any:
        kept = op.multiply(at.cast(old, dtype), 1 - momentum)
        return op.add(kept, op.multiply(new, float(momentum)))

    return y, new_mean, scale, moved(mean, new_mean), moved(variance, unbiased)


@operator("softmax.int", "_softmax.default")
def softmax(at: Site, x: Expr, axis: int, *rest: Any) -> Any:
    x = at.cast(x, at.dtype)
    return op.nn.softmax(x, axis=axis) if at.ndim(x) else op.ones((), at.dtype)


@operator("log_softmax.int", "_log_softmax.default")
def log_softmax(at: Site, x: Expr, axis: int, *rest: Any) -> Any:
    x = at.cast(x, at.dtype)
    return op.nn.log_softmax(x, axis=axis) if at.ndim(x) else op.zeros((), at.dtype)
