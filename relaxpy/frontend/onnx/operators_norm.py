"""Normalisation, and losses."""

from __future__ import annotations

from typing import Any

from relaxpy import op
from relaxpy.frontend.onnx.checks import check_is_test
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.operators_linear import channels
from relaxpy.frontend.onnx.operators_shape import padded
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import Dim, Expr, TupleGetItem


@operator("BatchNormalization")
def batch_normalization(
    at: Site, x: Expr, scale: Expr, bias: Expr, mean: Expr, variance: Expr, epsilon: float = 1e-5,
    momentum: float = 0.9, training_mode: int = 0, is_test: int = 0, spatial: int = 1, **_: Any,
) -> Any:  # fmt: skip
    """In training the running statistics are mixed with those of the data, whose variance is that of the population.
    Before version 9 there may be statistics for each element instead of each channel."""
    check_is_test(at, is_test)
    dtype, count = at.dtype_of(x), at.ndim(x) - 2
    axes = [a for a in range(at.ndim(x)) if a != 1]
    results: list[Any] = []
    if training_mode:
        found = [at.emit(f(x, axis=axes)) for f in (op.mean, op.variance)]
        for new, old in zip(found, (mean, variance), strict=True):
            kind = at.dtype_of(old)
            kept = op.multiply(old, constant(momentum, kind))
            results.append(
                op.add(kept, op.multiply(at.cast(new, kind), constant(1 - momentum, kind)))
            )
        mean, variance = found
    elif at.dtype_of(mean) == dtype and at.dtype_of(scale) == dtype and spatial:
        whole = op.nn.batch_norm(
            x, scale, bias, mean, variance, axis=1, epsilon=epsilon, training=False
        )
        return TupleGetItem(at.emit(whole), 0)
    scale, bias, mean, variance = (
        channels(at, each, count) if spatial else each
        for each in (
            at.cast(each, "float32" if dtype.is_narrow else dtype)
            for each in (scale, bias, mean, variance)
        )
    )
    wide = at.cast(x, "float32" if dtype.is_narrow else dtype)
    deviation = op.sqrt(op.add(variance, constant(epsilon, at.dtype_of(variance))))
    normal = op.divide(op.subtract(wide, mean), deviation)
    return [at.cast(at.emit(op.add(op.multiply(normal, scale), bias)), dtype), *results]


@operator("InstanceNormalization")
def instance_normalization(
    at: Site, x: Expr, scale: Expr, bias: Expr, epsilon: float = 1e-5, **_: Any
) -> Any:
    axes = list(range(2, at.ndim(x)))
    return op.nn.instance_norm(x, scale, bias, channel_axis=1, axes=axes, epsilon=epsilon)


@operator("GroupNormalization")
def group_normalization_v18(
    at: Site, x: Expr, scale: Expr, bias: Expr, num_groups: int, epsilon: float = 1e-5, **_: Any
) -> Any:
    """Scale and bias are of groups before version 21."""
    share = at.shape_of(x)[1] // num_groups

    def each(v: Expr) -> Any:
        wide = at.emit(
            op.broadcast_to(at.emit(op.expand_dims(v, [1])), [Dim.of(num_groups), share])
        )
        return at.emit(op.reshape(wide, [share * num_groups]))

    return group_normalization(at, x, each(scale), each(bias), num_groups, epsilon)


@operator("GroupNormalization", since=21)
def group_normalization(
    at: Site, x: Expr, scale: Expr, bias: Expr, num_groups: int, epsilon: float = 1e-5, **_: Any
) -> Any:
    axes = list(range(2, at.ndim(x)))
    return op.nn.group_norm(
        x, scale, bias, num_groups=num_groups, channel_axis=1, axes=axes, epsilon=epsilon
    )


