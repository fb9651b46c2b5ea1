"""Shapes: sizes as values, reshaping, moving and joining, and tensors made from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.onnx.arrays import dtype_of
from relaxpy.frontend.onnx.checks import check_sizes
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.table import operator
from relaxpy.frontend.site import check
from relaxpy.ir import Constant, Dim, DType, Expr
from relaxpy.ir.dim import dim_op, product
from relaxpy.op.slice import FAR


@operator("Shape")
def shape(at: Site, x: Expr, start: int = 0, end: int | None = None, **_: Any) -> Any:
    return at.sizes_tensor(at.shape_of(x)[start:end])


@operator("Size")
def size(at: Site, x: Expr, **_: Any) -> Any:
    return op.reshape(at.sizes_tensor([product(tuple(at.shape_of(x)))]), ())


@operator("Constant")
def constant_(at: Site, **attrs: Any) -> Any:
    for name, dtype in (
        ("value_float", "float32"),
        ("value_floats", "float32"),
        ("value_int", "int64"),
        ("value_ints", "int64"),
    ):
        if name in attrs:
            return at.importer.stored(np.asarray(attrs[name], dtype), at.name)
    if "value" in attrs:
        return at.importer.stored(attrs["value"], at.name)
    raise at.fail("onnx-dtype", "a constant that is a text or sparse is not supported")


@operator("ConstantOfShape")
def constant_of_shape(at: Site, sizes: Expr, value: Any = None, **_: Any) -> Any:
    value = np.zeros(1, np.float32) if value is None else value
    dims = at.ints(sizes, "the shape")
    return op.full(dims, constant(value.reshape(-1)[0], DType(value.dtype)), DType(value.dtype))


@operator("Reshape")
def reshape(
    at: Site, x: Expr, sizes: Any = None, shape: Any = None, allowzero: int = 0, **_: Any
) -> Any:
    if sizes is None:
        return reshaped(at, x, shape)
    if at.known(sizes) is None:
        return op.reshape(x, _read_shape(at, x, at.cast(sizes, "int64"), bool(allowzero)))
    return reshaped(at, x, at.ints(sizes, "the shape"), bool(allowzero))


def reshaped(at: Site, x: Expr, wanted: Sequence[Any], zeros: bool = False) -> Any:
    """A reshape as ONNX has it: 0 is the size of the same axis, unless `zeros`; -1 is what is left."""
    given = at.shape_of(x)
    dims = [
        given[axis] if size == 0 and not zeros and axis < len(given) else size
        for axis, size in enumerate(map(Dim.of, wanted))
    ]
    if any(d == -1 for d in dims) and any(d == 0 for d in dims):
        dims = [Dim.of(0) if d == -1 else d for d in dims]
    return x if dims == given else op.reshape(x, dims)


def _read_shape(at: Site, x: Expr, sizes: Expr, zeros: bool) -> list[Dim]:
    """The shape that a reshape to sizes in a tensor has, which is computed when the program runs."""
    given = at.shape_of(x)
    (count,) = at.shape_of(sizes)
    if count.value is None:
        at.value(sizes, "the shape")
    if not zeros:
        same = (given + [Dim.of(0)] * (count.value or 0))[: count.value]
        is_zero = op.equal(sizes, constant(0, "int64"))
        sizes = at.emit(op.where(is_zero, at.sizes_tensor(same), sizes))
    is_left = at.emit(op.equal(sizes, constant(-1, "int64")))
    rest = at.emit(op.prod(at.emit(op.where(is_left, constant(1, "int64"), sizes))))
    left = op.floor_divide(at.number(product(tuple(given)), "int64"), rest)
    return at.read_shape(at.emit(op.where(is_left, left, sizes)))


@operator("Flatten")
def flatten(at: Site, x: Expr, axis: int = 1, **_: Any) -> Any:
    dims = at.shape_of(x)
    axis = axis + len(dims) if axis < 0 else axis
    return op.reshape(x, [product(tuple(dims[:axis])), product(tuple(dims[axis:]))])


def axes_of(
    at: Site, given: Any, attribute: Any, rank: int, what: str = "the axes"
) -> list[int] | None:
    """Axes that are an input or an attribute; None: they are left out."""
    if given is None:
        return None if attribute is None else at.axes(attribute, rank)
    return at.axes(at.value(given, what).reshape(-1), rank)


@operator("Squeeze")
def squeeze(at: Site, x: Expr, given: Any = None, axes: Any = None, **_: Any) -> Any:
    rank = at.ndim(x)
    found = axes_of(at, given, axes, rank)
    if found is None:
        dims = at.shape_of(x)
        if any(d.value is None for d in dims):
            raise at.needed(x, "which sizes are 1")
        found = [i for i, d in enumerate(dims) if d == 1]
    return op.squeeze(x, found) if found else x


@operator("Unsqueeze")
def unsqueeze(at: Site, x: Expr, given: Any = None, axes: Any = None, **_: Any) -> Any:
    count = len(axes) if given is None else at.value(given, "the axes").size
    found = axes_of(at, given, axes, at.ndim(x) + count)
    return op.expand_dims(x, sorted(found or [])) if found else x


@operator("Transpose")
def transpose(at: Site, x: Expr, perm: Any = None, **_: Any) -> Any:
    rank = at.ndim(x)
    axes = list(range(rank))[::-1] if perm is None else at.axes(perm, rank)
    if len(axes) != rank:
        raise at.fail("onnx-file", f"Transpose: {perm} does not say where all {rank} axes go")
    return turned(x, axes)


def turned(x: Any, axes: Sequence[int]) -> Any:
    """The axes in this order."""
    return x if list(axes) == list(range(len(axes))) else op.permute_dims(x, list(axes))


@operator("Concat")
def concat(at: Site, *xs: Expr, axis: int = 1, **_: Any) -> Any:
    tensors = list(xs)
    return op.concat(tensors, axis=axis) if len(tensors) > 1 else tensors[0]


@operator("Split")
def split(
    at: Site,
    x: Expr,
    given: Any = None,
    axis: int = 0,
    split: Any = None,
    num_outputs: int | None = None,
    **_: Any,
) -> Any:
    axis = at.axis(axis, at.ndim(x))
    whole = at.shape_of(x)[axis]
    if given is not None:
        parts = at.ints(given, "the parts")
    elif split is not None:
        parts = list(map(Dim.of, split))
    else:
        count = num_outputs or at.count
        check_sizes(at, 1, num_outputs=[count])
        _check_parts(at, count)
        each = (whole + count - 1) // count
        return cut(at, x, axis, [each] * (count - 1) + [whole - each * (count - 1)])
    _check_parts(at, len(parts))
    total = sum(parts, Dim.of(0))
    check(
        at.builder, dim_op("eq", total, whole), f"the parts are {total} and the axis is {whole}: they are equal",
        None, "onnx-shape", at.span,
    )  # fmt: skip
    return cut(at, x, axis, parts)


def _check_parts(at: Site, count: int) -> None:
    if count != at.count:
        raise at.fail("onnx-file", f"{at.node.title} into {count} parts has {at.count} results")


def cut(at: Site, x: Expr, axis: int, parts: Sequence[Any]) -> list[Any]:
    """Parts of these sizes along an axis, one after the other."""
    found: list[Any] = []
    start = Dim.of(0)
    for part in map(Dim.of, parts):
        found.append(at.emit(op.strided_slice(x, [axis], [start], [start + part])))
        start = start + part
    return found


@operator("Expand")
def expand(at: Site, x: Expr, sizes: Expr, **_: Any) -> Any:
    return expanded(at, x, at.ints(sizes, "the shape"))


def expanded(at: Site, x: Expr, wanted: Sequence[Dim]) -> Any:
    """Broadcast both ways: a size of 1 in either gives way."""
    given = at.shape_of(x)
    rank = max(len(given), len(wanted))
    old = [Dim.of(1)] * (rank - len(given)) + given
    new = [Dim.of(1)] * (rank - len(wanted)) + list(map(Dim.of, wanted))
    dims: list[Any] = []
    for a, b in zip(old, new, strict=True):
        if b == 1 or a == b:
            dims.append(a)
        elif a == 1 or b.value is not None:
            dims.append(b)
        elif a.value is not None:
            dims.append(a)
        else:
            dims.append(dim_op("select", dim_op("eq", b, 1), a, b))
    return x if dims == given else op.broadcast_to(x, dims)


@operator("Tile")
def tile(at: Site, x: Expr, repeats: Expr, axis: Any = None, **_: Any) -> Any:
    if axis is not None:  # version 1
        counts: list[Any] = [Dim.of(1)] * at.ndim(x)
        counts[int(at.number_of(axis, "the axis"))] = at.ints(repeats, "the number")[0]
    else:
        counts = at.ints(repeats, "the repeats")
    known = [c.value for c in counts]
    if None not in known:
        return op.tile(x, known)
    dims = at.shape_of(x)
    apart = [d for c, s in zip(counts, dims, strict=True) for d in (c, s)]
    wide = at.emit(op.reshape(x, [d for s in dims for d in (Dim.of(1), s)]))
    wide = at.emit(op.broadcast_to(wide, apart))
    return op.reshape(wide, [c * s for c, s in zip(counts, dims, strict=True)])


@operator("Slice")
def slice_v1(
    at: Site, x: Expr, starts: Sequence[int], ends: Sequence[int], axes: Any = None, **_: Any
) -> Any:
    return sliced(at, x, starts, ends, axes)


@operator("Slice", since=10)
def slice_(
    at: Site, x: Expr, starts: Expr, ends: Expr, axes: Any = None, steps: Any = None, **_: Any
) -> Any:
    given = None if axes is None else [int(a) for a in at.value(axes, "the axes").reshape(-1)]
    if steps is not None and at.known(steps) is None:
        return _sliced_by(at, x, starts, ends, given, steps)
    first, last = at.ints(starts, "the starts"), at.ints(ends, "the ends")
    each = None if steps is None else [int(s) for s in at.value(steps, "the steps").reshape(-1)]
    return sliced(at, x, first, last, given, each)


def _sliced_by(at: Site, x: Expr, starts: Expr, ends: Expr, axes: Any, steps: Expr) -> Any:
    """A slice whose steps are known only when it runs."""
    rank = at.ndim(x)
    places = range(at.shape_of(starts)[0].value or 0) if axes is None else [a % rank for a in axes]
    found = {axis: i for i, axis in enumerate(places)}

    def along_all(given: Expr, others: int) -> Any:
        own = at.cast(given, "int64")
        if list(found) == list(range(rank)):
            return own
        rest = Constant(np.array([others]))
        parts = [
            at.emit(op.strided_slice(own, [0], [found[axis]], [found[axis] + 1]))
            if axis in found
            else rest
            for axis in range(rank)
        ]
        return at.emit(op.concat(parts, axis=0))

    return op.dynamic_strided_slice(
        x, along_all(starts, 0), along_all(ends, FAR), along_all(steps, 1)
    )


def sliced(at: Site, x: Expr, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    """A slice. What is left as it is is not sliced, and an end of a billion is the end, as exporters mean it."""
    dims = at.shape_of(x)
    axes = list(range(len(starts))) if axes is None else at.axes(axes, len(dims))
    steps = [1] * len(axes) if steps is None else list(steps)
    parts: list[Any] = []
    for axis, start, end, step in zip(
        axes, map(Dim.of, starts), map(Dim.of, ends), steps, strict=True
    ):
        if end.value is not None and abs(end.value) >= _END:
            end = Dim.of(FAR if end.value > 0 else -FAR)
        if (start, step) != (Dim.of(0), 1) or end not in (dims[axis], Dim.of(FAR)):
            parts.append((axis, start, end, step))
    if not parts:
        return x
    kept, firsts, lasts, strides = (list(each) for each in zip(*parts, strict=True))
    return op.strided_slice(x, kept, firsts, lasts, strides)


_END = 10**9


@operator("Range")
def range_(at: Site, start: Expr, limit: Expr, delta: Expr, **_: Any) -> Any:
    dtype = at.dtype_of(start)
    if dtype.is_int:
        step = Dim.of(int(at.number_of(delta, "the step")))
        (first,), (last,) = at.ints(start, "the start"), at.ints(limit, "the limit")
        return at.cast(at.emit(op.arange(first, last, step, dtype="int64")), dtype)
    first, last, step = (float(at.number_of(each, "the range")) for each in (start, limit, delta))
    at.check_count((last - first) / step if step else np.nan)
    return Constant(np.arange(first, last, step, dtype=dtype.numpy))


@operator("EyeLike")
def eye_like(at: Site, x: Expr, dtype: int | None = None, k: int = 0, **_: Any) -> Any:
    kind = at.dtype_of(x) if dtype is None else dtype_of(dtype, at.span)
    rows, columns = at.shape_of(x)
    return op.eye(rows, columns, k, dtype=kind)


@operator("Trilu")
def trilu(at: Site, x: Expr, k: Any = None, upper: int = 1, **_: Any) -> Any:
    offset = Dim.of(0) if k is None else at.ints(k, "k")[0]
    kind = at.dtype_of(x)
    x = at.cast(x, "int8") if kind.is_bool else x
    found = at.emit(op.triu(x, offset) if upper else op.tril(x, offset))
    return at.cast(found, kind)


@operator("DepthToSpace")
def depth_to_space(at: Site, x: Expr, blocksize: int, mode: str = "DCR", **_: Any) -> Any:
    check_sizes(at, 1, blocksize=[blocksize])
    n, c, h, w = at.shape_of(x)
    b = blocksize
    inner = c // (b * b)
    if mode == "DCR":
        apart, order = [n, b, b, inner, h, w], [0, 3, 4, 1, 5, 2]
    else:
        apart, order = [n, inner, b, b, h, w], [0, 1, 4, 2, 5, 3]
    moved = at.emit(op.permute_dims(at.emit(op.reshape(x, apart)), order))
    return op.reshape(moved, [n, inner, h * b, w * b])


@operator("SpaceToDepth")
def space_to_depth(at: Site, x: Expr, blocksize: int, mode: str = "DCR", **_: Any) -> Any:
    check_sizes(at, 1, blocksize=[blocksize])
    n, c, h, w = at.shape_of(x)
    b = blocksize
    apart = at.emit(op.reshape(x, [n, c, h // b, b, w // b, b]))
    order = [0, 3, 5, 1, 2, 4] if mode == "DCR" else [0, 1, 3, 5, 2, 4]
    return op.reshape(at.emit(op.permute_dims(apart, order)), [n, c * b * b, h // b, w // b])


@operator("CenterCropPad")
def center_crop_pad(at: Site, x: Expr, sizes: Expr, axes: Any = None, **_: Any) -> Any:
    rank = at.ndim(x)
    named: list[int] = list(range(rank)) if axes is None else at.axes(axes, rank)
    zero = constant(0, at.dtype_of(x))
    for axis, wanted in zip(named, at.ints(sizes, "the shape"), strict=True):
        size = at.shape_of(x)[axis]
        beyond, short = (dim_op("max", each, 0) for each in (size - wanted, wanted - size))
        start = beyond // 2
        if beyond != 0:
            x = at.emit(op.strided_slice(x, [axis], [start], [start + size - beyond]))
        if short != 0:
            borders = [Dim.of(0)] * (2 * rank)
            borders[axis], borders[rank + axis] = short // 2, short - short // 2
            x = padded(at, x, borders, "constant", zero)
    return x


@operator("Pad")
def pad_v1(
    at: Site,
    x: Expr,
    pads: Any = None,
    paddings: Any = None,
    mode: str = "constant",
    value: float = 0.0,
    **_: Any,
) -> Any:
    return padded(at, x, pads or paddings, mode, constant(value, at.dtype_of(x)))


@operator("Pad", since=11)
def pad(
    at: Site,
    x: Expr,
    pads: Expr,
    value: Any = None,
    axes: Any = None,
    mode: str = "constant",
    **_: Any,
) -> Any:
    rank = at.ndim(x)
    widths = at.ints(pads, "the widths")
    if axes is not None:
        named = at.axes(at.value(axes, "the axes").reshape(-1), rank)
        spread: list[Any] = [Dim.of(0)] * (2 * rank)
        for i, axis in enumerate(named):
            spread[axis], spread[rank + axis] = widths[i], widths[len(named) + i]
        widths = spread
    fill = constant(0, at.dtype_of(x)) if value is None else at.emit(op.reshape(value, ()))
    return padded(at, x, widths, mode, fill)


def padded(at: Site, x: Expr, widths: Sequence[Any], mode: str, value: Expr) -> Any:
    """Borders of these widths: those before all axes, then those after. Negative ones crop."""
    rank = at.ndim(x)
    borders = list(map(Dim.of, widths))
    if len(borders) != 2 * rank:
        raise at.fail(
            "onnx-file",
            f"{at.node.title} takes {2 * rank} widths for {rank} dimensions, and not {len(borders)}",
        )
    for axis in range(rank):
        before, after = borders[axis], borders[rank + axis]
        if before == 0 and after == 0:
            continue
        size = at.shape_of(x)[axis]
        if mode == "constant":
            x = _bordered(at, x, axis, before, after, value)
        else:
            x = at.emit(op.take(x, _places(at, mode, before, size, after), axis=axis))
    return x


def _bordered(at: Site, x: Expr, axis: int, before: Dim, after: Dim, value: Expr) -> Any:
    none = Dim.of(0)
    parts: list[Any] = [x]
    for width, place in ((before, 0), (after, 1)):
        if width.value is None and any(v.signed for v in width.vars):
            width = dim_op("max", width, none)
        if width.value is not None and width.value <= 0:
            continue
        dims = at.shape_of(x)
        dims[axis] = width
        border = at.emit(op.broadcast_to(value, dims))
        parts = [border, *parts] if place == 0 else [*parts, border]
    wide = at.emit(op.concat(parts, axis=axis)) if len(parts) > 1 else x
    # What is removed may be part of a border.
    crop = [dim_op("max", -width, none) for width in (before, after)]
    if crop == [none, none]:
        return wide
    end = dim_op("max", at.shape_of(wide)[axis] - crop[1], crop[0])
    return at.emit(op.strided_slice(wide, [axis], [crop[0]], [end]))


def _places(at: Site, mode: str, before: Dim, size: Dim, after: Dim) -> Any:
    """Which element stands at each place of an axis with borders."""
    places = at.emit(op.arange(-before, size + after, 1, dtype="int64"))
    last = at.number(size - 1, "int64")
    zero = constant(0, "int64")
    if mode == "edge":
        return at.emit(op.minimum(op.maximum(places, zero), last))
    if mode == "wrap":
        return at.emit(op.floor_mod(places, at.number(size, "int64")))
    period = at.number(dim_op("max", 2 * (size - 1), 1), "int64")
    turned = at.emit(op.floor_mod(places, period))
    return at.emit(op.subtract(last, op.abs(op.subtract(turned, last))))
