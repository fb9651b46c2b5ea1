"""Pooling and padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_elementwise import number
from relaxpy.frontend.torch.operators_linear import each_axis
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import product


def batched(at: Site, x: Expr, spatial: int) -> tuple[Any, Callable[[Any], Any]]:
    """The tensor with a batch axis, and a function that takes it away again if torch's has none."""
    if at.ndim(x) == spatial + 2:
        return x, lambda y: y
    return at.emit(op.expand_dims(x, 0)), lambda y: op.squeeze(at.emit(y), [0])


_MAX = {
    1: (op.nn.max_pool1d, op.nn.max_pool1d_indices),
    2: (op.nn.max_pool2d, op.nn.max_pool2d_indices),
    3: (op.nn.max_pool3d, op.nn.max_pool3d_indices),
}
_AVERAGE = {1: op.nn.avg_pool1d, 2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d}
_ADAPTIVE = {
    1: op.nn.adaptive_avg_pool1d, 2: op.nn.adaptive_avg_pool2d, 3: op.nn.adaptive_avg_pool3d,
}  # fmt: skip


def _max_pool(count: int, indices: bool) -> Callable[..., Any]:
    def rule(
        at: Site, x: Expr, kernel: Any, strides: Any, padding: Any, dilation: Any, ceil: bool
    ) -> Any:
        x, back = batched(at, x, count)
        attrs: dict[str, Any] = {
            "pool_size": each_axis(kernel, count),
            "strides": each_axis(strides if strides not in ([], None) else kernel, count),
            "padding": each_axis(padding, count) * 2,
            "dilation": each_axis(dilation, count),
            "ceil_mode": bool(ceil),
        }
        values, places = _MAX[count]
        found = back(values(x, **attrs))
        return (found, back(places(x, **attrs))) if indices else found

    return rule


for _count in (1, 2, 3):
    operator(f"max_pool{_count}d.default")(_max_pool(_count, indices=False))
    operator(f"max_pool{_count}d_with_indices.default")(_max_pool(_count, indices=True))


def _average_pool(count: int) -> Callable[..., Any]:
    def rule(
        at: Site, x: Expr, kernel: Any, strides: Any, padding: Any, ceil: bool, include: bool,
        divisor: int | None = None,
    ) -> Any:  # fmt: skip
        x, back = batched(at, x, count)
        kernel = each_axis(kernel, count)
        strides = each_axis(strides, count) if strides not in ([], None) else kernel
        padding = each_axis(padding, count) * 2
        attrs: dict[str, Any] = {"pool_size": kernel, "strides": strides}
        if divisor is None:
            attrs |= {"padding": padding, "ceil_mode": bool(ceil), "count_include_pad": include}
            return back(_AVERAGE[count](x, **attrs))
        # A sum over whole windows: with the padding, and what a last window has beyond it, as zeros.
        beyond = [s - 1 if ceil else 0 for s in strides]
        widths = [(p, p + more) for p, more in zip(padding[:count], beyond, strict=True)]
        x = at.emit(op.nn.pad(x, [0, 0, 0, 0, *(w for pair in widths for w in pair)]))
        x = at.cast(x, "float64" if at.dtype.is_int or at.dtype == "float64" else "float32")
        mean = at.emit(_AVERAGE[count](x, **attrs))
        sizes = at.shape[-count:]
        axes = list(range(2, 2 + count))
        mean = at.emit(op.strided_slice(mean, axes, [0] * count, sizes))
        # Of integers the mean would be rounded before it is a sum.
        scale = math.prod(kernel)
        return back(op.multiply(mean, scale / divisor))

    return rule


for _count in (1, 2, 3):
    operator(f"avg_pool{_count}d.default")(_average_pool(_count))


