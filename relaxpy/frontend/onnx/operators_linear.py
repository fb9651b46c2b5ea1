"""Products of matrices, and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from typing import cast as typed

import numpy as np

from relaxpy import op
from relaxpy.frontend.onnx.checks import check_sizes
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.operators_shape import padded
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import dim_op


@operator("MatMul")
def matmul(at: Site, a: Expr, b: Expr, **_: Any) -> Any:
    return op.matmul(a, b)


@operator("Gemm")
def gemm(
    at: Site, a: Expr, b: Expr, c: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
    transB: int = 0, **_: Any,
) -> Any:  # fmt: skip
    dtype = at.dtype_of(a)
    a = at.emit(op.permute_dims(a, [1, 0])) if transA else a
    b = at.emit(op.permute_dims(b, [1, 0])) if transB else b
    found = at.emit(op.matmul(a, b))
    if alpha != 1.0:
        found = at.emit(op.multiply(found, constant(alpha, dtype)))
    if c is None or not beta:
        return found
    return op.add(found, c if beta == 1.0 else op.multiply(c, constant(beta, dtype)))


@operator("Einsum")
def einsum(at: Site, *xs: Expr, equation: str, **_: Any) -> Any:
    text = equation.replace(" ", "")
    if "->" not in text:
        letters = sorted({c for c in text if c.isalpha() and text.count(c) == 1})
        text += "->" + ("..." if "..." in text else "") + "".join(letters)
    return op.einsum(list(xs), subscripts=text)


@operator("Det")
def det(at: Site, x: Expr, **_: Any) -> Any:
    """By elimination with pivots."""
    *batch, n, _m = at.shape_of(x)
    count = n.value
    if count is None or count > 8:
        raise at.fail("onnx-operator", f"Det of matrices of {n} rows: only up to 8 are supported")
    dtype = at.dtype_of(x)
    rank = len(batch)
    total: Any = at.emit(op.ones(batch, dtype))
    for k in range(count):
        size = count - k
        column = at.emit(op.strided_slice(x, [rank + 1], [0], [1]))
        place = at.emit(op.argmax(at.emit(op.abs(column)), axis=rank, keepdims=True))
        rows = at.emit(op.broadcast_to(place, [*batch, Dim.of(1), Dim.of(size)]))
        pivot_row = at.emit(op.gather_elements(x, rows, axis=rank))
        pivot = at.emit(op.strided_slice(pivot_row, [rank + 1], [0], [1]))
        value = at.emit(op.reshape(pivot, batch))
        moved = at.emit(op.reshape(place, batch))
        sign = op.where(
            op.equal(moved, constant(0, at.dtype_of(moved))),
            constant(1, dtype),
            constant(-1, dtype),
        )
        total = at.emit(op.multiply(at.emit(op.multiply(total, value)), at.emit(sign)))
        if size == 1:
            break
        # The first row takes the place of the pivot's, and the others are freed of the first column.
        first = at.emit(op.strided_slice(x, [rank], [0], [1]))
        row = at.emit(op.reshape(op.arange(0, size, 1, dtype="int64"), [size, 1]))
        here = at.emit(op.equal(row, at.cast(place, "int64")))
        swapped = at.emit(op.where(here, first, x))
        rest = at.emit(op.strided_slice(swapped, [rank], [1], [size]))
        zero = constant(0, dtype)
        safe = at.emit(op.where(op.equal(pivot, zero), constant(1, dtype), pivot))
        factor = at.emit(op.divide(at.emit(op.strided_slice(rest, [rank + 1], [0], [1])), safe))
        rest = at.emit(op.subtract(rest, at.emit(op.multiply(factor, pivot_row))))
        x = at.emit(op.strided_slice(rest, [rank + 1], [1], [size]))
    return total


def paddings(
    at: Site, auto: str, pads: Any, sizes: Sequence[Dim], kernel: Sequence[Any], strides: Sequence[int],
    dilations: Sequence[int],
) -> list[Any]:  # fmt: skip
    """The widths before all axes, then those after."""
    check_sizes(at, len(sizes), kernel_shape=kernel, strides=strides, dilations=dilations)
    check_sizes(at, 2 * len(sizes), None, pads=pads)
    if auto in ("NOTSET", "", "VALID"):
        return list(pads) if pads and auto != "VALID" else [0] * (2 * len(kernel))
    before: list[Any] = []
    after: list[Any] = []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        count = (size + s - 1) // s
        total = dim_op("max", (count - 1) * s + (k - 1) * d + 1 - size, 0)
        half = total // 2
        low, high = (half, total - half) if auto == "SAME_UPPER" else (total - half, half)
        before.append(low if low.value is None else low.value)
        after.append(high if high.value is None else high.value)
    return [*before, *after]


_CONV = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}
_TRANSPOSED = {1: op.nn.conv1d_transpose, 2: op.nn.conv2d_transpose, 3: op.nn.conv3d_transpose}


def kernel_of(at: Site, weight: Expr, given: Any) -> list[Any]:
    """The window of a weight: numbers, or sizes that are known only when it runs."""
    if given:
        return list(given)
    return [d if d.value is None else d.value for d in at.shape_of(weight)[2:]]


@operator("Conv")
def conv(
    at: Site, x: Expr, weight: Expr, bias: Any = None, auto_pad: str = "NOTSET", dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, pads: Any = None, strides: Any = None, **_: Any,
) -> Any:  # fmt: skip
    count = at.ndim(x) - 2
    if count not in _CONV:
        raise at.fail("onnx-operator", f"a convolution over {count} axes is not supported")
    strides, dilations = strides or [1] * count, dilations or [1] * count
    kernel = kernel_of(at, weight, kernel_shape)
    check_sizes(at, 1, group=[group])
    widths = paddings(at, auto_pad, pads, at.shape_of(x)[2:], kernel, strides, dilations)
    if not all(isinstance(w, int) and w >= 0 for w in widths):
        borders = [0, 0, *widths[:count], 0, 0, *widths[count:]]
        x = padded(at, x, borders, "constant", constant(0, at.dtype_of(x)))
        widths = [0] * (2 * count)
    found = at.emit(
        _CONV[count](x, weight, strides=strides, padding=widths, dilation=dilations, groups=group)
    )
    return found if bias is None else op.add(found, channels(at, bias, count))


def channels(at: Site, x: Expr, count: int) -> Any:
    """A vector along the channels, before `count` axes."""
    return at.emit(op.reshape(x, [1, at.shape_of(x)[0], *[1] * count])) if count else x


@operator("ConvTranspose")
def conv_transpose(
    at: Site, x: Expr, weight: Expr, bias: Any = None, auto_pad: str = "NOTSET", dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, output_padding: Any = None, output_shape: Any = None,
    pads: Any = None, strides: Any = None, **_: Any,
) -> Any:  # fmt: skip
    count = at.ndim(x) - 2
    strides, dilations = strides or [1] * count, dilations or [1] * count
    kernel = kernel_of(at, weight, kernel_shape)
    more = output_padding or [0] * count
    sizes = at.shape_of(x)[2:]
    check_sizes(at, 1, group=[group])
    check_sizes(at, count, kernel_shape=kernel, strides=strides, dilations=dilations)
    check_sizes(at, count, 0, output_padding=output_padding)
    check_sizes(at, 2 * count, None, pads=pads)
    widths = list(pads or [0] * (2 * count))
    wide = [
        s * (n - 1) + (k - 1) * d + 1
        for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    wanted: Any = None
    if output_shape:
        wanted = [Dim.of(v) for v in output_shape[-count:]]
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(sizes, strides, strict=True)]
    if auto_pad == "VALID":
        widths = [0] * (2 * count)
    if wanted is not None:
        before: list[Any] = []
        after: list[Any] = []
        for size, m, want in zip(wide, more, wanted, strict=True):
            total = dim_op("max", size + m - want, 0)
            low = total // 2 if auto_pad != "SAME_LOWER" else total - total // 2
            before.append(low)
            after.append(total - low)
        whole = _transposed(
            at, x, weight, strides, [0] * (2 * count), dilations, group, more, count
        )
        grown = [dim_op("max", w - s - m, 0) for s, m, w in zip(wide, more, wanted, strict=True)]
        if any(each != 0 for each in grown):
            whole = padded(
                at,
                whole,
                [0, 0, *[0] * count, 0, 0, *grown],
                "constant",
                constant(0, at.dtype_of(x)),
            )
        axes = list(range(2, 2 + count))
        starts = before
        ends: list[Any] = [s + w for s, w in zip(starts, wanted, strict=True)]
        found = at.emit(op.strided_slice(whole, axes, starts, ends))
    else:
        found = _transposed(at, x, weight, strides, widths, dilations, group, more, count)
    return found if bias is None else op.add(found, channels(at, bias, count))


def _transposed(
    at: Site, x: Expr, weight: Expr, strides: Any, widths: Any, dilations: Any, group: int, more: Any, count: int
) -> Any:  # fmt: skip
    attrs: dict[str, Any] = {
        "strides": strides, "padding": widths, "dilation": dilations, "output_padding": more, "groups": group,
    }  # fmt: skip
    return at.emit(_TRANSPOSED[count](x, weight, **attrs))


@operator("Col2Im")
def col2im(
    at: Site, x: Expr, image: Expr, block: Expr, dilations: Any = None, pads: Any = None, strides: Any = None, **_: Any
) -> Any:  # fmt: skip
    """Each element of a column is added where its block lies."""
    sizes = [int(v) for v in at.value(image, "the image's shape").reshape(-1)]
    kernel = [int(v) for v in at.value(block, "the block's shape").reshape(-1)]
    count = len(sizes)
    strides, dilations = strides or [1] * count, dilations or [1] * count
    pads = pads or [0] * (2 * count)
    wide = [s + pads[i] + pads[count + i] for i, s in enumerate(sizes)]
    places = typed("Any", np.zeros((1,) * (2 * count), np.int64))
    for i, (k, t, d) in enumerate(zip(kernel, strides, dilations, strict=True)):
        moves = (wide[i] - d * (k - 1) - 1) // t + 1
        rows_of, moved = (typed("Any", np.arange(n)) for n in (k, moves))
        own = rows_of[:, None] * d + moved * t
        shape = [1] * (2 * count)
        shape[i], shape[count + i] = k, moves
        places = places * wide[i] + own.reshape(shape)
    batch, rows, _columns = at.shape_of(x)
    kept = rows // math.prod(kernel)
    values = at.emit(op.reshape(x, [batch * kept, places.size]))
    index = at.importer.stored(places.reshape(1, -1), "places")
    index = at.emit(op.broadcast_to(index, [batch * kept, places.size]))
    zeros = at.emit(op.zeros([batch * kept, math.prod(wide)], at.dtype_of(x)))
    found = at.emit(op.scatter_elements(zeros, index, values, axis=1, reduction="add"))
    found = at.emit(op.reshape(found, [batch, kept, *wide]))
    ends = [s + p for s, p in zip(sizes, pads, strict=False)]
    return op.strided_slice(found, list(range(2, 2 + count)), pads[:count], ends)
