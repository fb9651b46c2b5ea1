"""Reading and writing at indices. An index that torch refuses is an error when the program runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.torch.importer import Site
from relaxpy.frontend.torch.operators_elementwise import (
    number,
    numbers,
    refuse_where,
    size_tensor,
)
from relaxpy.frontend.torch.table import operator
from relaxpy.ir import Constant, Dim, Expr, PrimType, ShapeType, SymVar, TensorType
from relaxpy.ir.dim import dim_op, product


def check_indices(at: Site, indices: Expr, size: Any, negative: bool = False) -> None:
    """Check that the elements of `indices` are in an axis of this size; some operators count negative ones from the
    end."""
    indices = at.cast(indices, "int64")
    size = Dim.of(size)
    wrong = op.logical_or(
        op.less(indices, size_tensor(at, -size if negative else 0)),
        op.greater_equal(indices, size_tensor(at, size)),
    )
    refuse_where(at, at.emit(wrong), "indices_out_of_range")


def _from_front(at: Site, indices: Expr, size: Any) -> Any:
    """Indices with negative ones counted from the end, as int64."""
    indices = at.cast(indices, "int64")
    return op.where(
        op.less(indices, size_tensor(at, 0)), op.add(indices, size_tensor(at, size)), indices
    )


@operator("embedding.default")
def embedding(at: Site, weight: Expr, indices: Expr, *rest: Any) -> Any:
    check_indices(at, indices, at.shape_of(weight)[0])
    return op.take(weight, indices, axis=0)


@operator("embedding_renorm.default")
def embedding_renorm(at: Site, weight: Expr, indices: Expr, longest: float, order: float) -> Any:
    """The rows that indices name, at most so long."""
    rows, _ = at.shape_of(weight)
    check_indices(at, indices, rows)
    flat = at.emit(op.reshape(indices, (product(tuple(at.shape_of(indices))),)))
    named = op.scatter_elements(
        op.zeros((rows,), "int8"), flat, op.ones(at.shape_of(flat), "int8"), axis=0
    )
    sizes = op.abs(at.cast(weight, "float32"))
    if order == math.inf:
        length = op.max(sizes, axis=1)
    else:
        powers = op.power(sizes, op.full((), order, "float32"))
        length = op.power(op.sum(powers, axis=1), op.full((), 1 / order, "float32"))
    length = at.emit(length)
    shrinks = op.logical_and(
        op.astype(named, "bool"), op.greater(length, op.full((), longest, "float32"))
    )
    factor = op.divide(
        op.full((), longest, "float32"), op.add(length, op.full((), 1e-7, "float32"))
    )
    factor = op.where(shrinks, factor, op.full((), 1.0, "float32"))
    return op.multiply(weight, at.cast(op.expand_dims(factor, 1), at.dtype))


@operator("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(
    at: Site, weight: Expr, indices: Expr, offsets: Expr, by_frequency: bool = False, mode: int = 0,
    sparse: bool = False, factors: Any = None, last: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    """Sums (mode 0), means (1) or maxima (2) of the rows of each bag: bag i begins at offset i; with `last` the last
    offset is the end of all. Index `padding` is no row. Of the four results only the first exists here."""
    if any(user.args[1] for user in at.node.users):
        raise at.fail("torch-operator", "of _embedding_bag only the first result is supported")
    size, bags = at.shape_of(weight)[0], at.shape[0]
    check_indices(at, indices, size)
    places = at.emit(op.arange(0, at.shape_of(indices)[0], 1, dtype="int64"))
    bag = at.emit(op.bucketize(places, at.cast(offsets, "int64"), right=True))
    bag = at.emit(op.subtract(at.cast(bag, "int64"), size_tensor(at, 1)))
    if last:  # indices behind the end are in no bag
        bags = bags + 1
    check_indices(at, bag, bags)
    dtype = at.dtype_of(weight)
    rows = at.cast(
        at.emit(op.take(weight, indices, axis=0)), "float32" if dtype.is_narrow else dtype
    )
    if factors is not None:
        rows = at.emit(op.multiply(rows, at.cast(op.expand_dims(factors, 1), at.dtype_of(rows))))
    wide = at.dtype_of(rows)
    kept = at.emit(
        op.not_equal(
            at.cast(indices, "int64"), size_tensor(at, padding % size if padding >= 0 else -1)
        )
    )
    empty = at.number(-math.inf if mode == 2 else 0, wide)
    rows = at.emit(op.where(op.expand_dims(kept, 1), rows, empty))
    bag_of = at.emit(op.broadcast_to(op.expand_dims(bag, 1), at.shape_of(rows)))
    start = at.emit(op.full((bags, at.shape[1]), empty))
    zero, kind = at.number(0, wide), "max" if mode == 2 else "add"
    found = at.emit(op.scatter_elements(start, bag_of, rows, axis=0, reduction=kind))
    none = at.emit(op.zeros((bags,), wide))
    counts = op.scatter_elements(none, bag, at.cast(kept, wide), axis=0, reduction="add")
    counts = at.emit(op.expand_dims(at.emit(counts), 1))
    if mode == 1:
        found = at.emit(op.divide(found, op.maximum(counts, at.number(1, wide))))
    elif mode == 2:
        found = at.emit(op.where(op.greater(counts, zero), found, zero))
    if last:
        found = at.emit(op.strided_slice(found, [0], [0], [at.shape[0]]))
    return at.cast(found, at.dtype), None, None, None


@operator("unfold.default")
def unfold(at: Site, x: Expr, axis: int, size: Any, step: Any) -> Any:
    """Windows of an axis: their places in its stead, their elements in a new last axis."""
    if not at.ndim(x):
        return op.strided_slice(op.expand_dims(x, 0), [0], [0], [size])
    axis %= at.ndim(x)
    begin = op.multiply(op.arange(0, at.shape[axis], 1, dtype="int64"), size_tensor(at, step))
    inside = op.arange(0, size, 1, dtype="int64")
    windows = at.emit(op.take(x, op.add(op.expand_dims(begin, 1), inside), axis=axis))
    rest = [a for a in range(at.ndim(windows)) if a != axis + 1]
    return op.permute_dims(windows, [*rest, axis + 1])


def _triangle(places: Callable[..., Any]) -> Callable[..., Any]:
    def rule(at: Site, rows: int, columns: int, offset: int = 0, *rest: Any) -> Any:
        return Constant(np.stack(places(rows, offset, columns)).astype(at.dtype.numpy))

    return rule


operator("tril_indices.default")(_triangle(np.tril_indices))  # of sizes that torch keeps as numbers
operator("triu_indices.default")(_triangle(np.triu_indices))


@operator("index_select.default")
def index_select(at: Site, x: Expr, axis: int, indices: Expr) -> Any:
    shape = at.shape
    if not at.ndim(x):
        x, axis = at.emit(op.expand_dims(x, 0)), 0
    if not at.ndim(indices):
        indices = at.emit(op.expand_dims(indices, 0))
    check_indices(at, indices, at.shape_of(x)[axis])
    found = op.take(x, indices, axis=axis)
    return op.reshape(at.emit(found), shape) if len(shape) != at.ndim(x) else found


@operator("gather.default")
def gather(at: Site, x: Expr, axis: int, indices: Expr, *rest: Any) -> Any:
    if not at.ndim(x) or not at.ndim(indices):
        flat, places = at.emit(op.reshape(x, (-1,))), at.emit(op.reshape(indices, (-1,)))
        check_indices(at, places, at.shape_of(flat)[0])
        return op.reshape(at.emit(op.take(flat, places, axis=0)), at.shape)
    if at.ndim(x) != at.ndim(indices):  # there are no indices
        return op.zeros(at.shape, at.dtype)
    check_indices(at, indices, at.shape_of(x)[axis])
    return op.gather_elements(x, indices, axis=axis)


@operator("take.default")
def take(at: Site, x: Expr, indices: Expr) -> Any:
    flat = at.emit(op.reshape(x, (product(tuple(at.shape_of(x))),)))
    size = at.shape_of(flat)[0]
    check_indices(at, indices, size, negative=True)
    return op.take(flat, _from_front(at, indices, size), axis=0)


def true_places(at: Site, mask: Expr) -> list[Expr]:
    """The indices of the elements that are not 0, for each axis."""
    rank, count = at.ndim(mask), SymVar(at.importer.fresh("count")).dim
    rows = at.match(at.emit(op.nonzero(mask)), TensorType((rank, count), "int64"))
    parts = (at.emit(op.strided_slice(rows, [0], [k], [k + 1])) for k in range(rank))
    return [at.emit(op.reshape(part, (count,))) for part in parts]


@operator("_unique2.default")
def unique(
    at: Site, x: Expr, ordered: bool = True, inverse: bool = False, counts: bool = False
) -> Any:
    """The values in order; each NaN is one of its own."""
    flat = at.emit(op.reshape(x, (product(tuple(at.shape_of(x))),)))
    order = at.emit(op.argsort(flat, axis=0, dtype="int64"))
    values, runs, found = _runs(at, at.emit(op.take(flat, order, axis=0)), 0)
    places = op.scatter_elements(op.zeros(at.shape_of(flat), "int64"), order, runs, axis=0)
    return values, op.reshape(places, tuple(at.shape_of(x))) if inverse else None, found


@operator("unique_consecutive.default")
def unique_consecutive(
    at: Site, x: Expr, inverse: bool = False, counts: bool = False, axis: int | None = None
) -> Any:
    if axis is not None:
        return _runs(at, x, axis)
    flat = at.emit(op.reshape(x, (product(tuple(at.shape_of(x))),)))
    values, runs, found = _runs(at, flat, 0)
    return values, op.reshape(runs, tuple(at.shape_of(x))) if inverse else None, found


@operator("unique_dim.default")
def unique_dim(
    at: Site, x: Expr, axis: int, ordered: bool = True, inverse: bool = False, counts: bool = False
) -> Any:
    return op.unique(x, axis=axis, return_inverse=True, return_counts=True)


def _runs(at: Site, x: Expr, axis: int) -> tuple[Expr, Expr, Expr]:
    """Of equal neighbours along an axis the first, for each place the number of its run, and the lengths of runs."""
    size = at.shape_of(x)[axis]
    steps = at.emit(op.arange(0, size, 1, dtype="int64"))
    before = op.maximum(op.subtract(steps, size_tensor(at, 1)), size_tensor(at, 0))
    differs = op.not_equal(numbers(at, x), numbers(at, at.emit(op.take(x, before, axis=axis))))
    others = [each for each in range(at.ndim(x)) if each != axis % at.ndim(x)]
    if others:
        differs = op.any(at.emit(differs), axis=others)
    starts = at.emit(op.logical_or(differs, op.equal(steps, size_tensor(at, 0))))
    runs = at.emit(op.subtract(op.cumsum(op.astype(starts, "int64"), axis=0), size_tensor(at, 1)))
    (places,) = true_places(at, starts)
    lengths = op.scatter_elements(
        op.zeros(at.shape_of(places), "int64"),
        runs,
        op.ones((size,), "int64"),
        axis=0,
        reduction="add",
    )
    return at.emit(op.take(x, places, axis=axis)), runs, at.emit(lengths)


def _named(at: Site, x: Expr, indices: list[Any]) -> tuple[Any, list[Expr], list[int], int]:
    """The tensor with its indexed axes first, the indices of these axes, the permutation, and where the axes of the
    indices go in the result: a mask is the indices of its true elements."""
    axes: list[int] = []
    named: list[Expr] = []
    axis, places = 0, []
    for position, index in enumerate(indices):
        if index is None:
            axis += 1
            continue
        places.append(position)
        if at.dtype_of(index).is_bool:
            found = true_places(at, index)
            named += found
            axes += range(axis, axis + len(found))
            axis += len(found)
        else:
            check_indices(at, index, at.shape_of(x)[axis], negative=True)
            named.append(index)
            axes.append(axis)
            axis += 1
    together = places == list(range(places[0], places[-1] + 1))
    order = [*axes, *(a for a in range(at.ndim(x)) if a not in axes)]
    return order, named, axes, axes[0] if together else 0


def _is_identity(order: list[int]) -> bool:
    return order == list(range(len(order)))


def _turned(x: Any, order: list[int]) -> Any:
    return x if _is_identity(order) else op.permute_dims(x, order)


def _back(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda i: order[i])


@operator("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(at: Site, x: Expr, indices: list[Any]) -> Any:
    order, named, _, front = _named(at, x, indices)
    if len(named) == 1:
        places = _from_front(at, named[0], at.shape_of(x)[order[0]])
        return op.take(x, places, axis=order[0])
    found = at.emit(op.index_tensor(at.emit(_turned(x, order)), named))
    lead = at.ndim(found) - (at.ndim(x) - len(named))
    # The axes of the indices stand where the first indexed axis was, if those were neighbours.
    moved = [*range(lead, lead + front), *range(lead), *range(lead + front, at.ndim(found))]
    return _turned(found, moved)


@operator("put.default")
def put(at: Site, x: Expr, places: Expr, values: Expr, accumulate: bool = False) -> Any:
    """The elements of `x` in row-major order."""
    flat, places, values = (at.emit(op.reshape(each, (-1,))) for each in (x, places, values))
    found = index_put(at, flat, [places], values, accumulate)
    return op.reshape(at.emit(found), at.shape)


@operator("index_put.default", "_unsafe_index_put.default")
def index_put(at: Site, x: Expr, indices: list[Any], values: Expr, accumulate: bool = False) -> Any:
    given = [index for index in indices if index is not None]
    if (
        len(given) == 1
        and at.dtype_of(given[0]).is_bool
        and indices[0] is given[0]
        and not at.ndim(values)
        and not accumulate
    ):
        mask = given[0]
        rest = [1] * (at.ndim(x) - at.ndim(mask))
        mask = at.emit(op.reshape(mask, (*at.shape_of(mask), *rest))) if rest else mask
        return op.where(mask, at.cast(values, at.dtype), x)
    order, named, _, front = _named(at, x, indices)
    turned = at.emit(_turned(x, order))
    values = at.cast(values, at.dtype)
    lead = max(at.ndim(each) for each in named)
    rank = lead + at.ndim(x) - len(named)
    if front:
        while at.ndim(values) < rank and at.ndim(values):
            values = at.emit(op.expand_dims(values, 0))
        if at.ndim(values):
            moved = [*range(front, front + lead), *range(front), *range(front + lead, rank)]
            values = at.emit(op.permute_dims(values, moved))
    if at.dtype.is_bool:
        put = op.index_put(
            at.cast(turned, "int8"), named, at.cast(values, "int8"), accumulate=accumulate
        )
        put = op.astype(at.emit(put), "bool")
    else:
        put = op.index_put(turned, named, values, accumulate=accumulate)
    return _turned(at.emit(put), _back(order))


_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}  # fmt: skip


def scattered(
    at: Site, x: Expr, axis: int, indices: Expr, updates: Expr, reduction: str = "update"
) -> Any:
    """`scatter_elements` with its indices checked, of 0-d tensors too."""
    updates = at.cast(updates, at.dtype)
    shape = at.shape_of(x)
    x, indices, updates = (
        each if at.ndim(each) else at.emit(op.reshape(each, (1,))) for each in (x, indices, updates)
    )
    check_indices(at, indices, at.shape_of(x)[axis])
    sizes = [
        (0, size) for size, of in zip(at.shape_of(indices), at.shape_of(updates)) if size != of
    ]
    if sizes:
        axes = list(range(at.ndim(indices)))
        ends = at.shape_of(indices)
        updates = at.emit(op.strided_slice(updates, axes, [0] * len(axes), ends))
    is_bool = at.dtype_of(x).is_bool and reduction != "update"
    if is_bool:
        x, updates = at.cast(x, "int8"), at.cast(updates, "int8")
        reduction = {"add": "max", "mul": "min"}.get(reduction, reduction)
    found = op.scatter_elements(x, indices, updates, axis=axis, reduction=reduction)
    if is_bool:
        found = op.astype(at.emit(found), "bool")
    return found if shape else op.reshape(at.emit(found), ())


@operator("scatter.src", "scatter.reduce")
def scatter(
    at: Site, x: Expr, axis: int, indices: Expr, updates: Expr, reduce: str | None = None
) -> Any:
    return scattered(at, x, axis, indices, updates, _REDUCTIONS.get(reduce or "", "update"))


@operator("scatter.value", "scatter.value_reduce")
def scatter_value(
    at: Site, x: Expr, axis: int, indices: Expr, value: Any, reduce: str | None = None
) -> Any:
    updates = at.emit(op.broadcast_to(number(at, value), at.shape_of(indices)))
    return scattered(at, x, axis, indices, updates, _REDUCTIONS.get(reduce or "", "update"))


@operator("scatter_add.default")
def scatter_add(at: Site, x: Expr, axis: int, indices: Expr, updates: Expr) -> Any:
    return scattered(at, x, axis, indices, updates, "add")


@operator("scatter_reduce.two")
def scatter_reduce(
    at: Site, x: Expr, axis: int, indices: Expr, updates: Expr, reduce: str, include: bool = True
) -> Any:
    kind = _REDUCTIONS.get(reduce, "add")
    start = x
    if not include:
        low, high = (-math.inf, math.inf) if at.dtype.is_float else (0, 1)
        if at.dtype.is_int and not at.dtype.is_bool:
            low, high = at.dtype.limits
        neutral = {"add": 0, "mul": 1, "max": low, "min": high}[kind]
        first = at.emit(op.broadcast_to(number(at, neutral), at.shape_of(indices)))
        start = at.emit(scattered(at, x, axis, indices, first))
    if reduce != "mean":
        return scattered(at, start, axis, indices, updates, kind)
    wide = at.cast(start, "float32") if at.dtype.is_narrow else start
    total = _wide_scatter(at, wide, axis, indices, updates)
    ones = at.emit(op.ones(at.shape_of(indices), at.dtype_of(wide)))
    none = op.ones(at.shape_of(x), at.dtype_of(wide))
    counts = at.emit(none if include else op.zeros(at.shape_of(x), at.dtype_of(wide)))
    counts = _wide_scatter(at, counts, axis, indices, ones)
    counts = op.maximum(counts, op.ones((), at.dtype_of(wide)))
    divide = op.divide if at.dtype.is_float else op.floor_divide
    return divide(total, counts)


def _wide_scatter(at: Site, x: Expr, axis: int, indices: Expr, updates: Expr) -> Any:
    dtype = at.dtype_of(x)
    if not at.ndim(x):
        found = op.scatter_elements(
            at.emit(op.reshape(x, (1,))), at.emit(op.reshape(indices, (1,))),
            at.cast(at.emit(op.reshape(updates, (1,))), dtype), axis=0, reduction="add",
        )  # fmt: skip
        return at.emit(op.reshape(at.emit(found), ()))
    axes, ends = list(range(at.ndim(indices))), at.shape_of(indices)
    updates = at.emit(op.strided_slice(updates, axes, [0] * len(axes), ends))
    return at.emit(
        op.scatter_elements(x, indices, at.cast(updates, dtype), axis=axis, reduction="add")
    )


@operator("slice_scatter.default")
def slice_scatter(
    at: Site, x: Expr, source: Expr, axis: int, start: Any, end: Any, step: Any
) -> Any:
    size = at.shape_of(x)[axis]
    start = 0 if start is None else start
    end = size if end is None or (isinstance(end, int) and end >= 2**62) else end
    if start == 0 and step == 1 and Dim.of(end) == size:
        return op.broadcast_to(at.cast(source, at.dtype), at.shape)
    return op.slice_scatter(x, at.cast(source, at.dtype), start, end, step, axis=axis)


@operator("select_scatter.default")
def select_scatter(at: Site, x: Expr, source: Expr, axis: int, index: Any) -> Any:
    size = at.shape_of(x)[axis]
    first = Dim.of(index)
    if isinstance(index, int) and index < 0:
        first = size + index
    at.check(dim_op("lt", first, size), f"the index {index} is in an axis of {size}")
    axis %= at.ndim(x)
    sizes = [Dim.of(1) if a == axis else d for a, d in enumerate(at.shape_of(x))]
    source = at.emit(op.expand_dims(at.cast(source, at.dtype), axis))
    source = at.emit(op.broadcast_to(source, sizes))
    return op.slice_scatter(x, source, first, first + 1, 1, axis=axis)


@operator("nonzero.default")
def nonzero(at: Site, x: Expr) -> Any:
    found = at.emit(op.permute_dims(at.emit(op.nonzero(x))))
    return found if at.ndim(x) else op.strided_slice(found, [1], [0], [0])


@operator("bincount.default")
def bincount(at: Site, x: Expr, weights: Expr | None = None, least: int = 0) -> Any:
    """As many counts as the largest number asks for."""
    x = at.cast(x, "int64")
    ends = [x, op.full((1,), least - 1, "int64")]
    size = op.add(op.max(at.emit(op.concat(ends, axis=0)), keepdims=True), size_tensor(at, 1))
    count = SymVar(at.importer.fresh("count")).dim
    at.match(at.emit(op.tensor_to_shape(at.emit(size))), ShapeType([count]))
    check_indices(at, x, count)
    added = op.ones(at.shape_of(x), at.dtype) if weights is None else at.cast(weights, at.dtype)
    zeros = at.emit(op.zeros((count,), at.dtype))
    return op.scatter_elements(zeros, x, at.emit(added), axis=0, reduction="add")


@operator("masked_scatter.default")
def masked_scatter(at: Site, x: Expr, mask: Expr, source: Expr) -> Any:
    shape = at.shape
    x, mask = at.emit(op.broadcast_to(x, shape)), at.emit(op.broadcast_to(mask, shape))
    flat = at.emit(op.reshape(mask, (product(tuple(shape)),)))
    place = at.emit(op.cumsum(op.astype(flat, "int64"), axis=0))
    place = at.emit(op.subtract(place, size_tensor(at, 1)))
    flat = at.emit(op.reshape(source, (product(tuple(at.shape_of(source))),)))
    inside = op.logical_or(
        op.less(place, size_tensor(at, at.shape_of(flat)[0])), op.less(place, size_tensor(at, 0))
    )
    count = at.emit(op.sum(op.astype(op.logical_not(at.emit(inside)), "int64")))
    at.match(
        at.emit(op.tensor_to_scalar(count)), PrimType("int64", 0), "elements_missing_in_source"
    )
    chosen = at.emit(op.reshape(at.emit(op.take(flat, place, axis=0)), shape))
    return op.where(mask, at.cast(chosen, at.dtype), x)


@operator("diagonal.default", "diagonal_copy.default")
def diagonal(at: Site, x: Expr, offset: int = 0, a: int = 0, b: int = 1) -> Any:
    rank = at.ndim(x)
    a, b = a % rank, b % rank
    order = [a, b, *(axis for axis in range(rank) if axis not in (a, b))]
    count = at.shape[-1]
    steps = at.emit(op.arange(0, count, 1, dtype="int64"))
    rows = at.emit(op.add(steps, size_tensor(at, max(-offset, 0))))
    columns = at.emit(op.add(steps, size_tensor(at, max(offset, 0))))
    found = at.emit(op.index_tensor(at.emit(_turned(x, order)), [rows, columns]))
    return _turned(found, [*range(1, rank - 1), 0])


@operator("diagonal_scatter.default")
def diagonal_scatter(
    at: Site, x: Expr, source: Expr, offset: int = 0, a: int = 0, b: int = 1
) -> Any:
    """Each row takes the element of the source that is its own, where the column is the diagonal's."""
    rank, sizes = at.ndim(x), at.shape_of(x)
    a, b = a % rank, b % rank
    count = at.shape_of(source)[-1]
    if count.value == 0:
        return x
    source = at.cast(source, at.dtype)
    rows, columns = (at.emit(op.arange(0, sizes[axis], 1, dtype="int64")) for axis in (a, b))
    own = at.emit(op.subtract(rows, size_tensor(at, max(-offset, 0))))
    own = at.emit(op.minimum(op.maximum(own, size_tensor(at, 0)), size_tensor(at, count - 1)))
    spread = at.emit(op.expand_dims(at.emit(op.take(source, own, axis=-1)), -1))
    order = [*(axis for axis in range(rank) if axis not in (a, b)), a, b]
    spread = at.emit(_turned(spread, [order.index(axis) for axis in range(rank)]))
    distance = op.subtract(
        columns, at.emit(op.expand_dims(at.emit(op.add(rows, size_tensor(at, offset))), 1))
    )
    mask = at.emit(op.equal(at.emit(distance), size_tensor(at, 0)))
    if a > b:
        mask = at.emit(op.permute_dims(mask))
    shape = [size if axis in (a, b) else Dim.of(1) for axis, size in enumerate(sizes)]
    return op.where(at.emit(op.reshape(mask, shape)), spread, x)