def _adaptive_pool(count: int) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, sizes: Any) -> Any:
        x, back = batched(at, x, count)
        wanted = at.shape[-count:]
        given = at.shape_of(x)[-count:]
        if wanted == given:
            return back(x) if at.ndim(x) != len(at.shape) else x
        known = [size.value for size in wanted if size.value is not None]
        if len(known) < count:
            return back(_means_of_windows(at, x, wanted))
        return back(_ADAPTIVE[count](x, output_size=known))

    return rule


for _count in (1, 2, 3):
    operator(f"adaptive_avg_pool{_count}d.default")(_adaptive_pool(_count))
    if _count > 1:
        operator(f"_adaptive_avg_pool{_count}d.default")(_adaptive_pool(_count))


def _means_of_windows(at: Site, x: Expr, parts: list[Dim]) -> Expr:
    """Adaptive pooling axis by axis, to sizes that only the run knows."""
    dtype = "float64" if at.dtype == "float64" else "float32"
    x = at.cast(x, dtype)
    for axis, (size, part) in enumerate(zip(at.shape_of(x)[2:], parts, strict=True)):
        first, last = _ends(at, size, part)
        length = at.emit(op.add(at.emit(op.subtract(last, first)), whole(1)))
        inside = at.emit(op.arange(0, _width(size, part), 1, dtype="int64"))
        length = at.emit(op.expand_dims(length, 1))
        share = op.divide(op.full((), 1.0, dtype), at.cast(length, dtype))
        weight = at.emit(op.where(op.less(inside, length), at.emit(share), op.full((), 0.0, dtype)))
        x = window_sums(at, x, axis + 2, first, weight)
    return x


def window_sums(at: Site, x: Expr, axis: int, first: Expr, weight: Expr) -> Expr:
    """Along an axis, the sums of as many windows of equal width, which begin at `first`, by the weights of their
    elements. An element of weight 0 is not in the sum, whatever it is, and may be outside of the axis."""
    size, dtype = at.shape_of(x)[axis], at.dtype_of(x)
    inside = at.emit(op.arange(0, at.shape_of(weight)[1], 1, dtype="int64"))
    places = at.emit(op.add(at.emit(op.expand_dims(first, 1)), inside))
    places = at.emit(op.maximum(op.minimum(places, whole(size - 1)), whole(0)))
    parts = at.emit(op.take(x, places, axis=axis))
    column = [1] * (at.ndim(x) - axis - 1)
    weight = at.emit(op.reshape(weight, [*at.shape_of(weight), *column]))
    counts = at.emit(op.not_equal(weight, op.full((), 0.0, dtype)))
    product_of = at.emit(op.multiply(parts, weight))
    parts = at.emit(op.where(counts, product_of, op.full((), 0.0, dtype)))
    return at.emit(op.sum(parts, axis=axis + 1))


def _width(size: Dim, part: Dim) -> Dim:
    """The most elements of a window of adaptive pooling."""
    return (size + part - 1) // part + 1


def _ends(at: Site, size: Dim, part: Dim) -> tuple[Expr, Expr]:
    """The first and the last element of each window of adaptive pooling."""
    size_of, part_of, one = (whole(n) for n in (size, part, 1))
    window = at.emit(op.arange(0, part, 1, dtype="int64"))
    first = at.emit(op.floor_divide(at.emit(op.multiply(window, size_of)), part_of))
    end = at.emit(op.multiply(at.emit(op.add(window, one)), size_of))
    end = op.floor_divide(at.emit(op.add(end, whole(part - 1))), part_of)
    return first, at.emit(op.subtract(at.emit(end), one))


