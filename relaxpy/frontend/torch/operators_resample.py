"""Interpolation and sampling at coordinates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_elementwise import size_tensor
from relaxpy.frontend.torch.operators_pool import window_sums
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import dim_op

_CUBIC = -0.75
"""The coefficient of torch's cubic spline."""


def _float(at: Site, value: Any, dtype: Any = "float32") -> Any:
    """A size or number as a 0-d tensor of floats."""
    if isinstance(value, Dim):
        return size_tensor(at, value, dtype)
    return op.full((), float(value), dtype)


def _is_exact(given: Dim, wanted: Dim, scale: float | None) -> bool:
    """Is the ratio of the sizes the scale that torch computes with?"""
    return scale is None or given * Dim.of(round(scale * 2**20)) == wanted * Dim.of(2**20)


def _is_power_of_2(given: Dim, wanted: Dim) -> bool:
    return any(given * Dim.of(2**k) == wanted for k in range(12))


def _ratio(at: Site, given: Dim, wanted: Dim, scale: float | None, corners: bool = False) -> Any:
    """The distance of the result's elements in those of x, float32 as torch computes it."""
    if corners:
        several = op.maximum(_float(at, wanted - 1), 1.0)
        return at.emit(op.divide(_float(at, given - 1), several))
    if scale is not None:
        return _float(at, 1.0 / scale)
    return at.emit(op.divide(_float(at, given), _float(at, wanted)))


def _steps(at: Site, count: Dim, shift: float) -> Any:
    found = at.emit(op.astype(op.arange(0, count, 1, dtype="int64"), "float32"))
    return at.emit(op.add(found, shift)) if shift else found


def _places(at: Site, position: Any, size: Dim) -> Any:
    """Positions as indices that are clamped to an axis."""
    last = size_tensor(at, size - 1)
    least = op.full((), 0, "int64")
    return at.emit(op.maximum(op.minimum(op.astype(position, "int64"), last), least))


def _nearest(exact: bool) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, size: Any, scales: Any) -> Any:
        count = at.ndim(x) - 2
        wanted, given = at.shape[2:], at.shape_of(x)[2:]
        scales = scales or [None] * count
        pairs = list(zip(given, wanted, scales, strict=True))
        if all(_is_exact(*pair) and _is_power_of_2(*pair[:2]) for pair in pairs):
            return _resized(at, x, wanted, method="nearest_neighbor", rounding_method="floor",
                coordinate_transformation_mode="asymmetric")  # fmt: skip
        for axis, (old, new, scale) in enumerate(pairs):
            steps = _steps(at, new, 0.5 if exact else 0.0)
            ratio = _ratio(at, old, new, scale) if exact else _nearest_ratio(at, old, new, scale)
            position = op.floor(op.multiply(steps, ratio))
            x = at.emit(op.take(x, _places(at, at.emit(position), old), axis=axis + 2))
        return x

    return rule


def _nearest_ratio(at: Site, given: Dim, wanted: Dim, scale: float | None) -> Any:
    """The ratio of the sizes where the result is as large as x or twice as large, whatever the scale says."""
    ratio = _ratio(at, given, wanted, scale)
    if scale is None:
        return ratio
    for times in (2, 1):
        found = _float(at, 1 / times)
        if (difference := given * times - wanted).value is not None:
            ratio = found if difference.value == 0 else ratio
            continue
        same = op.equal(at.emit(size_tensor(at, difference)), size_tensor(at, 0))
        ratio = at.emit(op.where(at.emit(same), found, ratio))
    return ratio


def _resized(at: Site, x: Expr, wanted: list[Dim], **attrs: Any) -> Any:
    """`image.resize2d` or `resize3d`; one spatial axis is two."""
    if len(wanted) == 1:
        x = at.emit(op.expand_dims(x, 2))
        return op.reshape(at.emit(op.image.resize2d(x, (Dim.of(1), *wanted), **attrs)), at.shape)
    function = op.image.resize2d if len(wanted) == 2 else op.image.resize3d
    return function(x, tuple(wanted), **attrs)


def _weighted(method: str) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, size: Any, corners: bool, scales: Any) -> Any:
        wanted, given = at.shape[2:], at.shape_of(x)[2:]
        scales = scales or [None] * len(wanted)
        pairs = list(zip(given, wanted, scales, strict=True))
        if at.dtype.is_float and (corners or all(_is_exact(*pair) for pair in pairs)):
            mode = "align_corners" if corners else "half_pixel"
            return _resized(at, x, wanted, method=method, coordinate_transformation_mode=mode)
        dtype = "float64" if at.dtype == "float64" else "float32"
        x = at.cast(x, dtype)
        for axis, (old, new, scale) in enumerate(pairs):
            ratio = _ratio(at, old, new, scale, corners)
            if corners:
                position = at.emit(op.multiply(_steps(at, new, 0.0), ratio))
            else:
                position = at.emit(op.subtract(op.multiply(_steps(at, new, 0.5), ratio), 0.5))
            x = _interpolated(at, x, axis + 2, old, position, method, dtype)
        return op.round(x) if not at.dtype.is_float else x

    return rule


