"""Shapes: broadcasting, moving and joining, and arrays made from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.jax.importer import Site
from relaxpy.frontend.jax.table import primitive
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import dim_op


@primitive("broadcast_in_dim")
def broadcast_in_dim(
    at: Site, x: Expr, *_: Any, broadcast_dimensions: Sequence[int], **__: Any
) -> Any:
    shape = at.shape
    count = at.ndim(x)
    axes = list(broadcast_dimensions)
    if count and axes != list(range(len(shape) - count, len(shape))):
        x = at.emit(op.expand_dims(x, [a for a in range(len(shape)) if a not in axes]))
    return x if at.shape_of(x) == shape else op.broadcast_to(x, shape)


@primitive("reshape")
def reshape(at: Site, x: Expr, *_: Any, **__: Any) -> Any:
    return op.reshape(x, at.shape)


@primitive("squeeze")
def squeeze(at: Site, x: Expr, dimensions: Sequence[int], **_: Any) -> Any:
    return op.squeeze(x, list(dimensions)) if dimensions else x


@primitive("expand_dims")
def expand_dims(at: Site, x: Expr, dimensions: Sequence[int], **_: Any) -> Any:
    return op.expand_dims(x, list(dimensions))


@primitive("transpose")
def transpose(at: Site, x: Expr, permutation: Sequence[int], **_: Any) -> Any:
    return turned(x, permutation)


def turned(x: Any, axes: Sequence[int]) -> Any:
    """The axes in this order."""
    return x if list(axes) == list(range(len(axes))) else op.permute_dims(x, list(axes))


@primitive("concatenate")
def concatenate(at: Site, x: Any, *others: Any, dimension: int, **_: Any) -> Any:
    return op.concat([x, *others], axis=dimension) if others else x


@primitive("stack")
def stack(at: Site, *xs: Any, axis: int, **_: Any) -> Any:
    return op.stack(list(xs), axis=axis)


@primitive("unstack")
def unstack(at: Site, x: Expr, axis: int, **_: Any) -> Any:
    count = len(at.eqn.outvars)
    return [op.squeeze(part(at, x, axis, k, k + 1), [axis]) for k in range(count)]


@primitive("rev")
def rev(at: Site, x: Expr, dimensions: Sequence[int], **_: Any) -> Any:
    for axis in dimensions:
        x = at.emit(op.flip(x, axis=axis))
    return x


@primitive("slice")
def slice_(
    at: Site, x: Expr, start_indices: Any, limit_indices: Any, strides: Any, **_: Any
) -> Any:
    strides = strides or [1] * len(start_indices)
    parts = list(enumerate(zip(at.dims(start_indices), at.dims(limit_indices), at.dims(strides))))
    kept = [
        (axis, *part)
        for axis, part in parts
        if part != (Dim.of(0), at.shape_of(x)[axis], Dim.of(1))
    ]
    if not kept:
        return x
    axes, starts, ends, steps = (list(each) for each in zip(*kept, strict=True))
    return op.strided_slice(x, axes, starts, ends, steps)


def part(at: Site, x: Expr, axis: int, start: Any, end: Any, step: int = 1) -> Any:
    """A part of one axis, bound."""
    return at.emit(op.strided_slice(x, [axis], [start], [end], [step]))


@primitive("split")
def split(at: Site, x: Expr, sizes: Sequence[Any], axis: int, **_: Any) -> Any:
    found, start = [], Dim.of(0)
    for size in at.dims(sizes):
        found.append(part(at, x, axis, start, start + size))
        start = start + size
    return found


@primitive("pad")
def pad(
    at: Site, x: Expr, value: Expr, padding_config: Sequence[tuple[Any, Any, Any]], **_: Any
) -> Any:
    """Elements apart from one another, then borders, which are cut off where they are negative."""
    for axis, (low, high, inner) in enumerate(padding_config):
        (before, after, apart) = at.dims((low, high, inner))
        x = spread(at, x, axis, apart, value)
        x = bordered(at, x, axis, before, after, value)
    return x


def spread(at: Site, x: Expr, axis: int, apart: Dim, value: Expr) -> Any:
    """An axis with `apart` elements of `value` between neighbours."""
    if apart == 0:
        return x
    sizes = at.shape_of(x)
    wide = at.emit(op.expand_dims(x, axis + 1))
    gap = [*sizes[: axis + 1], apart, *sizes[axis + 1 :]]
    filled = at.emit(op.concat([wide, at.emit(op.broadcast_to(value, gap))], axis=axis + 1))
    total = sizes[axis] * (apart + 1)
    flat = at.emit(op.reshape(filled, [*sizes[:axis], total, *sizes[axis + 1 :]]))
    return part(at, flat, axis, 0, dim_op("max", total - apart, 0))


def bordered(at: Site, x: Expr, axis: int, before: Dim, after: Dim, value: Expr) -> Any:
    """An axis with a border on both sides; what is negative is cut off."""
    sizes = at.shape_of(x)
    cut = [-d.value if d.value is not None and d.value < 0 else 0 for d in (before, after)]
    if any(cut):
        x = part(at, x, axis, cut[0], dim_op("max", sizes[axis] - cut[1], cut[0]))
    rows = []
    for border in (before, after):
        is_none = border.value is not None and border.value <= 0
        shape = [*sizes[:axis], border, *sizes[axis + 1 :]]
        rows.append(None if is_none else at.emit(op.broadcast_to(value, shape)))
    parts = [each for each in (rows[0], x, rows[1]) if each is not None]
    return at.emit(op.concat(parts, axis=axis)) if len(parts) > 1 else x


@primitive("iota")
def iota(at: Site, *_: Any, dimension: int, **__: Any) -> Any:
    return counted(at, at.shape, dimension, at.dtype)


def counted(at: Site, shape: Sequence[Dim], axis: int, dtype: Any) -> Any:
    """The index along an axis."""
    narrow = str(dtype) in ("int64", "int32")
    row = at.emit(op.arange(0, shape[axis], 1, dtype=dtype if narrow else "int64"))
    row = at.cast(row, dtype)
    after = len(shape) - 1 - axis
    column = at.emit(op.expand_dims(row, list(range(1, 1 + after)))) if after else row
    return op.broadcast_to(column, shape) if len(shape) > 1 else row


@primitive("dim_as_value")
def dim_as_value(at: Site, *_: Any, dim: Any, **__: Any) -> Any:
    return at.number(at.dims([dim])[0], at.dtype)


@primitive("empty", "empty2")
def empty(at: Site, *_: Any, **__: Any) -> Any:
    return op.zeros(at.shape, at.dtype)


@primitive("tile")
def tile(at: Site, x: Expr, reps: Sequence[Any], **_: Any) -> Any:
    sizes = at.shape_of(x)
    apart = [each for size in sizes for each in (Dim.of(1), size)]
    wide = [each for count, size in zip(at.dims(reps), sizes) for each in (count, size)]
    x = at.emit(op.broadcast_to(at.emit(op.reshape(x, apart)), wide))
    return op.reshape(x, at.shape)
