"""Products and convolutions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_index import true_places
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Expr, TensorType


@operator("linear.default")
def linear(at: Site, x: Expr, weight: Expr, bias: Expr | None) -> Any:
    return op.linear(x, weight, bias)


@operator("matmul.default", "mm.default", "bmm.default")
def matmul(at: Site, x: Expr, y: Expr) -> Any:
    return op.matmul(x, y)


@operator("addmm.default")
def addmm(at: Site, base: Expr, x: Expr, y: Expr, beta: Any, alpha: Any) -> Any:
    wide = "float32" if at.dtype.is_narrow else None
    product = at.emit(op.matmul(x, y, out_dtype=wide))
    return combined(at, base, product, beta, alpha)


@operator("baddbmm.default")
def baddbmm(at: Site, base: Expr, x: Expr, y: Expr, beta: Any, alpha: Any) -> Any:
    return addmm(at, base, x, y, beta, alpha)


@operator("addbmm.default")
def addbmm(at: Site, base: Expr, x: Expr, y: Expr, beta: Any, alpha: Any) -> Any:
    wide = "float32" if at.dtype.is_narrow else None
    product = at.emit(op.sum(at.emit(op.matmul(x, y, out_dtype=wide)), axis=0))
    return combined(at, base, product, beta, alpha)


@operator("addmv.default")
def addmv(at: Site, base: Expr, x: Expr, y: Expr, beta: Any, alpha: Any) -> Any:
    return addmm(at, base, x, y, beta, alpha)


@operator("addr.default")
def addr(at: Site, base: Expr, x: Expr, y: Expr, beta: Any, alpha: Any) -> Any:
    wide = "float32" if at.dtype.is_narrow else at.dtype
    x, y = (at.cast(each, wide) for each in (x, y))
    if at.dtype.is_bool:
        x, y, base = (at.cast(each, "int8") for each in (x, y, base))
    return combined(at, base, at.emit(op.outer(x, y)), beta, alpha)


def combined(at: Site, base: Expr, product: Expr, beta: Any, alpha: Any) -> Any:
    """Beta * base + alpha * product in the product's dtype; a base times 0 is left out, NaN or not."""

    def times(x: Any, factor: Any) -> Any:
        return x if factor == 1 else op.multiply(x, op.full((), factor, at.dtype_of(product)))

    if beta == 0:
        return at.emit(op.broadcast_to(times(product, alpha), at.shape))
    return op.add(times(at.cast(base, at.dtype_of(product)), beta), times(product, alpha))


