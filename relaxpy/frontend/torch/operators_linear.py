"""Products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Expr


@operator("linear.default")
def linear(at: Site, x: Expr, weight: Expr, bias: Expr | None) -> Any:
    return op.linear(x, weight, bias)


@operator("matmul.default", "mm.default", "bmm.default")
def matmul(at: Site, x: Expr, y: Expr) -> Any:
    return op.matmul(x, y)


@operator("addmm.default")
def addmm(at: Site, base: Expr, x: Expr, y: Expr, beta: Any, alpha: Any) -> Any:
    product = op.matmul(x, y)
    if alpha != 1:
        product = op.multiply(product, alpha)
    return op.add(base if beta == 1 else op.multiply(base, beta), product)


def each_axis(values: Any, count: int) -> list[int]:
    """One number for each spatial axis."""
    given = list(values) if isinstance(values, (list, tuple)) else [values]
    return [int(v) for v in (given * count if len(given) == 1 else given)]


def convolved(
    at: Site, x: Expr, weight: Expr, bias: Expr | None, strides: Sequence[int], padding: Any,
    dilation: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    """A convolution over the last axes; `padding` may be torch's words."""
    count = at.ndim(weight) - 2
    batched = at.ndim(x) == count + 2
    if not batched:
        x = op.expand_dims(x, 0)
    strides, dilation = each_axis(strides, count), each_axis(dilation, count)
    if isinstance(padding, str):
        kernel = [size.value or 0 for size in at.shape_of(weight)[2:]]
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel)]
        pads = [t // 2 for t in total] + [t - t // 2 for t in total]
    else:
        pads = each_axis(padding, count) * 2
    function = (op.nn.conv1d, op.nn.conv2d, op.nn.conv3d)[count - 1]
    y = function(x, weight, strides=strides, padding=pads, dilation=dilation, groups=groups)
    return finished(at, y, bias, count, batched)


def finished(at: Site, y: Any, bias: Expr | None, count: int, batched: bool) -> Any:
    """Add the bias of the channels, and take the batch away that was added."""
    if bias is not None:
        y = op.add(y, op.reshape(bias, (1, at.shape_of(bias)[0], *[1] * count)))
    return y if batched else op.squeeze(y, [0])


@operator("conv1d.default", "conv2d.default", "conv3d.default")
@operator("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv(
    at: Site,
    x: Expr,
    weight: Expr,
    bias: Any,
    strides: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Any:
    return convolved(at, x, weight, bias, strides, padding, dilation, groups)


@operator("convolution.default")
def convolution(
    at: Site, x: Expr, weight: Expr, bias: Any, strides: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    if not transposed:
        return convolved(at, x, weight, bias, strides, padding, dilation, groups)
    return transposed_convolution(
        at, x, weight, bias, strides, padding, output_padding, groups, dilation
    )


@operator("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def transposed_convolution(
    at: Site, x: Expr, weight: Expr, bias: Any, strides: Any, padding: Any, output_padding: Any,
    groups: int, dilation: Any,
) -> Any:  # fmt: skip
    count = at.ndim(weight) - 2
    batched = at.ndim(x) == count + 2
    if not batched:
        x = op.expand_dims(x, 0)
    function = (op.nn.conv1d_transpose, op.nn.conv2d_transpose, op.nn.conv3d_transpose)[count - 1]
    y = function(
        x, weight, strides=each_axis(strides, count), padding=each_axis(padding, count) * 2,
        output_padding=each_axis(output_padding, count), dilation=each_axis(dilation, count), groups=groups,
    )  # fmt: skip
    return finished(at, y, bias, count, batched)


@operator("_cdist_forward.default")
def cdist(at: Site, x: Expr, y: Expr, p: float, mode: Any = None) -> Any:
    x, y = at.emit(op.expand_dims(x, -2)), at.emit(op.expand_dims(y, -3))
    return distances(at, at.emit(op.subtract(x, y)), p)


@operator("_pdist_forward.default")
def pdist(at: Site, x: Expr, p: float = 2) -> Any:
    """The distances of rows i < j, in row-major order."""
    rows = at.shape_of(x)[0]
    grid = at.emit(op.triu(at.emit(op.ones((rows, rows), "int8")), 1))
    pairs = at.emit(op.nonzero(grid))
    first, second = (
        at.emit(op.reshape(at.emit(op.strided_slice(pairs, [0], [k], [k + 1])), (-1,)))
        for k in (0, 1)
    )
    apart = op.subtract(op.take(x, first, axis=0), op.take(x, second, axis=0))
    found = distances(at, at.emit(apart), p)
    return at.match(at.emit(found), at.importer.annotation(at.val))


def distances(at: Site, apart: Expr, p: float) -> Any:
    """The p-norm over the last axis."""
    size = op.abs(apart)
    if p == 0:
        return op.sum(op.astype(op.not_equal(apart, 0.0), at.dtype), axis=-1)
    if p == 1:
        return op.sum(size, axis=-1)
    if p == 2:
        return op.sqrt(op.sum(op.square(apart), axis=-1))
    if p == math.inf:
        # Of no elements it is 0, not the least number.
        return op.maximum(op.max(size, axis=-1), 0.0)
    return op.power(op.sum(op.power(size, float(p)), axis=-1), 1.0 / p)


@operator("grouped_mm_fallback.default", namespace="transformers")
def grouped_product(at: Site, x: Expr, weight: Expr, ends: Expr) -> Any:
    """Rows before `ends[0]` are multiplied by the first matrix, rows from there to `ends[1]` by the second, …"""
    rows = at.shape_of(x)[0]
    places = at.emit(op.arange(0, rows, 1, dtype="int64"))
    ends = at.cast(ends, "int64")
    group = at.emit(op.bucketize(places, ends, right=True))
    choice = at.emit(op.reshape(at.cast(group, "int64"), (rows, 1)))
    turned = at.emit(op.permute_dims(weight, [0, 2, 1]))
    return op.reshape(at.emit(op.nn.expert_linear(x, turned, choice)), at.shape)