@operator("as_strided.default")
def as_strided(at: Site, x: Expr, sizes: Any, strides: Any, offset: Any = 0) -> Any:
    """Reads the memory of x, which is contiguous here."""
    flat = at.emit(op.reshape(x, (product(tuple(at.shape_of(x))),)))
    return op.take(flat, _places_of(at, flat, at.shape, strides, offset), axis=0)


@operator("as_strided_scatter.default")
def as_strided_scatter(
    at: Site, x: Expr, part: Expr, sizes: Any, strides: Any, offset: Any = 0
) -> Any:
    flat = at.emit(op.reshape(x, (product(tuple(at.shape_of(x))),)))
    sizes = at.shape_of(part)
    places = at.emit(_places_of(at, flat, sizes, strides, offset))
    places, part = (at.emit(op.reshape(each, (product(tuple(sizes)),))) for each in (places, part))
    return op.reshape(at.emit(op.scatter_elements(flat, places, part, axis=0)), at.shape)


def _places_of(at: Site, flat: Expr, sizes: Any, strides: Any, offset: Any) -> Any:
    """The places in memory of a tensor with these strides, which are checked to be inside."""
    place: Any = size_tensor(at, offset or 0)
    last = Dim.of(offset or 0)
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        steps = op.multiply(at.emit(op.arange(0, size, 1, dtype="int64")), size_tensor(at, stride))
        rest = len(sizes) - 1 - axis
        place = op.add(place, op.reshape(at.emit(steps), (size, *[1] * rest)))
        last = last + (size - 1) * stride
    empty = dim_op("eq", product(tuple(sizes)), 0)
    at.check(
        dim_op("or", empty, dim_op("lt", last, at.shape_of(flat)[0])),
        "as_strided stays within the memory of its tensor",
    )
    return at.emit(place)


@operator("repeat_interleave.Tensor")
def repeat_interleave(at: Site, repeats: Expr, total: Any = None) -> Any:
    """Each index as often as its element says: the number of ends of runs that are not after a place."""
    repeats = at.cast(repeats, "int64")
    count = SymVar(at.importer.fresh("count"), signed=True).dim
    at.match(
        at.emit(op.tensor_to_scalar(at.emit(op.sum(repeats)))), PrimType("int64", count), "count"
    )
    places = at.emit(op.arange(0, count, 1, dtype="int64"))
    found = op.bucketize(places, at.emit(op.cumsum(repeats, axis=0)), right=True)
    return at.cast(at.emit(found), at.dtype)


@operator("masked_select.default")
def masked_select(at: Site, x: Expr, mask: Expr) -> Any:
    x = at.emit(op.where(mask, x, x))  # both of the shape that they have together
    mask = at.emit(op.logical_or(mask, op.zeros(at.shape_of(x), "bool")))
    return index_tensor(at, x, [mask])
