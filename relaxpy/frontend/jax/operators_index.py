"""Reading and writing at indices.

A gather or scatter of XLA names windows: each start is a vector of indices, and a window reaches from it over
`slice_sizes`. Here each indexed axis gets a tensor of its positions, all of one shape, and the other axes follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy import op
from relaxpy.frontend.jax.importer import Site
from relaxpy.frontend.jax.operators_elementwise import constant, maximum, minimum
from relaxpy.frontend.jax.operators_shape import part, turned
from relaxpy.frontend.jax.table import primitive
from relaxpy.ir import Dim, Expr
from relaxpy.ir.dim import dim_op


@primitive("dynamic_slice")
def dynamic_slice(at: Site, x: Expr, *starts: Any, slice_sizes: Sequence[Any], **_: Any) -> Any:
    """A start that would pass the end is moved back."""
    sizes = at.shape_of(x)
    for axis, size in enumerate(at.dims(slice_sizes)):
        if size == sizes[axis]:
            continue
        first = _clamped(at, starts[axis], sizes[axis] - size)
        steps = at.emit(op.arange(0, size, 1, dtype="int64"))
        x = at.emit(op.take(x, at.emit(op.add(steps, first)), axis=axis))
    return x


def _clamped(at: Site, start: Expr, last: Dim) -> Any:
    """A start, 0 at least and `last` at most, as int64."""
    start = at.emit(op.maximum(at.cast(start, "int64"), constant(0, "int64")))
    return at.emit(op.minimum(start, at.number(dim_op("max", last, 0), "int64")))


@primitive("dynamic_update_slice")
def dynamic_update_slice(at: Site, x: Expr, update: Expr, *starts: Any, **_: Any) -> Any:
    """Where an element is inside of the window, that of the update."""
    sizes, window = at.shape_of(x), at.shape_of(update)
    inside = None
    for axis, (size, part_size) in enumerate(zip(sizes, window, strict=True)):
        if size == part_size:
            continue
        first = _clamped(at, starts[axis], size - part_size)
        place = at.emit(op.subtract(op.arange(0, size, 1, dtype="int64"), first))
        update = at.emit(op.take(update, place, axis=axis))
        end = at.number(part_size, "int64")
        here = op.logical_and(op.greater_equal(place, constant(0, "int64")), op.less(place, end))
        column = [size, *[1] * (len(sizes) - 1 - axis)]
        here = at.emit(op.reshape(at.emit(here), column))
        inside = here if inside is None else at.emit(op.logical_and(inside, here))
    return update if inside is None else op.where(inside, update, x)


class Windows:
    """The positions of the windows of a gather or scatter."""

    def __init__(
        self, at: Site, sizes: Sequence[Dim], indices: Expr, window: Sequence[Dim],
        index_map: Sequence[int], collapsed: Sequence[int], batching: Sequence[int],
        index_batching: Sequence[int], mode: Any,
    ) -> None:  # fmt: skip
        """`sizes` are those of the data, `window` those of a window, for each axis of the data."""
        count = at.ndim(indices) - 1
        rows = at.shape_of(indices)[:-1]
        self.indices = rows
        named = set(index_map)
        moving = sorted({*named, *batching})
        self.inner = [a for a in moving if a not in collapsed and a not in batching]
        """Indexed axes that a window has."""
        self.axes = moving
        """The axes of the data that are indexed."""
        self.places: list[Any] = []
        self.inside: Any = None
        """Whether a window is inside of the data, of the shape of the starts; None: they are moved inside."""
        wide = len(self.inner)
        is_kept = mode.name in ("FILL_OR_DROP", "ONE_HOT")
        for axis in moving:
            if axis in batching:
                lead = index_batching[list(batching).index(axis)]
                row = at.emit(op.arange(0, sizes[axis], 1, dtype="int64"))
                shape = [Dim.of(1)] * (count + wide)
                shape[lead] = sizes[axis]
                self.places.append(at.emit(op.reshape(row, shape)))
                continue
            column = list(index_map).index(axis)
            start = at.emit(op.squeeze(part(at, indices, count, column, column + 1), [count]))
            last = at.number(dim_op("max", sizes[axis] - window[axis], 0), "int64")
            start = at.cast(start, "int64")
            zero = constant(0, "int64")
            if is_kept:
                here = op.logical_and(op.greater_equal(start, zero), op.less_equal(start, last))
                here = at.emit(here)
                self.inside = (
                    here if self.inside is None else at.emit(op.logical_and(self.inside, here))
                )
            start = at.emit(op.minimum(op.maximum(start, zero), last))
            if wide:
                start = at.emit(op.reshape(start, [*rows, *[1] * wide]))
            if axis in self.inner:
                tail = wide - 1 - self.inner.index(axis)
                steps = at.emit(op.arange(0, window[axis], 1, dtype="int64"))
                steps = at.emit(op.reshape(steps, [window[axis], *[1] * tail]))
                start = at.emit(op.add(start, steps))
            self.places.append(start)

    @property
    def shape(self) -> int:
        """The number of axes of the positions."""
        return len(self.indices) + len(self.inner)


@primitive("gather")
def gather(
    at: Site, x: Expr, indices: Expr, dimension_numbers: Any, slice_sizes: Sequence[Any], mode: Any,
    fill_value: Any = None, **_: Any,
) -> Any:  # fmt: skip
    numbers = dimension_numbers
    window = at.dims(slice_sizes)
    removed = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    for axis, size in enumerate(window):  # not indexed, and only a part of it read
        moves = axis in numbers.start_index_map or axis in numbers.operand_batching_dims
        if not moves and size != at.shape_of(x)[axis]:
            x = part(at, x, axis, 0, size)
    found = Windows(
        at, at.shape_of(x), indices, window, numbers.start_index_map, numbers.collapsed_slice_dims,
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, mode,
    )  # fmt: skip
    rest = [a for a in range(len(window)) if a not in found.axes]
    if not found.axes:
        read = at.emit(op.broadcast_to(x, [*found.indices, *at.shape_of(x)]))
        gone = [a for a in rest if a in removed]
        read = at.emit(op.squeeze(read, [len(found.indices) + a for a in gone])) if gone else read
        rest = [a for a in rest if a not in gone]
    elif len(found.axes) == 1 and not found.inner:
        read = at.emit(op.take(at.emit(turned(x, [*found.axes, *rest])), found.places[0], axis=0))
    else:
        read = at.emit(op.index_tensor(at.emit(turned(x, [*found.axes, *rest])), found.places))
    # The axes of the starts, then those of windows, in the order of the data; JAX says where windows go.
    windows = [*found.inner, *rest]
    lead = len(found.indices)
    order = {axis: lead + k for k, axis in enumerate(windows)}
    own = [order[a] for a in sorted(windows)]
    rank = lead + len(windows)
    offsets = list(numbers.offset_dims)
    axes = iter(range(lead))
    moved = [own[offsets.index(a)] if a in offsets else next(axes) for a in range(rank)]
    read = at.emit(turned(read, moved))
    if found.inside is None:
        return read
    starts = [a for a in range(rank) if a not in offsets]
    column = [size if a in starts else Dim.of(1) for a, size in enumerate(at.shape)]
    mask = at.emit(op.reshape(found.inside, column)) if column else found.inside
    return op.where(mask, read, constant(_filling(at, fill_value), at.dtype))


def _filling(at: Site, given: Any) -> Any:
    """The value read outside of the data: NaN, the least signed or the greatest unsigned integer, True."""
    if given is not None:
        return given
    dtype = at.dtype
    if dtype.is_float:
        return float("nan")
    if dtype.is_bool:
        return True
    return int(dtype.limits[0] if dtype.is_signed else dtype.limits[1])


COMBINES: dict[str, Any] = {
    "add": lambda at, x, y: op.add(x, y), "mul": lambda at, x, y: op.multiply(x, y), "max": maximum,
    "min": minimum,
}  # fmt: skip
"""Reduction → what it makes of two tensors."""

_REDUCTIONS = {
    "scatter": "update", "scatter-add": "add", "scatter_add": "add", "scatter-mul": "mul", "scatter_mul": "mul",
    "scatter_min": "min", "scatter_max": "max", "scatter-min": "min", "scatter-max": "max",
}  # fmt: skip


@primitive(*_REDUCTIONS, "scatter-sub", "scatter_sub")
def scatter(
    at: Site, x: Expr, indices: Expr, updates: Expr, dimension_numbers: Any, mode: Any, **_: Any
) -> Any:
    name = at.eqn.primitive.name
    reduction = _REDUCTIONS.get(name, "add")
    if name not in _REDUCTIONS:
        updates = at.emit(op.negative(updates))
    numbers = dimension_numbers
    sizes = at.shape_of(x)
    rank = at.ndim(updates)
    places = list(numbers.update_window_dims)
    removed = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    given = [a for a in range(len(sizes)) if a not in removed]
    shape = at.shape_of(updates)
    window = [Dim.of(1)] * len(sizes)
    for axis, place in zip(given, places, strict=True):
        window[axis] = shape[place]
    # Axes of which a window is a part are indexed, too.
    named = list(numbers.scatter_dims_to_operand_dims)
    partial = [a for a in given if a not in named and window[a] != sizes[a]]
    if partial:
        zeros = op.zeros([*at.shape_of(indices)[:-1], Dim.of(len(partial))], at.dtype_of(indices))
        indices = at.emit(op.concat([indices, at.emit(zeros)], axis=at.ndim(indices) - 1))
        named += partial
    found = Windows(
        at, sizes, indices, window, named, numbers.inserted_window_dims, numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims, mode,
    )  # fmt: skip
    rest = [a for a in range(len(sizes)) if a not in found.axes]
    starts = [a for a in range(rank) if a not in places]
    order = [*starts, *(places[given.index(a)] for a in [*found.inner, *rest])]
    updates = at.emit(turned(updates, order))
    if not found.axes and not found.indices:  # the whole
        return updates if reduction == "update" else COMBINES[reduction](at, x, updates)
    data = at.emit(turned(x, [*found.axes, *rest]))
    lead = [*found.indices, *(window[a] for a in found.inner)]
    is_bool = at.dtype.is_bool and reduction != "update"
    if is_bool:
        data, updates = at.cast(data, "int8"), at.cast(updates, "int8")
        reduction = {"add": "max", "mul": "min"}.get(reduction, reduction)
    vectors = []
    for axis, place in zip(found.axes, found.places, strict=True):
        place = at.emit(op.broadcast_to(place, lead))
        if found.inside is not None:  # a window that is not inside is left out as a whole
            mask = at.emit(op.reshape(found.inside, [*found.indices, *[1] * len(found.inner)]))
            place = at.emit(op.where(mask, place, at.number(sizes[axis], "int64")))
        vectors.append(at.emit(op.expand_dims(place, len(lead))))
    if not vectors:
        raise at.fail("jax-operator", "a scatter that names no axis is not supported")
    vector = vectors[0] if len(vectors) == 1 else at.emit(op.concat(vectors, axis=len(lead)))
    put = at.emit(op.scatter_nd(data, vector, updates, reduction=reduction))
    if is_bool:
        put = at.cast(put, "bool")
    turn = [*found.axes, *rest]
    return turned(put, sorted(range(len(turn)), key=lambda i: turn[i]))