@operator("LayerNormalization")
def layer_normalization(
    at: Site, x: Expr, scale: Expr, bias: Any = None, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1, **_: Any,
) -> Any:  # fmt: skip
    rank, dtype = at.ndim(x), at.dtype_of(x)
    axes = list(range(at.axis(axis, rank), rank))
    tail = at.shape_of(x)[axes[0] :]
    simple = at.shape_of(scale) == tail and (bias is None or at.shape_of(bias) == tail)
    if simple and not at.wants(1) and not at.wants(2):
        shift = at.emit(op.zeros(tail, dtype)) if bias is None else bias
        return op.nn.layer_norm(
            x, scale, shift, axes=axes, epsilon=epsilon, center=bias is not None
        )
    wide = at.cast(x, "float32" if dtype.is_narrow else dtype)
    mean = at.emit(op.mean(wide, axis=axes, keepdims=True))
    variance = at.emit(op.variance(wide, axis=axes, keepdims=True))
    kind = at.dtype_of(wide)
    inverse = at.emit(
        op.divide(constant(1, kind), op.sqrt(op.add(variance, constant(epsilon, kind))))
    )
    normal = at.cast(at.emit(op.multiply(op.subtract(wide, mean), inverse)), dtype)
    found = op.multiply(normal, scale)
    return [found if bias is None else op.add(found, bias), mean, inverse]


@operator("RMSNormalization")
def rms_normalization(
    at: Site, x: Expr, scale: Expr, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> Any:
    rank, dtype = at.ndim(x), at.dtype_of(x)
    axes = list(range(at.axis(axis, rank), rank))
    if at.shape_of(scale) == at.shape_of(x)[axes[0] :]:
        return op.nn.rms_norm(x, scale, axes=axes, epsilon=epsilon)
    wide = at.cast(x, "float32" if dtype.is_narrow else dtype)
    square = at.emit(op.mean(at.emit(op.square(wide)), axis=axes, keepdims=True))
    root = op.sqrt(op.add(square, constant(epsilon, at.dtype_of(wide))))
    return op.multiply(at.cast(at.emit(op.divide(wide, root)), dtype), scale)


@operator("LRN")
def lrn(
    at: Site,
    x: Expr,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    **_: Any,
) -> Any:
    dtype, rank, dims = at.dtype_of(x), at.ndim(x), at.shape_of(x)
    borders = [0] * (2 * rank)
    borders[1], borders[rank + 1] = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = padded(at, at.emit(op.square(x)), borders, "constant", constant(0, dtype))
    total: Any = None
    for i in range(size):
        part = at.emit(op.strided_slice(squares, [1], [i], [dims[1] + i]))
        total = part if total is None else at.emit(op.add(total, part))
    scale = op.add(op.multiply(total, constant(alpha / size, dtype)), constant(bias, dtype))
    return op.divide(x, op.power(scale, constant(beta, dtype)))


def nll(
    at: Site, scores: Expr, target: Expr, weight: Any, reduction: str, ignore: int | None
) -> Any:
    """The negative scores of the targets' classes along axis 1, weighted."""
    dtype = at.dtype_of(scores)
    places = at.cast(target, "int64")
    skipped: Any = None
    if ignore is not None:
        skipped = at.emit(op.equal(places, constant(ignore, "int64")))
        places = at.emit(op.where(skipped, constant(0, "int64"), places))
    picked = at.emit(op.gather_elements(scores, at.emit(op.expand_dims(places, [1])), axis=1))
    found = at.emit(op.negative(at.emit(op.squeeze(picked, [1]))))
    if weight is None:
        share: Any = at.emit(op.ones(at.shape_of(places), dtype))
    else:
        share = at.emit(op.take(weight, places, axis=0))
    if skipped is not None:
        share = at.emit(op.where(skipped, constant(0, dtype), share))
    found = at.emit(op.multiply(found, share))
    if reduction == "none":
        return found
    total = at.emit(op.sum(found))
    return total if reduction == "sum" else op.divide(total, at.emit(op.sum(share)))


@operator("NegativeLogLikelihoodLoss")
def negative_log_likelihood(
    at: Site, scores: Expr, target: Expr, weight: Any = None, reduction: str = "mean",
    ignore_index: int | None = None, **_: Any,
) -> Any:  # fmt: skip
    return nll(at, scores, target, weight, reduction, ignore_index)


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(
    at: Site, scores: Expr, target: Expr, weight: Any = None, reduction: str = "mean",
    ignore_index: int | None = None, **_: Any,
) -> Any:  # fmt: skip
    logs = at.emit(op.nn.log_softmax(scores, axis=1))
    return [nll(at, logs, target, weight, reduction, ignore_index), logs]
