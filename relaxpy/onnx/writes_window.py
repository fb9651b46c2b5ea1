"""Convolutions, pooling, resizing and sampling of images. Layouts other than ONNX's are transposed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy.ir import Dim, DType
from relaxpy.ir.dim import dim_op
from relaxpy.onnx.write_table import writes
from relaxpy.onnx.write_values import Tensor
from relaxpy.onnx.writer import Place
from relaxpy.onnx.writes_elementwise import saturated
from relaxpy.onnx.writes_index import nearest
from relaxpy.op import adaptive_pool, conv, conv_transpose, grid, pool, pool_indices, resize, roi
from relaxpy.op.data_layout import Layout, padding_pairs, per_axis
from relaxpy.shape.prove import prove


def moved(at: Place, x: Any, source: str, target: str) -> Any:
    """A tensor in another layout of the same axes."""
    layout, other = Layout.of(source), Layout.of(target)
    if layout.blocks or other.blocks:
        raise at.fail(
            f"in the layout {source if layout.blocks else target}: use one without blocks"
        )
    return at.transpose(x, [layout.letters.index(letter) for letter in other.letters])


def _named(at: Place, x: Tensor, layout: str) -> dict[str, Dim]:
    return dict(zip(Layout.of(layout).letters, at.dims(x), strict=True))


@writes(conv.Conv1d, conv.Conv2d, conv.Conv3d)
def convolution(at: Place, op: conv.Convolution, x: Tensor, weight: Tensor) -> Any:
    plain, count = f"NC{op.spatial}", len(op.spatial)
    out = op.out_dtype or x.dtype
    wide = out if x.dtype.is_float and out.bits > x.dtype.bits else x.dtype
    bytes_ = all(each.dtype in ("int8", "uint8") for each in (x, weight))
    kernel = moved(
        at, weight if bytes_ else at.cast(weight, wide), op.kernel_layout, f"OI{op.spatial}"
    )
    pairs = padding_pairs(op.padding, count)
    attrs = {
        "strides": list(per_axis(op.strides, count)), "dilations": list(per_axis(op.dilation, count)),
        "group": op.groups, "pads": [pair[0] for pair in pairs] + [pair[1] for pair in pairs],
    }  # fmt: skip
    data = moved(at, at.cast(x, wide), op.data_layout, plain)
    if x.dtype.is_float:
        found, made = at.node("Conv", data, kernel, **attrs), wide
    elif bytes_:
        found, made = at.node("ConvInteger", data, kernel, **attrs), "int32"
    else:
        raise at.fail(f"of {x.dtype}: cast to float32")
    found = at.cast(found, out, made)
    return moved(at, found, plain, op.out_layout or op.data_layout)


@writes(
    conv_transpose.Conv1dTranspose, conv_transpose.Conv2dTranspose, conv_transpose.Conv3dTranspose
)
def transposed_convolution(
    at: Place, op: conv_transpose.TransposedConvolution, x: Tensor, weight: Tensor
) -> Any:
    if not x.dtype.is_float:
        raise at.fail(f"of {x.dtype}: cast to float32")
    plain, count = f"NC{op.spatial}", len(op.spatial)
    out = op.out_dtype or x.dtype
    wide = out if out.bits > x.dtype.bits else x.dtype
    data = moved(at, at.cast(x, wide), op.data_layout, plain)
    kernel = moved(at, at.cast(weight, wide), op.kernel_layout, f"IO{op.spatial}")
    pairs = padding_pairs(op.padding, count)
    found = at.node(
        "ConvTranspose", data, kernel, strides=list(per_axis(op.strides, count)),
        dilations=list(per_axis(op.dilation, count)), group=op.groups,
        output_padding=list(per_axis(op.output_padding, count)),
        pads=[pair[0] for pair in pairs] + [pair[1] for pair in pairs],
    )  # fmt: skip
    return moved(at, at.cast(found, out, wide), plain, op.out_layout or op.data_layout)


def _windows(op: pool.Pooling) -> dict[str, Any]:
    windows = op.windows()
    return {
        "kernel_shape": [w.size for w in windows], "strides": [w.stride for w in windows],
        "pads": [w.before for w in windows] + [w.after for w in windows],
        "dilations": [w.dilation for w in windows], "ceil_mode": int(op.ceil_mode),
    }  # fmt: skip


@writes(pool.MaxPool1d, pool.MaxPool2d, pool.MaxPool3d)
def max_pool(at: Place, op: pool.MaxPooling, x: Tensor) -> Any:
    plain = f"NC{op.spatial}"
    if x.dtype.is_int and x.dtype not in ("int8", "uint8"):
        raise at.fail(f"of {x.dtype}: cast to float32")
    found = at.node("MaxPool", moved(at, x, op.layout, plain), **_windows(op))
    return moved(at, found, plain, op.out_layout or op.layout)


@writes(pool_indices.MaxPool1dIndices, pool_indices.MaxPool2dIndices, pool_indices.MaxPool3dIndices)
def max_pool_indices(at: Place, op: pool_indices.MaxPoolingIndices, x: Tensor) -> Any:
    """ONNX's indices count through all planes."""
    plain = f"NC{op.spatial}"
    if not x.dtype.is_float:
        raise at.fail(f"of {x.dtype}: cast to float32")
    _, indices = at.nodes("MaxPool", 2, moved(at, x, op.layout, plain), **_windows(op))
    named = _named(at, x, op.layout)
    plane = Dim.of(1)
    for letter in op.spatial:
        plane = plane * named[letter]
    found = at.node("Mod", indices, at.scalar(plane))
    return moved(at, found, plain, op.out_layout or op.layout)


