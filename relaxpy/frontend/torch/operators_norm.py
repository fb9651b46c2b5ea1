"""Normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Dim, Expr


def scales(at: Site, x: Expr, dims: list[Any], weight: Any, bias: Any) -> tuple[Any, Any]:
    """Weight and bias, of ones and zeros where there are none."""
    dtype = at.dtype_of(x)
    shape = [Dim.of(d) for d in dims]
    return (
        op.ones(shape, dtype) if weight is None else weight,
        op.zeros(shape, dtype) if bias is None else bias,
    )


@operator("layer_norm.default")
def layer_norm(
    at: Site, x: Expr, dims: list[Any], weight: Any, bias: Any, epsilon: float, *rest: Any
) -> Any:
    axes = list(range(-len(dims), 0))
    gamma, beta = scales(at, x, dims, weight, bias)
    return op.nn.layer_norm(x, gamma, beta, axes=axes, epsilon=epsilon)


@operator("rms_norm.default")
def rms_norm(at: Site, x: Expr, dims: list[Any], weight: Any, epsilon: Any) -> Any:
    gamma, _ = scales(at, x, dims, weight, None)
    if epsilon is None:
        epsilon = float(np.finfo(at.dtype_of(x).numpy).eps)
    return op.nn.rms_norm(x, gamma, axes=list(range(-len(dims), 0)), epsilon=epsilon)


@operator("group_norm.default")
def group_norm(
    at: Site, x: Expr, groups: int, weight: Any, bias: Any, epsilon: float, *rest: Any
) -> Any:
    channels = at.shape_of(x)[1]
    gamma, beta = scales(at, x, [channels], weight, bias)
    axes = list(range(2, at.ndim(x)))
    return op.nn.group_norm(
        x, gamma, beta, num_groups=groups, channel_axis=1, axes=axes, epsilon=epsilon
    )


@operator("_native_batch_norm_legit_no_training.default")
def batch_norm(
    at: Site,
    x: Expr,
    weight: Any,
    bias: Any,
    mean: Expr,
    variance: Expr,
    momentum: float,
    epsilon: float,
) -> Any:
    gamma, beta = scales(at, x, [at.shape_of(x)[1]], weight, bias)
    y = at.emit(
        op.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, epsilon=epsilon, training=False)
    )
    from relaxpy.ir import TupleGetItem

    empty = op.zeros((0,), at.dtype_of(x))
    return TupleGetItem(y, 0), empty, empty


@operator("softmax.int", "_softmax.default")
def softmax(at: Site, x: Expr, axis: int, *rest: Any) -> Any:
    x = at.cast(x, at.dtype)
    return op.nn.softmax(x, axis=axis) if at.ndim(x) else op.ones((), at.dtype)


@operator("log_softmax.int", "_log_softmax.default")
def log_softmax(at: Site, x: Expr, axis: int, *rest: Any) -> Any:
    x = at.cast(x, at.dtype)
    return op.nn.log_softmax(x, axis=axis) if at.ndim(x) else op.zeros((), at.dtype)
