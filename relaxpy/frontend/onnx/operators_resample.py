"""Resizing, and sampling at coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.table import operator
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import product


@operator("Upsample")
def upsample(
    at: Site, x: Expr, given: Any = None, scales: Any = None, mode: str = "nearest", **attrs: Any
) -> Any:
    if given is None:
        sides = [attrs.get(f"{side}_scale", 1.0) for side in ("height", "width")]  # of version 1
        given = constant(scales or [1.0, 1.0, *sides], "float32")
    return resize_v10(at, x, given, mode)


@operator("Resize")
def resize_v10(at: Site, x: Expr, scales: Any, mode: str = "nearest", **_: Any) -> Any:
    mode = {"bilinear": "linear"}.get(mode, mode)
    return resize(
        at,
        x,
        None,
        scales,
        mode=mode,
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )


@operator("Resize", since=11)
def resize(
    at: Site, x: Expr, roi: Any = None, scales: Any = None, sizes: Any = None, mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75, exclude_outside: int = 0,
    extrapolation_value: float = 0.0, nearest_mode: str = "round_prefer_floor", antialias: int = 0,
    axes: Sequence[int] | None = None,
    keep_aspect_ratio_policy: str = "stretch", **_: Any,
) -> Any:  # fmt: skip
    dims = at.shape_of(x)
    axes = [at.axis(a, len(dims)) for a in axes] if axes is not None else list(range(len(dims)))
    if sizes is not None and not _is_empty(at, sizes):
        if antialias:
            at.value(sizes, "the sizes")
        wanted = at.ints(sizes, "the sizes")
        factors: list[Any] = [None] * len(axes)
        if keep_aspect_ratio_policy != "stretch":
            wanted = [Dim.of(int(v)) for v in at.value(sizes, "the sizes").reshape(-1)]
            wanted, factors = _kept_aspect(
                at, [dims[a] for a in axes], wanted, keep_aspect_ratio_policy
            )
    else:
        factors = [float(f) for f in at.value(scales, "the scales").reshape(-1)]
        if not all(0 < factor < np.inf for factor in factors):
            raise at.fail("onnx-file", f"{at.node.title} by {factors}: scales are positive numbers")
        wanted = [_scaled(at, dims[a], f) for a, f in zip(axes, factors, strict=False)]
    if len(wanted) != len(axes):
        raise at.fail(
            "onnx-file", f"{at.node.title} has {len(wanted)} sizes or scales for {len(axes)} axes"
        )
    if any(each.value is not None and each.value < 0 for each in wanted):
        raise at.fail("onnx-file", f"{at.node.title} to a negative size")
    region: Any = None
    if coordinate_transformation_mode == "tf_crop_and_resize":
        region = at.value(roi, "the region of interest").reshape(-1).astype(float)
    dtype = at.dtype_of(x)
    wide = dtype if mode == "nearest" or dtype == "float64" else "float32"
    found: Any = x
    rest: list[tuple[int, Dim, Any, Any]] = []
    for i, (axis, size, factor) in enumerate(zip(axes, wanted, factors, strict=True)):
        bounds = None if region is None else (region[i], region[len(axes) + i])
        if size != dims[axis] or factor not in (None, 1.0) or bounds not in (None, (0, 1)):
            rest.append((axis, size, factor, bounds))
    if not rest:
        return x
    fast = _by_operator(
        at,
        x,
        rest,
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        exclude_outside,
        antialias,
    )
    if fast is not None:
        return fast
    found = at.cast(found, wide)
    for axis, size, factor, bounds in rest:
        taps = _taps(
            at, dims[axis], size, factor, bounds, mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a,
            exclude_outside, antialias,
        )  # fmt: skip
        found = _weighted(at, found, axis, dims[axis], taps, bounds, extrapolation_value)
    if not dtype.is_float and mode != "nearest":
        found = at.emit(op.trunc(found))
        low, high = dtype.limits
        found = at.emit(op.clip(found, float(low), float(high)))
    return at.cast(found, dtype)


def _is_empty(at: Site, x: Any) -> bool:
    return product(tuple(at.shape_of(x))) == 0


def _scaled(at: Site, size: Dim, factor: float) -> Dim:
    """A size times a factor, rounded down."""
    if size.value is not None:
        return Dim.of(int(np.floor(np.float64(np.float32(factor)) * size.value)))
    for power in range(_POWERS):  # a float of 24 bits
        whole = float(np.float32(factor)) * 2**power
        if whole == int(whole):
            return size * int(whole) // 2**power
    raise at.fail("onnx-operator", f"{at.node.op} by {factor}, which is too small")


_POWERS = 40


def _kept_aspect(
    at: Site, dims: Sequence[Dim], wanted: Sequence[Dim], policy: str
) -> tuple[list[Dim], list[Any]]:
    pairs = [(d.value, w.value) for d, w in zip(dims, wanted, strict=True)]
    if any(None in pair for pair in pairs):
        raise at.fail(
            "onnx-operator", f"Resize with {policy} of sizes that are known only when it runs"
        )
    ratios = [(w or 0) / (d or 1) for d, w in pairs]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [Dim.of(int(scale * (d or 0) + 0.5)) for d, _ in pairs], [scale] * len(pairs)


_MODES = {
    "half_pixel": "half_pixel", "align_corners": "align_corners", "asymmetric": "asymmetric",
}  # fmt: skip
_ROUNDINGS = {
    "round_prefer_floor": "round_prefer_floor", "round_prefer_ceil": "round_prefer_ceil", "floor": "floor",
    "ceil": "ceil",
}  # fmt: skip


def _by_operator(
    at: Site, x: Expr, rest: Sequence[tuple[int, Dim, Any, Any]], mode: str, coordinates: str, rounding: str,
    alpha: float,
    exclude: int, antialias: int,
) -> Any:  # fmt: skip
    """`image.resize2d` where that is the same: the scale is exactly the ratio of the sizes, of two spatial axes."""
    dims = at.shape_of(x)
    if len(dims) != 4 or antialias or coordinates not in _MODES or not at.dtype_of(x).is_float:
        return None
    sizes = list(dims)
    for axis, size, factor, bounds in rest:
        ratio = 1 if factor is None else factor
        exact = factor is None or dims[axis] * round(ratio * 2**16) == size * 2**16
        if axis < 2 or not exact or bounds is not None:
            return None
        sizes[axis] = size
    if mode == "nearest" and not all(_is_power_of_2(dims[a], sizes[a]) for a in (2, 3)):
        return None
    method = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}[mode]
    return op.image.resize2d(
        x, sizes[2:], method=method, coordinate_transformation_mode=_MODES[coordinates],
        rounding_method=_ROUNDINGS[rounding], cubic_alpha=alpha, cubic_exclude=exclude,
    )  # fmt: skip


def _is_power_of_2(given: Dim, wanted: Dim) -> bool:
    """Is no position rounded otherwise for being a sum of floats?"""
    return any(given * 2**k == wanted or wanted * 2**k == given for k in range(12))


def _taps(
    at: Site, size: Dim, wanted: Dim, factor: float | None, bounds: Any, mode: str, coordinates: str, rounding: str,
    alpha: float, exclude: int, antialias: int,
) -> Any:  # fmt: skip
    """Which elements each element of the result is the weighted sum of: (indices, weights) of each tap, and the places
    outside of the region."""
    kind = "float64"

    def number(value: Any) -> Any:
        return at.number(value, kind) if isinstance(value, Dim) else constant(value, kind)

    steps = at.cast(at.emit(op.arange(0, wanted, 1, dtype="int64")), kind)
    old = number(size)
    scale = at.emit(op.divide(number(wanted), old)) if factor is None else constant(factor, kind)
    new = at.emit(op.multiply(scale, old))
    one, half = constant(1, kind), constant(0.5, kind)
    is_one = at.emit(op.equal(new, one))
    outside: Any = None
    last = at.emit(op.subtract(old, one))
    if coordinates == "align_corners":
        several = at.emit(op.where(is_one, one, op.subtract(new, one)))
        position = at.emit(op.divide(op.multiply(steps, last), several))
        position = at.emit(op.where(is_one, constant(0, kind), position))
    elif coordinates == "asymmetric":
        position = at.emit(op.divide(steps, scale))
    elif coordinates == "tf_crop_and_resize":
        start, end = map(float, bounds)
        several = at.emit(op.where(is_one, one, op.subtract(new, one)))
        stretch = at.emit(op.multiply(constant(end - start, kind), last))
        position = at.emit(op.divide(op.multiply(steps, stretch), several))
        position = at.emit(op.where(is_one, op.multiply(stretch, half), position))
        position = at.emit(op.add(position, op.multiply(constant(start, kind), last)))
        outside = at.emit(
            op.logical_or(op.less(position, constant(0, kind)), op.greater(position, last))
        )
    else:
        position = at.emit(op.subtract(op.divide(op.add(steps, half), scale), half))
        if coordinates == "pytorch_half_pixel":
            position = at.emit(op.where(is_one, constant(-0.5, kind), position))
        elif coordinates == "half_pixel_symmetric":
            adjust = at.emit(op.divide(number(wanted), new))
            offset = at.emit(op.multiply(op.multiply(old, half), op.subtract(one, adjust)))
            position = at.emit(op.add(position, offset))
        elif coordinates != "half_pixel":
            raise at.fail(
                "onnx-operator", f"Resize with the coordinates {coordinates!r} is not supported"
            )
    if mode == "nearest":
        if rounding == "round_prefer_floor":
            rounded = op.ceil(op.subtract(position, half))
        elif rounding == "round_prefer_ceil":
            rounded = op.floor(op.add(position, half))
        else:
            rounded = (op.floor if rounding == "floor" else op.ceil)(position)
        return [(at.cast(at.emit(rounded), "int64"), None)], outside
    low = at.emit(op.floor(position))
    t = at.emit(op.subtract(position, low))
    offsets, weights = _weights(at, t, mode, alpha, scale if antialias else None)
    pairs = [
        (at.cast(at.emit(op.add(low, constant(o, kind))), "int64"), w)
        for o, w in zip(offsets, weights, strict=True)
    ]
    if exclude or antialias:
        total: Any = None
        kept: list[Any] = []
        for place, weight in pairs:
            if exclude:
                beyond = op.logical_or(
                    op.less(place, constant(0, "int64")),
                    op.greater(place, at.number(size - 1, "int64")),
                )
                weight = at.emit(op.where(at.emit(beyond), constant(0, kind), weight))
            kept.append((place, weight))
            total = weight if total is None else at.emit(op.add(total, weight))
        pairs = [(place, at.emit(op.divide(weight, total))) for place, weight in kept]
    return pairs, outside


def _weights(at: Site, t: Any, mode: str, alpha: float, scale: Any) -> tuple[list[int], list[Any]]:
    """The weights of the neighbours at these distances below the position's floor, for fractions t."""
    kind = "float64"

    def distance(offset: int) -> Any:
        return at.emit(op.abs(op.subtract(constant(offset, kind), t)))

    def cubic(d: Any) -> Any:
        near = _polynomial(at, d, alpha + 2, -(alpha + 3), 0.0, 1.0)
        far = _polynomial(at, d, alpha, -5 * alpha, 8 * alpha, -4 * alpha)
        inner = at.emit(op.where(op.less(d, constant(2, kind)), far, constant(0, kind)))
        return at.emit(op.where(op.less_equal(d, constant(1, kind)), near, inner))

    def linear(d: Any) -> Any:
        return at.emit(op.maximum(op.subtract(constant(1, kind), d), constant(0, kind)))

    function, reach = (cubic, 2) if mode == "cubic" else (linear, 1)
    if scale is None:
        offsets = list(range(1 - reach, 1 + reach))
        return offsets, [function(distance(o)) for o in offsets]
    shrink = float(at.number_of(scale, "the scale of Resize with antialias"))
    shrink = min(shrink, 1.0)
    start = int(math.floor(-reach / shrink) + 1)
    offsets = list(range(start, 2 - start))
    return offsets, [
        function(at.emit(op.multiply(distance(o), constant(shrink, kind)))) for o in offsets
    ]