def _adaptive_max_pool(count: int) -> Callable[..., Any]:
    def rule(at: Site, x: Expr, sizes: Any) -> Any:
        """The windows of each axis become an axis; a window that is shorter repeats its last element."""
        x, back = batched(at, x, count)
        planes = at.shape_of(x)[-count:]
        parts = at.shape[-count:]
        widths = [_width(size, part) for size, part in zip(planes, parts, strict=True)]
        firsts: list[Any] = []
        lasts: list[Any] = []
        for i, (size, part, width) in enumerate(zip(planes, parts, widths, strict=True)):
            first, last = _ends(at, size, part)
            firsts.append(first)
            lasts.append(last)
            begin, last = (at.emit(op.expand_dims(each, 1)) for each in (firsts[-1], lasts[-1]))
            inside = at.emit(op.add(begin, at.emit(op.arange(0, width, 1, dtype="int64"))))
            x = at.emit(op.take(x, at.emit(op.minimum(inside, last)), axis=2 + 2 * i))
        order = [0, 1, *range(2, 2 + 2 * count, 2), *range(3, 3 + 2 * count, 2)]
        x = at.emit(op.permute_dims(x, order))
        x = at.emit(op.reshape(x, [*at.shape_of(x)[: 2 + count], product(tuple(widths))]))
        place = at.emit(op.argmax(x, axis=-1))
        flat: Any = whole(0)
        for i, (first, last, size) in enumerate(zip(firsts, lasts, planes, strict=True)):
            later = whole(product(tuple(widths[i + 1 :])))
            step = op.floor_divide(place, later)
            step = at.emit(op.floor_mod(at.emit(step), whole(widths[i])))
            begin, end = (
                at.emit(op.reshape(each, [part if a == i else 1 for a, part in enumerate(parts)]))
                for each in (first, last)
            )
            index = at.emit(op.minimum(at.emit(op.add(step, begin)), end))
            flat = at.emit(op.add(at.emit(op.multiply(flat, whole(size))), index))
        return back(op.max(x, axis=-1)), back(flat)

    return rule


def whole(value: Any) -> Any:
    """A size as a tensor."""
    return op.full((), value, "int64")


for _count in (2, 3):
    operator(f"adaptive_max_pool{_count}d.default")(_adaptive_max_pool(_count))


@operator("constant_pad_nd.default")
def constant_pad(at: Site, x: Expr, widths: list[Any], value: Any = 0) -> Any:
    """Torch's pairs begin at the last axis; a negative width crops."""
    rank = at.ndim(x)
    pairs = [(0, 0)] * (rank - len(widths) // 2)
    pairs += list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    for axis, (before, after) in enumerate(pairs):
        size = at.shape_of(x)[axis]
        crop = [-w if isinstance(w, int) and w < 0 else 0 for w in (before, after)]
        if any(crop):
            x = at.emit(op.strided_slice(x, [axis], [crop[0]], [size - crop[1]]))
        for width, first in ((before, True), (after, False)):
            if not isinstance(width, int):
                x = _bordered(at, x, axis, Dim.of(width), value, first)
    known = [w if isinstance(w, int) and w > 0 else 0 for pair in pairs for w in pair]
    return op.nn.pad(x, known, "constant", float(value)) if any(known) else x


def _bordered(at: Site, x: Expr, axis: int, width: Dim, value: Any, first: bool) -> Expr:
    """The tensor with a border of a size that is known only when it runs."""
    shape = [width if a == axis else size for a, size in enumerate(at.shape_of(x))]
    border = at.emit(op.broadcast_to(number(at, value), shape))
    return at.emit(op.concat([border, x] if first else [x, border], axis=axis))


@operator("max_pool2d_with_indices_backward.default")
def max_pool_backward(
    at: Site, gradient: Expr, x: Expr, kernel: Any, strides: Any, padding: Any, dilation: Any,
    ceil: bool, indices: Expr,
) -> Any:  # fmt: skip
    """Each gradient is added at the index of its window's maximum."""

    def planes(y: Expr) -> Expr:
        sizes = at.shape_of(y)
        return at.emit(op.reshape(y, (product(tuple(sizes[:-2])), product(tuple(sizes[-2:])))))

    zeros = at.emit(op.zeros(at.shape_of(planes(x)), at.dtype))
    found = op.scatter_elements(zeros, planes(indices), planes(gradient), axis=1, reduction="add")
    return op.reshape(at.emit(found), at.shape)