@operator("linalg_cross.default")
def cross(at: Site, x: Expr, y: Expr, axis: int = -1) -> Any:
    wide = "float32" if at.dtype.is_narrow else at.dtype
    axis %= len(at.shape)
    x, y = (at.emit(op.broadcast_to(at.cast(each, wide), at.shape)) for each in (x, y))

    def part(z: Expr, k: int) -> Any:
        return at.emit(op.strided_slice(z, [axis], [k % 3], [k % 3 + 1]))

    rows = [
        op.subtract(
            op.multiply(part(x, k + 1), part(y, k + 2)), op.multiply(part(x, k + 2), part(y, k + 1))
        )
        for k in range(3)
    ]
    return op.concat([at.emit(row) for row in rows], axis=axis)


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
        kernel = [size.value for size in at.shape_of(weight)[2:]] if padding == "same" else []
        if None in kernel:
            raise at.fail(
                "torch-operator",
                "padding 'same' of a kernel whose sizes may vary is not supported",
                help="give the kernel fixed sizes, or write the padding as numbers",
            )
        total = [d * ((k or 0) - 1) for d, k in zip(dilation, kernel)] or [0] * count
        pads = [t // 2 for t in total] + [t - t // 2 for t in total]
    else:
        pads = each_axis(padding, count) * 2
    if not isinstance(groups, int):
        made, *kernel = at.shape_of(weight)[0] // groups, *at.shape_of(weight)[1:]
        weight = at.emit(op.reshape(weight, (groups, made, *kernel)))
        y = grouped_product_of_places(at, x, weight, strides, pads, dilation)
        return finished(at, y, bias, count, batched)
    function = (op.nn.conv1d, op.nn.conv2d, op.nn.conv3d)[count - 1]
    y = function(
        x, weight, strides=strides, padding=pads, dilation=dilation, groups=groups,
        out_dtype=sum_dtype(at, bias),
    )  # fmt: skip
    return finished(at, y, bias, count, batched)


def grouped_product_of_places(
    at: Site, x: Expr, weight: Expr, strides: Sequence[int], pads: Sequence[int],
    dilation: Sequence[int],
) -> Any:  # fmt: skip
    """A convolution whose number of groups varies, as where each sample of a batch has weights of its own: what each
    place of the kernel sees, times the weights (groups, out, in, *kernel). Pads below 0 crop."""
    count = len(strides)
    groups, made, channels, *kernel = at.shape_of(weight)
    batch, space = at.shape_of(x)[0], range(count)
    kernel = [int(size) for size in kernel]
    x = at.emit(
        op.nn.pad(
            at.emit(x), [0, 0, 0, 0, *(max(pads[i + end], 0) for i in space for end in (0, count))]
        )
    )
    first = [max(-pads[i], 0) for i in space]
    sizes = [at.shape_of(x)[i + 2] - max(-pads[i], 0) - max(-pads[i + count], 0) for i in space]
    sizes = [
        (size - d * (k - 1) - 1) // s + 1
        for size, d, k, s in zip(sizes, dilation, kernel, strides, strict=True)
    ]
    seen: list[Expr] = []
    for place in itertools.product(*map(range, kernel)):
        begin = [first[i] + place[i] * dilation[i] for i in space]
        end = [begin[i] + (sizes[i] - 1) * strides[i] + 1 for i in space]
        part = op.strided_slice(x, [i + 2 for i in space], begin, end, list(strides))
        seen.append(at.emit(op.reshape(at.emit(part), (batch, groups, channels, 1, -1))))
    rows = channels * math.prod(kernel)
    columns = op.reshape(at.emit(op.concat(seen, axis=3)), (batch, groups, rows, -1))
    weight = at.emit(op.reshape(weight, (groups, made, rows)))
    y = at.emit(op.matmul(weight, at.emit(columns)))
    return op.reshape(y, (batch, groups * made, *sizes))


def grouped_transpose(
    at: Site, x: Expr, weight: Expr, strides: Sequence[int], padding: Sequence[int],
    output_padding: Sequence[int], groups: Any, dilation: Sequence[int],
) -> Any:  # fmt: skip
    """The same of a transposed convolution: that of the input with zeros between its elements, the kernel turned."""
    count = len(strides)
    batch, channels, *space = at.shape_of(at.emit(x))
    made, *kernel = at.shape_of(weight)[1:]
    around = [(0, 0), (0, 0), *(each for s in strides for each in ((0, 0), (0, s - 1)))]
    x = at.emit(op.reshape(x, (batch, channels, *(each for size in space for each in (size, 1)))))
    x = at.emit(op.nn.pad(x, [side for pair in around for side in pair]))
    x = op.reshape(x, (batch, channels, *(size * s for size, s in zip(space, strides))))
    weight = at.emit(op.reshape(weight, (groups, channels // groups, made, *kernel)))
    weight = at.emit(op.permute_dims(weight, [0, 2, 1, *range(3, count + 3)]))
    for axis in range(3, count + 3):
        weight = at.emit(op.flip(weight, axis))
    reach = [d * (int(k) - 1) for d, k in zip(dilation, kernel)]
    before = [r - p for r, p in zip(reach, padding)]
    after = [b + out - (s - 1) for b, out, s in zip(before, output_padding, strides)]
    return grouped_product_of_places(at, x, weight, [1] * count, [*before, *after], dilation)


def sum_dtype(at: Site, bias: Expr | None) -> str | None:
    """The dtype of a sum that a bias is added to, which is rounded once; None: that of the operands."""
    return "float32" if bias is not None and at.dtype.is_narrow else None


def finished(at: Site, y: Any, bias: Expr | None, count: int, batched: bool) -> Any:
    """Add the bias of the channels, and take the batch away that was added."""
    if bias is not None:
        y = at.emit(y)
        column = op.reshape(at.cast(bias, at.dtype_of(y)), (1, at.shape_of(bias)[0], *[1] * count))
        y = at.cast(at.emit(op.add(y, column)), at.dtype)
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
    strides, padding, output_padding, dilation = (
        each_axis(each, count) for each in (strides, padding, output_padding, dilation)
    )
    if not isinstance(groups, int):
        y = grouped_transpose(at, x, weight, strides, padding, output_padding, groups, dilation)
        return finished(at, y, bias, count, batched)
    function = (op.nn.conv1d_transpose, op.nn.conv2d_transpose, op.nn.conv3d_transpose)[count - 1]
    y = function(
        x, weight, strides=strides, padding=padding * 2, output_padding=output_padding,
        dilation=dilation, groups=groups, out_dtype=sum_dtype(at, bias),
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
    first, second = true_places(at, grid)
    apart = op.subtract(op.take(x, first, axis=0), op.take(x, second, axis=0))
    found = distances(at, at.emit(apart), p)
    return at.match(at.emit(found), TensorType(at.shape, at.dtype))


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


@operator("_trilinear.default")
def trilinear(
    at: Site, x: Expr, y: Expr, z: Expr, new_x: list[int], new_y: list[int], new_z: list[int],
    summed: list[int], *rest: Any,
) -> Any:  # fmt: skip
    """The product of three tensors with new axes, summed over some axes."""
    parts = [
        at.emit(op.expand_dims(each, axes)) if axes else each
        for each, axes in ((x, new_x), (y, new_y), (z, new_z))
    ]
    found = at.emit(op.multiply(at.emit(op.multiply(parts[0], parts[1])), parts[2]))
    return op.sum(found, axis=list(summed)) if summed else found
