"""Sums, means, extrema over axes; running sums; sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_elementwise import number, numbers, size_tensor
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import dim_op, product


def axes_of(axes: Any) -> Any:
    """Torch's axes: None and [] are all."""
    if isinstance(axes, (list, tuple)):
        return list(axes) or None
    return axes


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, axes: Any = None, keep: bool = False, *rest: Any) -> Any:
        x = numbers(at, at.cast(x, at.dtype))
        return function(x, axis=axes_of(axes), keepdims=bool(keep)) if at.ndim(x) else x

    return rule


operator("sum.dim_IntList")(_reduction(op.sum))
operator("mean.dim")(_reduction(op.mean))
operator("amax.default")(_reduction(op.max))
operator("amin.default")(_reduction(op.min))
operator("prod.dim_int")(_reduction(op.prod))


def _total(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda at, x, *rest: function(numbers(at, at.cast(x, at.dtype)))


operator("sum.default")(_total(op.sum))
operator("mean.default")(_total(op.mean))
operator("prod.default")(_total(op.prod))
operator("max.default")(_total(op.max))
operator("min.default")(_total(op.min))


def _quantifier(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, axes: Any = None, keep: bool = False) -> Any:
        x = at.cast(x, "bool")
        return function(x, axis=axes_of(axes), keepdims=keep) if at.ndim(x) else x

    return rule


operator("any.default", "any.dim", "any.dims", "_is_any_true.default")(_quantifier(op.any))
operator("all.default", "all.dim", "all.dims", "_is_all_true.default")(_quantifier(op.all))


def count_of(at: Site, x: Expr, axes: Any) -> Dim:
    """The number of elements that a reduction over `axes` takes into one."""
    sizes = at.shape_of(x)
    axes = range(len(sizes)) if axes is None else axes
    return product(tuple(sizes[axis] for axis in axes))


def variance(at: Site, x: Expr, axes: Any, correction: Any, keep: bool) -> Any:
    """The sum of squared deviations over the number of elements less `correction`; NaN or infinite where that is not
    positive."""
    wide = at.cast(x, "float32" if at.dtype_of(x).is_narrow else at.dtype_of(x))
    if at.ndim(wide) == 0:
        wide, axes = at.emit(op.expand_dims(wide, 0)), None
        keep = False
    count = count_of(at, wide, axes)
    mean = op.mean(wide, axis=axes, keepdims=True)
    squares = op.sum(op.square(op.subtract(wide, mean)), axis=axes, keepdims=keep)
    correction = 1 if correction is None else correction
    if isinstance(correction, float) and not correction.is_integer():
        size = size_tensor(at, count, at.dtype_of(wide))
        rest = op.maximum(op.subtract(size, correction), 0.0)
    else:
        least = dim_op("max", count - int(correction), 0)
        rest = size_tensor(at, least, at.dtype_of(wide))
    return op.divide(squares, rest)


@operator("var.correction", "var.dim")
def var(at: Site, x: Expr, axes: Any, correction: Any, keep: bool = False) -> Any:
    return at.cast(at.emit(variance(at, x, axes_of(axes), correction, keep)), at.dtype)


@operator("std.correction", "std.dim")
def std(at: Site, x: Expr, axes: Any, correction: Any, keep: bool = False) -> Any:
    return op.sqrt(variance(at, x, axes_of(axes), correction, keep))


@operator("var_mean.correction")
def var_mean(at: Site, x: Expr, axes: Any, correction: Any, keep: bool = False) -> Any:
    mean = op.mean(x, axis=axes_of(axes), keepdims=keep) if at.ndim(x) else x
    return var(at, x, axes, correction, keep), mean


@operator("argmax.default")
def argmax(at: Site, x: Expr, axis: int | None, keep: bool) -> Any:
    return _arg(at, op.argmax, x, axis, keep)


@operator("argmin.default")
def argmin(at: Site, x: Expr, axis: int | None, keep: bool) -> Any:
    return _arg(at, op.argmin, x, axis, keep)


def _arg(at: Site, function: Any, x: Expr, axis: int | None, keep: bool) -> Any:
    return function(x, axis=axis if at.ndim(x) else None, keepdims=keep and at.ndim(x) > 0)


@operator("max.dim")
def max_dim(at: Site, x: Expr, axis: int, keep: bool) -> Any:
    return _extreme(at, op.max, op.argmax, x, axis, keep)


@operator("min.dim")
def min_dim(at: Site, x: Expr, axis: int, keep: bool) -> Any:
    return _extreme(at, op.min, op.argmin, x, axis, keep)


def _extreme(at: Site, value: Any, place: Any, x: Expr, axis: int, keep: bool) -> Any:
    if not at.ndim(x):
        return x, op.zeros((), "int64")
    found = value(numbers(at, x), axis=axis, keepdims=keep)
    return found, place(x, axis=axis, keepdims=keep)


@operator("cumsum.default")
def cumsum(at: Site, x: Expr, axis: int, *rest: Any) -> Any:
    x = at.cast(x, at.dtype)
    return op.cumsum(x, axis=axis) if at.ndim(x) else x


@operator("cumprod.default")
def cumprod(at: Site, x: Expr, axis: int, *rest: Any) -> Any:
    x = at.cast(x, at.dtype)
    return op.cumprod(x, axis=axis) if at.ndim(x) else x


@operator("sort.default")
def sort(at: Site, x: Expr, axis: int = -1, descending: bool = False) -> Any:
    return _in_order(x, axis, descending) if at.ndim(x) else (x, op.zeros((), "int64"))


def _in_order(x: Expr, axis: int, descending: bool = False) -> list[Any]:
    """The elements along an axis in order, and their places."""
    places = op.argsort(x, axis=axis, descending=descending, dtype="int64")
    return [op.sort(x, axis=axis, descending=descending), places]


@operator("sort.stable")
def sort_stable(at: Site, x: Expr, stable: Any, axis: int = -1, descending: bool = False) -> Any:
    return sort(at, x, axis, descending)


@operator("argsort.default")
def argsort(at: Site, x: Expr, axis: int = -1, descending: bool = False) -> Any:
    return sort(at, x, axis, descending)[1]


@operator("argsort.stable")
def argsort_stable(at: Site, x: Expr, stable: Any, axis: int = -1, descending: bool = False) -> Any:
    return sort(at, x, axis, descending)[1]


@operator("topk.default")
def topk(at: Site, x: Expr, k: Any, axis: int = -1, largest: bool = True, *rest: Any) -> Any:
    if not at.ndim(x):
        return _first(at, at.emit(op.expand_dims(x, 0)), k, 0, largest, ())
    if isinstance(k, int) and k > 0:
        return op.topk(x, k=k, axis=axis, largest=largest, dtype="int64")
    return _first(at, x, k, axis, largest, None)


def _first(at: Site, x: Expr, k: Any, axis: int, largest: bool, shape: Any) -> Any:
    """The first k of all in order: for a k that is a size, or 0."""
    found = [op.strided_slice(each, [axis], [0], [k]) for each in _in_order(x, axis, largest)]
    return [each if shape is None else op.reshape(at.emit(each), shape) for each in found]


@operator("kthvalue.default")
def kthvalue(at: Site, x: Expr, k: Any, axis: int = -1, keep: bool = False) -> Any:
    if not at.ndim(x):
        return x, op.zeros((), "int64")
    found = [at.emit(op.strided_slice(each, [axis], [k - 1], [k])) for each in _in_order(x, axis)]
    return found if keep else [op.squeeze(each, axis) for each in found]


@operator("mode.default")
def mode(at: Site, x: Expr, axis: int = -1, keep: bool = False) -> Any:
    """The element that is there most often, the least of several such, and its last index."""
    if not at.ndim(x):
        return x, op.zeros((), "int64")
    values, order = map(at.emit, _in_order(x, axis))
    size, rest = at.shape_of(x)[axis], at.ndim(x) - 1 - axis % at.ndim(x)
    steps = at.emit(op.arange(0, size, 1, dtype="int64"))
    before = op.maximum(op.subtract(steps, size_tensor(at, 1)), size_tensor(at, 0))
    compared = numbers(at, values)
    differs = op.not_equal(compared, at.emit(op.take(compared, at.emit(before), axis=axis)))
    column = at.emit(op.reshape(steps, (size, *[1] * rest)))
    starts = op.cummax(at.emit(op.where(at.emit(differs), column, size_tensor(at, 0))), axis=axis)
    length = at.emit(op.subtract(column, at.emit(starts)))
    place = at.emit(op.argmax(length, axis=axis, keepdims=True))
    found = [at.emit(op.gather_elements(each, place, axis=axis)) for each in (values, order)]
    return found if keep else [op.squeeze(each, axis) for each in found]


@operator("logcumsumexp.default")
def logcumsumexp(at: Site, x: Expr, axis: int) -> Any:
    return op.cumlogsumexp(x, axis=axis) if at.ndim(x) else x


@operator("logsumexp.default")
def logsumexp(at: Site, x: Expr, axes: Any, keep: bool = False) -> Any:
    x = at.cast(x, at.dtype)
    if not at.ndim(x):
        return x
    axes = axes_of(axes)
    most = op.max(x, axis=axes, keepdims=True)
    finite = at.emit(op.where(op.isfinite(most), most, number(at, 0.0)))
    total = op.log(op.sum(op.exp(op.subtract(x, finite)), axis=axes, keepdims=True))
    found = at.emit(op.add(total, finite))
    return found if keep else op.reshape(found, at.shape)


@operator("bucketize.Tensor")
def bucketize(at: Site, x: Expr, bounds: Expr, int32: bool = False, right: bool = False) -> Any:
    x, bounds = (at.cast(each, _common(at, x, bounds)) for each in (x, bounds))
    return op.bucketize(x, bounds, out_int32=int32, right=right)


@operator("bucketize.Scalar")
def bucketize_number(at: Site, x: Any, bounds: Expr, *rest: Any, **options: Any) -> Any:
    return bucketize(at, _alone(at, x), bounds, *rest, **options)


@operator("searchsorted.Scalar")
def searchsorted_number(at: Site, bounds: Expr, x: Any, *rest: Any, **options: Any) -> Any:
    return searchsorted(at, bounds, _alone(at, x), *rest, **options)


def _alone(at: Site, x: Any) -> Expr:
    """A number as a tensor in torch's dtype of such numbers."""
    return at.number(x, "float32" if isinstance(x, float) else "int64")


@operator("searchsorted.Tensor")
def searchsorted(
    at: Site, bounds: Expr, x: Expr, int32: bool = False, right: bool = False, side: Any = None,
    sorter: Any = None,
) -> Any:  # fmt: skip
    if sorter is not None:
        bounds = at.emit(op.gather_elements(bounds, sorter, axis=-1))
    right = right or side == "right"
    if at.ndim(bounds) == 1:
        return bucketize(at, x, bounds, int32, right)
    # A row of bounds for each row of x: the number of bounds before an element; NaN is after all.
    x, bounds = at.emit(op.expand_dims(x, -1)), at.emit(op.expand_dims(bounds, -2))
    after = op.greater(bounds, x) if right else op.greater_equal(bounds, x)
    return op.sum(op.astype(op.logical_not(after), "int64"), axis=-1)


def _common(at: Site, x: Expr, y: Expr) -> Any:
    """The dtype that represents both."""
    import numpy as np

    from relaxpy.ir import DType

    a, b = at.dtype_of(x), at.dtype_of(y)
    return a if a == b else DType(str(np.promote_types(a.numpy, b.numpy)))


@operator("cummax.default")
def cummax(at: Site, x: Expr, axis: int) -> Any:
    return _running(at, op.cummax, x, axis)


@operator("cummin.default")
def cummin(at: Site, x: Expr, axis: int) -> Any:
    return _running(at, op.cummin, x, axis)


def _running(at: Site, scan: Callable[..., Any], x: Expr, axis: int) -> Any:
    """A running extremum, and the last index at which it was reached."""
    if not at.ndim(x):
        return x, op.zeros((), "int64")
    dtype = at.dtype_of(x)
    x = numbers(at, x)
    values = at.emit(scan(x, axis=axis))
    reached = at.emit(op.equal(x, values))
    if dtype.is_float:
        reached = at.emit(op.logical_or(reached, op.isnan(x)))
    size = at.shape_of(x)[axis]
    steps = at.emit(op.arange(0, size, 1, dtype="int64"))
    column = at.emit(op.reshape(steps, (size, *[1] * (at.ndim(x) - 1 - axis % at.ndim(x)))))
    places = at.emit(op.where(reached, column, op.full((), 0, "int64")))
    return at.cast(values, dtype), op.cummax(places, axis=axis)


@operator("median.default")
def median(at: Site, x: Expr) -> Any:
    return op.median(x)


@operator("median.dim")
def median_dim(at: Site, x: Expr, axis: int, keep: bool = False) -> Any:
    if not at.ndim(x):
        return x, op.zeros((), "int64")
    return op.median(x, axis=axis, keepdims=keep)


@operator("nanmedian.default")
def nanmedian(at: Site, x: Expr) -> Any:
    flat = at.emit(op.reshape(x, (product(tuple(at.shape_of(x))),)))
    return nanmedian_dim(at, flat, 0)[0]


@operator("nanmedian.dim")
def nanmedian_dim(at: Site, x: Expr, axis: int, keep: bool = False) -> Any:
    if not at.dtype_of(x).is_float or not at.ndim(x):
        return median_dim(at, x, axis, keep)
    numbers = op.astype(op.logical_not(op.isnan(x)), "int64")
    count = at.emit(op.sum(numbers, axis=axis, keepdims=True))
    last = op.maximum(op.subtract(count, op.full((), 1, "int64")), op.full((), 0, "int64"))
    place = at.emit(op.floor_divide(last, op.full((), 2, "int64")))
    found = [at.emit(op.gather_elements(each, place, axis=axis)) for each in _in_order(x, axis)]
    return found if keep else [at.emit(op.squeeze(each, axis)) for each in found]


@operator("histc.default")
def histc(at: Site, x: Expr, bins: int, low: Any, high: Any) -> Any:
    """The elements in each of `bins` parts of [low, high]; others are not counted."""
    dtype = at.dtype
    wide = "float64" if dtype == "float64" or dtype.is_int else "float32"
    flat = at.cast(at.emit(op.reshape(x, (product(tuple(at.shape_of(x))),))), wide)
    if low == high:  # the range of x itself; one value is in the middle of a range of 2
        ends = [at.emit(op.min(flat)), at.emit(op.max(flat))]
        alone = at.emit(op.equal(*ends))
        first, last = (
            at.emit(op.where(alone, op.add(end, step), end)) for end, step in zip(ends, (-1.0, 1.0))
        )
    else:
        first, last = (at.emit(op.full((), float(end), wide)) for end in (low, high))
    part = op.divide(op.multiply(op.subtract(flat, first), float(bins)), op.subtract(last, first))
    place = op.minimum(op.astype(op.floor(part), "int64"), op.full((), bins - 1, "int64"))
    inside = op.logical_and(op.greater_equal(flat, first), op.less_equal(flat, last))
    place = at.emit(op.where(at.emit(inside), place, op.full((), bins, "int64")))
    counts = at.emit(op.zeros((bins + 1,), "int64"))
    ones = at.emit(op.ones(at.shape_of(flat), "int64"))
    counts = at.emit(op.scatter_elements(counts, place, ones, axis=0, reduction="add"))
    return at.cast(at.emit(op.strided_slice(counts, [0], [0], [bins])), dtype)