def _polynomial(at: Site, x: Any, *coefficients: float) -> Any:
    found: Any = constant(coefficients[0], "float64")
    for each in coefficients[1:]:
        found = at.emit(op.add(op.multiply(found, x), constant(each, "float64")))
    return found


def _weighted(at: Site, x: Any, axis: int, size: Dim, taps: Any, bounds: Any, beyond: float) -> Any:
    pairs, outside = taps
    dtype = at.dtype_of(x)
    column = [1] * (at.ndim(x) - axis - 1)
    last, zero = at.number(size - 1, "int64"), constant(0, "int64")
    total: Any = None
    for place, weight in pairs:
        place = at.emit(op.maximum(op.minimum(place, last), zero))
        part = at.emit(op.take(x, place, axis=axis))
        if weight is not None:
            weight = at.cast(at.emit(op.reshape(weight, [*at.shape_of(weight), *column])), dtype)
            part = at.emit(op.multiply(part, weight))
        total = part if total is None else at.emit(op.add(total, part))
    if outside is not None:
        mask = at.emit(op.reshape(outside, [*at.shape_of(outside), *column]))
        total = at.emit(op.where(mask, constant(beyond, dtype), total))
    return total


@operator("GridSample")
def grid_sample(
    at: Site, x: Expr, grid: Expr, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros", **_: Any
) -> Any:  # fmt: skip
    rank = at.ndim(grid)
    turned = at.emit(op.permute_dims(grid, [0, rank - 1, *range(1, rank - 1)]))
    method = {
        "linear": "bilinear",
        "bilinear": "bilinear",
        "cubic": "bicubic",
        "bicubic": "bicubic",
        "nearest": "nearest",
    }
    return op.image.grid_sample(
        x, turned, method=method[mode], layout="NCHW" if rank == 4 else "NCDHW", padding_mode=padding_mode,
        align_corners=bool(align_corners),
    )  # fmt: skip


