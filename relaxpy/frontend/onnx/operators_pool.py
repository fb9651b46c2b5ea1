"""Pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.operators_linear import paddings
from relaxpy.frontend.onnx.operators_shape import padded
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import product

_MAX = {
    1: (op.nn.max_pool1d, op.nn.max_pool1d_indices),
    2: (op.nn.max_pool2d, op.nn.max_pool2d_indices),
    3: (op.nn.max_pool3d, op.nn.max_pool3d_indices),
}
_AVERAGE = {1: op.nn.avg_pool1d, 2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}


def _spatial(at: Site, x: Expr) -> list[int]:
    """The axes behind batch and channels."""
    rank = at.ndim(x)
    if rank < 3:
        raise at.fail(
            "onnx-file", f"{at.node.title} takes at least 3 dimensions, and its input has {rank}"
        )
    return list(range(2, rank))


def _window(
    at: Site, x: Expr, kernel: Sequence[int], strides: Any, pads: Any, dilations: Any, auto_pad: str,
    ceil_mode: int, fill: Any,
) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """The tensor and the attributes of a pooling; a padding that is no number becomes a border of `fill`."""
    count = len(_spatial(at, x))
    strides, dilations = list(strides or [1] * count), list(dilations or [1] * count)
    widths = paddings(at, auto_pad, pads, at.shape_of(x)[2:], kernel, strides, dilations)
    if not all(isinstance(w, int) for w in widths):
        borders = [0, 0, *widths[:count], 0, 0, *widths[count:]]
        x = padded(at, x, borders, "constant", fill)
        widths = [0] * (2 * count)
    return x, {
        "pool_size": list(kernel), "strides": strides, "padding": widths, "dilation": dilations,
        "ceil_mode": bool(ceil_mode),
    }  # fmt: skip


def _least(dtype: Any) -> Any:
    return constant(-np.inf if dtype.is_float else dtype.limits[0], dtype)


@operator("MaxPool")
def max_pool(
    at: Site, x: Expr, kernel_shape: Sequence[int], strides: Any = None, pads: Any = None,
    dilations: Any = None, auto_pad: str = "NOTSET", ceil_mode: int = 0, storage_order: int = 0, **_: Any,
) -> Any:  # fmt: skip
    count = len(_spatial(at, x))
    dtype = at.dtype_of(x)
    dims = at.shape_of(x)
    bordered, attrs = _window(
        at, x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode, _least(dtype)
    )
    values, places = _MAX[count]
    found = values(bordered, **attrs)
    if not at.wants(1):
        return found
    if bordered is not x:
        raise at.fail(
            "onnx-operator", "MaxPool with indices, with a padding that is known only when it runs"
        )
    index = at.cast(at.emit(places(x, **attrs)), "int64")
    planes = dims[2:]
    if storage_order:
        index = _together(at, _apart(at, index, planes)[::-1], planes[::-1])
    rank = len(dims)
    whole = product(tuple(planes))
    rows = at.emit(op.arange(0, dims[0] * dims[1], 1, dtype="int64"))
    rows = at.emit(op.reshape(rows, [dims[0], dims[1], *[1] * (rank - 2)]))
    return [found, op.add(index, at.emit(op.multiply(rows, at.number(whole, "int64"))))]


def _apart(at: Site, index: Expr, sizes: Sequence[Dim]) -> list[Any]:
    """The indices along axes of these sizes of elements that are numbered through."""
    left: Any = index
    parts: list[Any] = []
    for size in reversed(sizes):
        each = at.number(size, "int64")
        parts.insert(0, at.emit(op.floor_mod(left, each)))
        left = at.emit(op.floor_divide(left, each))
    return parts


def _together(at: Site, parts: Sequence[Any], sizes: Sequence[Dim]) -> Any:
    """The number of the element at these indices."""
    total: Any = None
    for part, size in zip(parts, sizes, strict=True):
        whole = at.number(size, "int64")
        total = part if total is None else at.emit(op.add(op.multiply(total, whole), part))
    return total


@operator("AveragePool")
def average_pool(
    at: Site, x: Expr, kernel_shape: Sequence[int], strides: Any = None, pads: Any = None,
    dilations: Any = None, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0, **_: Any,
) -> Any:  # fmt: skip
    count = at.ndim(x) - 2
    zero = constant(0, at.dtype_of(x))
    bordered, attrs = _window(
        at, x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode, zero
    )
    function = _AVERAGE[count]
    if bordered is x or count_include_pad:
        return function(bordered, **attrs, count_include_pad=bool(count_include_pad))
    ones = at.emit(op.ones(at.shape_of(x), at.dtype_of(x)))
    inside, _ = _window(at, ones, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode, zero)
    shares = at.emit(function(inside, **attrs, count_include_pad=True))
    return op.divide(at.emit(function(bordered, **attrs, count_include_pad=True)), shares)


@operator("LpPool")
def lp_pool(
    at: Site, x: Expr, kernel_shape: Sequence[int], p: float = 2, strides: Any = None, pads: Any = None,
    dilations: Any = None, auto_pad: str = "NOTSET", ceil_mode: int = 0, **_: Any,
) -> Any:  # fmt: skip
    dtype = at.dtype_of(x)
    power = at.emit(op.power(op.abs(x), constant(p, dtype)))
    bordered, attrs = _window(
        at, power, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode, constant(0, dtype)
    )
    # A last window beyond the padding is of zeros there, which a mean counts only as padding.
    count = at.ndim(x) - 2
    widths = attrs["padding"]
    more = [
        (k - 1) * d + s
        for k, d, s in zip(kernel_shape, attrs["dilation"], attrs["strides"], strict=True)
    ]
    sizes: list[Any] = []
    if ceil_mode:
        sizes = [
            (n + a + b - (k - 1) * d - 1 + s - 1) // s + 1
            for n, a, b, k, d, s in zip(
                at.shape_of(bordered)[2:], widths[:count], widths[count:], kernel_shape, attrs["dilation"],
                attrs["strides"], strict=True,
            )
        ]  # fmt: skip
        attrs["padding"] = [
            *widths[:count],
            *(w + m for w, m in zip(widths[count:], more, strict=True)),
        ]
        attrs["ceil_mode"] = False
    mean = at.emit(_AVERAGE[count](bordered, **attrs, count_include_pad=True))
    if ceil_mode:
        mean = at.emit(op.strided_slice(mean, list(range(2, 2 + count)), [0] * count, sizes))
    total = op.multiply(mean, constant(np.prod(kernel_shape), dtype))
    return op.power(total, constant(1 / p, dtype))


def _global(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, **_: Any) -> Any:
        return function(x, axis=_spatial(at, x), keepdims=True)

    return rule


operator("GlobalAveragePool")(_global(op.mean))
operator("GlobalMaxPool")(_global(op.max))


@operator("GlobalLpPool")
def global_lp_pool(at: Site, x: Expr, p: float = 2, **_: Any) -> Any:
    dtype = at.dtype_of(x)
    power = at.emit(op.power(op.abs(x), constant(p, dtype)))
    total = at.emit(op.sum(power, axis=_spatial(at, x), keepdims=True))
    return op.power(total, constant(1 / p, dtype))


@operator("MaxUnpool")
def max_unpool(
    at: Site, x: Expr, indices: Expr, shape: Any = None, kernel_shape: Sequence[int] = (), strides: Any = None,
    pads: Any = None, **_: Any,
) -> Any:  # fmt: skip
    dims = at.shape_of(x)
    count = len(dims) - 2
    strides, pads = strides or [1] * count, pads or [0] * (2 * count)
    inner = [
        (n - 1) * s - pads[i] - pads[count + i] + k
        for i, (n, s, k) in enumerate(zip(dims[2:], strides, kernel_shape, strict=True))
    ]
    wanted = [*dims[:2], *inner]
    own = product(tuple(wanted))
    flat, places = (at.emit(op.reshape(each, [product(tuple(dims))])) for each in (x, indices))
    if shape is not None:
        given = at.ints(shape, "the shape")
        # The indices are those of the inferred shape's elements: each moves to its place in the given one.
        places = _together(at, _apart(at, places, wanted), given)
        wanted = given
        own = product(tuple(given))
    zeros = at.emit(op.zeros([own], at.dtype_of(x)))
    return op.reshape(at.emit(op.scatter_elements(zeros, places, flat, axis=0)), wanted)


@operator("RoiAlign")
def roi_align(
    at: Site, x: Expr, rois: Expr, batch: Expr, mode: str = "avg", output_height: int = 1, output_width: int = 1,
    sampling_ratio: int = 0, spatial_scale: float = 1.0, coordinate_transformation_mode: str = "half_pixel", **_: Any,
) -> Any:  # fmt: skip
    aligned = at.version >= 16 and coordinate_transformation_mode == "half_pixel"
    number = at.emit(op.expand_dims(at.cast(batch, at.dtype_of(rois)), [1]))
    if mode == "max":
        raise at.fail(
            "onnx-operator",
            "RoiAlign with the mode max, which ONNX defines by the weighted corners, is not supported",
        )
    if aligned:
        rois = at.emit(op.subtract(rois, constant(0.5 / spatial_scale, at.dtype_of(rois))))
    boxes = at.emit(op.concat([number, rois], axis=1))
    return op.vision.roi_align(
        x, boxes, (output_height, output_width), spatial_scale, sampling_ratio if sampling_ratio > 0 else -1,
        aligned, mode=mode,
    )  # fmt: skip


@operator("MaxRoiPool")
def max_roi_pool(
    at: Site, x: Expr, rois: Expr, pooled_shape: Sequence[int], spatial_scale: float = 1.0, **_: Any
) -> Any:
    return op.vision.roi_pool(x, rois, list(pooled_shape), spatial_scale)
