"""Products and convolutions."""

from __future__ import annotations

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


def _each(values: Any, count: int) -> list[int]:
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
    strides, dilation = _each(strides, count), _each(dilation, count)
    if isinstance(padding, str):
        kernel = [size.value or 0 for size in at.shape_of(weight)[2:]]
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel)]
        pads = [t // 2 for t in total] + [t - t // 2 for t in total]
    else:
        pads = _each(padding, count) * 2
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
        x, weight, strides=_each(strides, count), padding=_each(padding, count) * 2,
        output_padding=_each(output_padding, count), dilation=_each(dilation, count), groups=groups,
    )  # fmt: skip
    return finished(at, y, bias, count, batched)