@operator("DeformConv")
def deform_conv(
    at: Site, x: Expr, weight: Expr, offset: Expr, bias: Any = None, mask: Any = None, dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, offset_group: int = 1, pads: Any = None, strides: Any = None, **_: Any,
) -> Any:  # fmt: skip
    """Each element of the window is sampled where its offset says; then a convolution over the samples."""
    from relaxpy.frontend.onnx.operators_linear import channels, kernel_of

    if at.ndim(x) != 4:
        raise at.fail("onnx-operator", "DeformConv over other than two axes is not supported")
    kernel = kernel_of(at, weight, kernel_shape)
    strides, dilations, pads = strides or [1, 1], dilations or [1, 1], pads or [0, 0, 0, 0]
    n, c, h, w = at.shape_of(x)
    high, across = at.shape_of(offset)[2:]
    dtype = at.dtype_of(x)
    share = c // offset_group
    points = kernel[0] * kernel[1]
    planes: list[Any] = []
    for g in range(offset_group):
        part = at.emit(op.strided_slice(x, [1], [share * g], [share * (g + 1)]))
        for k in range(points):
            i, j = divmod(k, kernel[1])
            row = _moved(
                at,
                offset,
                2 * (g * points + k),
                high,
                0,
                strides[0],
                i * dilations[0] - pads[0],
                h,
                dtype,
            )
            column = _moved(
                at,
                offset,
                2 * (g * points + k) + 1,
                across,
                1,
                strides[1],
                j * dilations[1] - pads[1],
                w,
                dtype,
            )
            grid = at.emit(op.concat([column, row], axis=1))
            sample = at.emit(
                op.image.grid_sample(part, grid, padding_mode="zeros", align_corners=False)
            )
            if mask is not None:
                factor = at.emit(
                    op.strided_slice(mask, [1], [g * points + k], [g * points + k + 1])
                )
                sample = at.emit(op.multiply(sample, factor))
            planes.append(at.emit(op.expand_dims(sample, [2])))
    groups = [
        at.emit(op.concat(planes[g * points : (g + 1) * points], axis=2))
        for g in range(offset_group)
    ]
    columns = at.emit(op.concat(groups, axis=1)) if offset_group > 1 else groups[0]
    columns = at.emit(op.reshape(columns, [n, c * points, high, across]))
    out, own = at.shape_of(weight)[:2]
    flat = at.emit(op.reshape(weight, [out, own * points, 1, 1]))
    found = at.emit(op.nn.conv2d(columns, flat, groups=group))
    return found if bias is None else op.add(found, channels(at, bias, 2))