@writes(pool.AvgPool1d, pool.AvgPool2d, pool.AvgPool3d)
def avg_pool(at: Place, op: pool.AveragePooling, x: Tensor) -> Any:
    if not x.dtype.is_float:
        raise at.fail(f"of {x.dtype}: cast to float32")
    plain, attrs = f"NC{op.spatial}", _windows(op)
    if all(step == 1 for step in attrs["dilations"]):
        del attrs["dilations"]
    else:
        at.need(19, "with a dilation")
    found = at.node(
        "AveragePool",
        moved(at, x, op.layout, plain),
        count_include_pad=int(op.count_include_pad),
        **attrs,
    )
    return moved(at, found, plain, op.out_layout or op.layout)


@writes(
    adaptive_pool.AdaptiveAvgPool1d,
    adaptive_pool.AdaptiveAvgPool2d,
    adaptive_pool.AdaptiveAvgPool3d,
)
def adaptive_avg_pool(at: Place, op: adaptive_pool.AdaptiveAveragePooling, x: Tensor) -> Any:
    if not x.dtype.is_float:
        raise at.fail(f"of {x.dtype}: cast to float32")
    plain, parts = f"NC{op.spatial}", op.parts()
    data = moved(at, x, op.layout, plain)
    if not parts:
        found = at.node("Identity", data)
    elif all(count == 1 for count in parts.values()):
        found = at.node("GlobalAveragePool", data)
    else:
        named = _named(at, x, op.layout)
        sizes = [named[letter].value for letter in op.spatial]
        steps = [(n or 1) // parts[s] for s, n in zip(op.spatial, sizes, strict=True)]
        if all(n == step * parts[s] for s, n, step in zip(op.spatial, sizes, steps, strict=True)):
            found = at.node("AveragePool", data, kernel_shape=steps, strides=steps)
        else:
            found = data
            for axis, letter in enumerate(op.spatial, 2):
                found = _means(at, found, axis, named[letter], parts[letter])
    return moved(at, found, plain, op.out_layout or op.layout)


def _means(at: Place, x: Any, axis: int, size: Dim, count: int) -> str:
    """The means of windows along an axis, which may overlap and be of several sizes."""
    parts: list[str] = []
    for i in range(count):
        first, last = size * i // count, (size * (i + 1) + (count - 1)) // count
        part = at.slice(x, axis, first, last)
        parts.append(at.node("ReduceMean", part, at.ints([axis]), keepdims=1))
    return parts[0] if count == 1 else at.node("Concat", *parts, axis=axis)


_METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}
_COORDINATES = {
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
}


@writes(resize.Resize2d, resize.Resize3d)
def resized(at: Place, op: resize.Resize, x: Tensor, size: Sequence[Dim]) -> Any:
    plain, count = f"NC{op.spatial}", len(op.spatial)
    coordinates, rounding = op.coordinate_transformation_mode, op.rounding
    nearest = op.method == "nearest_neighbor"
    if coordinates not in _COORDINATES:
        raise at.fail(f'with coordinate_transformation_mode="{coordinates}"')
    if nearest and rounding == "round":
        raise at.fail('with rounding_method "round", halves to even: ONNX has round_prefer_floor')
    if op.method == "cubic" and count == 3:
        raise at.fail("with cubic interpolation of volumes")
    dtype = op.out_dtype or x.dtype
    if not nearest and not x.dtype.is_float:
        raise at.fail(f"of {x.dtype}, interpolated: cast to float32")
    region = None
    if op.crops:
        bounds = [op.region(axis) for axis in range(count)]
        ends = [[0.0, 0.0, *(b[0] for b in bounds)], [1.0, 1.0, *(b[1] for b in bounds)]]
        region = at.array(np.array([*ends[0], *ends[1]], np.float32))
    named = _named(at, x, op.layout)
    wanted = at.shape([named["N"], named["C"], *size])
    found = at.node(
        "Resize", moved(at, x, op.layout, plain), region, None, wanted, mode=_METHODS[op.method],
        coordinate_transformation_mode=coordinates, nearest_mode=rounding if nearest else None,
        cubic_coeff_a=float(op.cubic_alpha) if op.method == "cubic" else None,
        exclude_outside=int(op.cubic_exclude) if op.method == "cubic" else None,
        extrapolation_value=float(op.extrapolation_value) if op.crops else None,
    )  # fmt: skip
    return moved(at, at.cast(found, dtype, x.dtype), plain, op.layout)