def _interpolated(
    at: Site, x: Expr, axis: int, size: Dim, position: Any, method: str, dtype: str
) -> Expr:
    """Weighted sums of neighbours along an axis at positions, which are clamped to it."""
    if method == "linear":
        position = at.emit(op.maximum(position, 0.0))
    low = at.emit(op.floor(position))
    t = at.emit(op.astype(op.subtract(position, low), dtype))
    column = [1] * (at.ndim(x) - axis - 1)
    total: Any = None
    offsets = (0, 1) if method == "linear" else (-1, 0, 1, 2)
    for offset, weight in zip(offsets, _weights(at, t, method), strict=True):
        places = _places(at, at.emit(op.add(low, float(offset))), size)
        weight = op.reshape(at.emit(weight), (*at.shape_of(t), *column))
        part = at.emit(op.multiply(op.take(x, places, axis=axis), weight))
        total = part if total is None else at.emit(op.add(total, part))
    return total


def _weights(at: Site, t: Any, method: str) -> list[Any]:
    polynomial = partial(_polynomial, at)
    back = at.emit(op.subtract(op.full((), 1.0, at.dtype_of(t)), t))
    if method == "linear":
        return [back, t]
    a = _CUBIC
    outer = (a, -5 * a, 8 * a, -4 * a)  # at a distance of 1 to 2
    inner = (a + 2, -(a + 3), 0.0, 1.0)
    far, near = (at.emit(op.add(each, 1.0)) for each in (t, back))
    return [
        polynomial(far, *outer),
        polynomial(t, *inner),
        polynomial(back, *inner),
        polynomial(near, *outer),
    ]


def _antialiased(reach: int, filtered: Callable[[Site, Any], Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, size: Any, corners: bool, *scales: float | None) -> Any:
        """Each element is a sum of those that its filter reaches, which is as wide as the element, or as one of x."""
        if not at.dtype.is_float:
            raise at.fail(
                "torch-operator", "antialias of integers, which torch rounds in its own way",
                "convert to float32 before, and round the result",
            )  # fmt: skip
        dtype = "float64" if at.dtype == "float64" else "float32"
        x = at.cast(x, dtype)
        pairs = zip(at.shape_of(x)[2:], at.shape[2:], scales, strict=True)
        for axis, (old, new, scale) in enumerate(pairs):
            ratio = at.cast(_ratio(at, old, new, scale, corners), dtype)
            if corners:  # one element is at the first
                several = op.minimum(_float(at, new - 1, dtype), 1.0)
                ratio = at.emit(op.multiply(ratio, at.emit(several)))
            span = at.emit(op.maximum(ratio, 1.0))
            center = at.emit(op.multiply(at.cast(_steps(at, new, 0.5), dtype), ratio))
            first = op.subtract(center, at.emit(op.multiply(span, float(reach))))
            first = at.emit(op.astype(op.floor(at.emit(op.add(first, 0.5))), "int64"))
            several = dim_op("max", new - 1 if corners else new, 1)
            width = 2 * reach * ((old + several - 1) // several + 1) + 1
            inside = at.emit(op.arange(0, width, 1, dtype="int64"))
            places = at.emit(op.add(at.emit(op.expand_dims(first, 1)), inside))
            middle = at.emit(op.add(at.cast(places, dtype), 0.5))
            distance = op.subtract(middle, at.emit(op.expand_dims(center, 1)))
            distance = at.emit(op.abs(at.emit(op.divide(at.emit(distance), span))))
            counts = op.logical_and(
                op.greater_equal(places, size_tensor(at, 0)), op.less(places, size_tensor(at, old))
            )
            counts = op.logical_and(at.emit(counts), op.less(distance, float(reach)))
            zero = op.full((), 0.0, dtype)
            weight = at.emit(op.where(at.emit(counts), filtered(at, distance), zero))
            weight = at.emit(op.divide(weight, op.sum(weight, axis=1, keepdims=True)))
            x = window_sums(at, x, axis + 2, first, weight)
        return x

    return rule


def _triangular(at: Site, distance: Any) -> Any:
    return op.subtract(op.full((), 1.0, at.dtype_of(distance)), distance)


def _keys(at: Site, distance: Any) -> Any:
    """Keys' spline with the coefficient -0.5, with which torch reduces pictures."""
    near = _polynomial(at, distance, 1.5, -2.5, 0.0, 1.0)
    far = _polynomial(at, distance, -0.5, 2.5, -4.0, 2.0)
    return op.where(op.less(distance, 1.0), near, far)


operator("_upsample_bilinear2d_aa.default")(_antialiased(1, _triangular))
operator("_upsample_bicubic2d_aa.default")(_antialiased(2, _keys))


def _polynomial(at: Site, x: Any, *coefficients: float) -> Any:
    found: Any = op.full((), coefficients[0], at.dtype_of(x))
    for each in coefficients[1:]:
        found = at.emit(op.add(op.multiply(found, x), float(each)))
    return found


for _count in (1, 2, 3):
    operator(f"upsample_nearest{_count}d.vec")(_nearest(exact=False))
    operator(f"_upsample_nearest_exact{_count}d.vec")(_nearest(exact=True))
operator("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")(
    _weighted("linear")
)
operator("upsample_bicubic2d.vec")(_weighted("cubic"))


@operator("grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(at: Site, x: Expr, grid: Expr, mode: int, padding: int, corners: bool) -> Any:
    rank = at.ndim(grid)
    turned = at.emit(op.permute_dims(grid, [0, rank - 1, *range(1, rank - 1)]))
    return op.image.grid_sample(
        x, turned, method=("bilinear", "nearest", "bicubic")[mode],
        layout="NCHW" if rank == 4 else "NCDHW",
        padding_mode=("zeros", "border", "reflection")[padding], align_corners=corners,
    )  # fmt: skip