def _moved(
    at: Site,
    offset: Expr,
    index: int,
    count: Dim,
    axis: int,
    stride: int,
    start: int,
    size: Dim,
    dtype: Any,
) -> Any:
    """The coordinates along an axis of the samples of one element of the window, as a grid has them."""
    steps = at.cast(at.emit(op.arange(0, count, 1, dtype="int64")), dtype)
    base = at.emit(op.add(op.multiply(steps, constant(stride, dtype)), constant(start, dtype)))
    base = at.emit(op.reshape(base, [count, 1] if axis == 0 else [1, count]))
    place = at.emit(op.add(at.emit(op.strided_slice(offset, [1], [index], [index + 1])), base))
    double = at.emit(op.add(op.multiply(place, constant(2, dtype)), constant(1, dtype)))
    return at.emit(op.subtract(op.divide(double, at.number(size, dtype)), constant(1, dtype)))


@operator("AffineGrid")
def affine_grid(at: Site, theta: Expr, size: Expr, align_corners: int = 0, **_: Any) -> Any:
    sizes = at.ints(size, "the size")
    found = at.emit(op.image.affine_grid(theta, sizes[2:], align_corners=bool(align_corners)))
    rank = at.ndim(found)
    return op.permute_dims(found, [0, *range(2, rank), 1])