@writes(grid.GridSample)
def grid_sample(at: Place, op: grid.GridSample, x: Tensor, points: Tensor) -> Any:
    spatial = op.spatial
    plain, count = f"NC{spatial}", len(spatial)
    if count == 3:
        at.need(20, "of volumes")
        if op.method == "bicubic":
            raise at.fail("with bicubic interpolation of volumes")
    names = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}
    mode = names[op.method]
    if at.opset < 20:
        mode = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}[mode]
    last = at.transpose(points, [0, *range(2, 2 + count), 1])
    found = at.node(
        "GridSample", moved(at, x, op.layout, plain), last, mode=mode, padding_mode=op.padding_mode,
        align_corners=int(op.align_corners),
    )  # fmt: skip
    return moved(at, found, plain, op.layout)


@writes(grid.AffineGrid)
def affine_grid(at: Place, op: grid.AffineGrid, x: Tensor, size: Sequence[Dim]) -> Any:
    batch, count = at.dims(x)[0], len(size)
    # The only point of an axis is its middle here, and anything elsewhere.
    several = all(prove(dim_op("le", 2, each)) for each in size)
    if at.opset >= 20 and (several or not op.align_corners):
        shape = at.shape([batch, 1, *size])
        found = at.node("AffineGrid", x, shape, align_corners=int(op.align_corners))
        return at.transpose(found, [0, count + 1, *range(1, count + 1)])
    wide = at.shape(size)
    rows: list[str] = []
    for axis, n in enumerate(size):
        last = n - 1
        steps = at.node("Range", at.number(0, "int64"), at.scalar(n), at.number(1, "int64"))
        twice = at.node("Sub", at.node("Mul", steps, at.number(2, "int64")), at.scalar(last))
        along = at.reshape(twice, [n, *[1] * (count - axis - 1)])
        width = at.scalar(dim_op("max", last, 1) if op.align_corners else n, "float32")
        point = at.node("Div", at.cast(along, "float32", "int64"), width)
        rows.insert(0, at.node("Reshape", at.node("Expand", point, wide), at.ints([1, -1])))
    ones = at.node("Expand", at.number(1, "float32"), at.node("Shape", rows[0]))
    points = at.node("Concat", *rows, ones, axis=0)
    found = at.node("MatMul", at.cast(x, "float32"), points)
    return at.cast(at.reshape(found, [batch, count, *size]), x.dtype, "float32")


def _images(at: Place, x: Tensor, layout: str, given: Any, rois: Tensor) -> str:
    """The numbers of the regions' images, none out of range."""
    own = Tensor(given, rois.dtype, 1, at.dims(rois)[:1])
    return nearest(at, saturated(at, own, DType("int64")), at.scalar(_named(at, x, layout)["N"]))


@writes(roi.RoiAlign)
def roi_align(at: Place, op: roi.RoiAlign, x: Tensor, rois: Tensor) -> Any:
    if op.mode == "max":
        raise at.fail('with mode="max", of which runtimes disagree')
    rows, columns = per_axis(op.pooled_size, 2)
    which = _images(
        at, x, op.layout, at.node("Squeeze", at.slice(rois, 1, 0, 1), at.ints([1])), rois
    )
    corners = at.slice(rois, 1, 1, 5)
    if op.aligned:  # ONNX moves the regions by half an element
        corners = at.node("Add", corners, at.number(0.5 / op.spatial_scale, rois.dtype))
    found = at.node(
        "RoiAlign", moved(at, x, op.layout, "NCHW"), corners, which, mode=op.mode,
        output_height=rows, output_width=columns, sampling_ratio=max(op.sample_ratio, 0),
        spatial_scale=float(op.spatial_scale),
        coordinate_transformation_mode="half_pixel" if op.aligned else "output_half_pixel",
    )  # fmt: skip
    return moved(at, found, "NCHW", op.layout)


@writes(roi.RoiPool)
def roi_pool(at: Place, op: roi.RoiPool, x: Tensor, rois: Tensor) -> Any:
    if at.opset >= 22 and x.dtype == "bfloat16":
        raise at.fail("of bfloat16")
    images = _images(at, x, op.layout, at.squeeze(at.slice(rois, 1, 0, 1), [1]), rois)
    scaled = at.node("Mul", at.slice(rois, 1, 1, 5), at.number(op.spatial_scale, rois.dtype))
    # Halves are rounded up, and in runtimes away from 0.
    corners = at.node("Floor", at.node("Add", scaled, at.number(0.5, rois.dtype)))
    first = at.cast(at.unsqueeze(images, [1]), rois.dtype, "int64")
    return at.node(
        "MaxRoiPool", moved(at, x, op.layout, "NCHW"), at.node("Concat", first, corners, axis=1),
        pooled_shape=list(per_axis(op.pooled_size, 2)),
    )  # fmt: skip
