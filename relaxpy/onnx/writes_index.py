"""Operators that read and write at indices, sort and search.

Indices out of range: here the nearest element is read, and an update is skipped; in ONNX they are errors. So they are
written with their bounds, unless they are constants. Reading an axis of size 0 is still an error when the file runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy.ir import Dim, DType
from relaxpy.ir.dim import product
from relaxpy.onnx.write_table import writes
from relaxpy.onnx.write_values import Tensor
from relaxpy.onnx.writer import Place
from relaxpy.onnx.writes_elementwise import position
from relaxpy.onnx.writes_shape import filled
from relaxpy.op import arg_reduce, nms, quantization, search, set, sorting
from relaxpy.op.expert_linear import ExpertLinear
from relaxpy.op.gather import GatherElements, GatherND, IndexTensor, Take
from relaxpy.op.scatter import IndexPut, ScatterElements, ScatterND
from relaxpy.op.slices_at import DynamicUpdateSlice


def is_inside(at: Place, indices: Any, size: Any) -> str:
    """Which indices from the front are in range?"""
    from_front = at.node("GreaterOrEqual", indices, at.number(0, "int64"))
    return at.node("And", from_front, at.node("Less", indices, size))


def from_end(at: Place, indices: Any, size: Any) -> str:
    """Indices of which negative ones count from the end; `size` is a tensor."""
    negative = at.node("Less", indices, at.number(0, "int64"))
    return at.node("Where", negative, at.node("Add", indices, size), indices)


def nearest(at: Place, indices: Any, size: Any) -> str:
    """Indices clamped to the valid ones."""
    last = at.node("Sub", size, at.number(1, "int64"))
    return at.node("Max", at.node("Min", indices, last), at.number(0, "int64"))


def are_valid(given: np.ndarray | None, size: Dim, from_end: bool = True) -> bool:
    """Is none of the constant indices out of range?"""
    if given is None or size.value is None:
        return False
    return bool(np.all((given >= (-size.value if from_end else 0)) & (given < size.value)))


def bounded(at: Place, indices: Tensor, size: Dim) -> Any:
    """Indices of an axis as ONNX takes them: none out of range."""
    if are_valid(indices.constant, size):
        return at.cast(indices, "int64")
    length = at.scalar(size)
    return nearest(at, from_end(at, position(at, indices), length), length)


@writes(Take)
def take(at: Place, op: Take, x: Tensor, indices: Tensor) -> Any:
    axis = (op.axis or 0) % x.ndim
    dims = at.dims(x)
    size = dims[axis]
    if size.value == 0:
        shape = at.shape([*dims[:axis], *at.dims(indices), *dims[axis + 1 :]])
        return filled(at, shape, np.nan if op.mode == "nan" else 0, x.dtype)
    found = position(at, indices)
    if are_valid(indices.constant, size, from_end=False):
        return at.node("Gather", x, found, axis=axis)
    if op.mode == "wrap":
        return at.node("Gather", x, at.node("Mod", found, at.scalar(size)), axis=axis)
    inside = nearest(at, found, at.scalar(size))
    rows = at.node("Gather", x, inside, axis=axis)
    if op.mode != "nan":
        return rows
    valid = is_inside(at, found, at.scalar(size))
    spread = at.unsqueeze(valid, range(indices.ndim, indices.ndim + x.ndim - axis - 1))
    return at.node("Where", spread, rows, at.number(np.nan, x.dtype))


@writes(GatherElements)
def gather_elements(at: Place, op: GatherElements, x: Tensor, indices: Tensor) -> Any:
    size = at.dims(x)[op.axis]
    if size.value == 0:
        return filled(at, at.shape(at.dims(indices)), 0, x.dtype)
    return at.node("GatherElements", x, bounded(at, indices, size), axis=op.axis)


def vectors_are_valid(given: np.ndarray | None, dims: Sequence[Dim]) -> bool:
    """Is none of the constant index vectors out of range?"""
    return given is not None and all(are_valid(given[..., k], size) for k, size in enumerate(dims))


def bounded_vectors(at: Place, vectors: Any, dims: Sequence[Dim], given: Any = None) -> Any:
    """Index vectors along a last axis, for axes of these sizes: none out of range."""
    if vectors_are_valid(given, dims):
        return vectors
    sizes = at.shape(dims)
    return nearest(at, from_end(at, vectors, sizes), sizes)


@writes(GatherND)
def gather_nd(at: Place, op: GatherND, x: Tensor, indices: Tensor) -> Any:
    depth = at.dims(indices)[-1].value
    if not depth:
        raise at.fail(f"with indices of {at.dims(indices)[-1]} numbers")
    named = at.dims(x)[op.batch_dims : op.batch_dims + depth]
    if any(dim.value == 0 for dim in named):
        rest = at.dims(x)[op.batch_dims + depth :]
        return filled(at, at.shape([*at.dims(indices)[:-1], *rest]), 0, x.dtype)
    vectors = bounded_vectors(at, position(at, indices), named, indices.constant)
    return at.node("GatherND", x, vectors, batch_dims=op.batch_dims)


def joined(at: Place, indices: Sequence[Tensor]) -> str:
    """Index tensors, broadcast together, as vectors along a last axis."""
    ndim = max(each.ndim for each in indices)
    own = [position(at, each) for each in indices]
    if len(own) > 1:
        total: Any = None
        for each in own:
            zero = at.node("Mul", each, at.number(0, "int64"))
            total = zero if total is None else at.node("Add", total, zero)
        own = [at.node("Add", each, total) for each in own]
    parts = [at.unsqueeze(each, [ndim]) for each in own]
    return parts[0] if len(parts) == 1 else at.node("Concat", *parts, axis=-1)


def _constant(indices: Sequence[Tensor]) -> np.ndarray | None:
    """The vectors of index tensors, if all are constants."""
    known = [each.constant for each in indices if each.constant is not None]
    if len(known) < len(indices):
        return None
    return np.stack(np.broadcast_arrays(*known), -1)


@writes(IndexTensor)
def index_tensor(at: Place, op: Any, x: Tensor, indices: Sequence[Tensor]) -> Any:
    named = at.dims(x)[: len(indices)]
    vectors = joined(at, indices)
    if any(dim.value == 0 for dim in named):
        rest = at.dims(x)[len(indices) :]
        lead = at.node("Shape", vectors, end=-1)
        shape = at.node("Concat", lead, at.shape(rest), axis=0) if rest else lead
        return filled(at, shape, 0, x.dtype)
    return at.node("GatherND", x, bounded_vectors(at, vectors, named, _constant(indices)))


_REDUCTIONS = {"update": None, "add": "add", "mul": "mul", "min": "min", "max": "max"}


def reduction(at: Place, name: str) -> str | None:
    """ONNX's name of a reduction."""
    if name not in _REDUCTIONS:
        raise at.fail(f'with reduction="{name}", which ONNX does not have')
    return _REDUCTIONS[name]


def beyond(at: Place, x: Any, dtype: DType, dims: Sequence[Dim], axis: int) -> str:
    """A tensor with one more row along an axis: a place for updates that are skipped."""
    row = filled(at, at.shape([1 if a == axis else dim for a, dim in enumerate(dims)]), 0, dtype)
    return at.node("Concat", x, row, axis=axis)


def _wide(x: Tensor, how: str | None) -> DType:
    """What is scattered in: sums and products of narrow floats in float32. Runtimes have no narrow minima either."""
    return DType("float32") if x.dtype.is_narrow and how is not None else x.dtype


@writes(ScatterElements)
def scatter_elements(
    at: Place, op: ScatterElements, x: Tensor, indices: Tensor, new: Tensor
) -> Any:
    axis, dims, how = op.axis % x.ndim, at.dims(x), reduction(at, op.reduction)
    size, places, wide = dims[axis], position(at, indices), _wide(x, how)
    data: Any = at.cast(x, wide)
    valid = are_valid(indices.constant, size)
    if not valid:
        length = at.scalar(size)
        own = from_end(at, places, length)
        places = at.node("Where", is_inside(at, own, length), own, length)
        data = beyond(at, data, wide, dims, axis)
    found = at.node("ScatterElements", data, places, at.cast(new, wide), axis=axis, reduction=how)
    return at.cast(found if valid else at.slice(found, axis, 0, size), x.dtype, wide)


@writes(ScatterND)
def scatter_nd(at: Place, op: ScatterND, x: Tensor, indices: Tensor, new: Tensor) -> Any:
    depth = at.dims(indices)[-1].value
    how = reduction(at, op.reduction)
    if depth is None:
        raise at.fail(f"with indices of {at.dims(indices)[-1]} numbers")
    wide = _wide(x, how)
    found = _scattered(
        at, x, position(at, indices), depth, at.cast(new, wide), how, indices.constant
    )
    return at.cast(found, x.dtype, wide)


def _scattered(
    at: Place, x: Tensor, vectors: Any, depth: int, new: Any, how: str | None, given: Any = None
) -> str:
    """Updates at index vectors: at places in the axes that they name, taken as one."""
    dims, wide = at.dims(x), _wide(x, how)
    named, rest = dims[:depth], dims[depth:]
    data: Any = at.cast(x, wide)
    if depth == 0 or vectors_are_valid(given, named):
        return at.node("ScatterND", data, vectors, new, reduction=how)
    sizes, count = at.shape(named), product(tuple(named))
    own = from_end(at, vectors, sizes)
    steps = at.shape([product(tuple(named[k + 1 :])) for k in range(depth)])
    place = at.node("ReduceSum", at.node("Mul", own, steps), at.ints([-1]), keepdims=1)
    inside = at.cast(is_inside(at, own, sizes), "int64", "bool")
    every = at.cast(at.node("ReduceMin", inside, at.ints([-1]), keepdims=1), "bool", "int64")
    places = at.node("Where", every, place, at.scalar(count))
    if depth > 1:
        data = at.reshape(data, [count, *rest])
    more = beyond(at, data, wide, [count, *rest], 0)
    found = at.slice(at.node("ScatterND", more, places, new, reduction=how), 0, 0, count)
    return at.reshape(found, dims) if depth > 1 else found


@writes(IndexPut)
def index_put(at: Place, op: IndexPut, x: Tensor, indices: Sequence[Tensor], new: Tensor) -> Any:
    vectors = joined(at, indices)
    lead = at.node("Shape", vectors, end=-1)
    rest = at.node("Shape", x, start=len(indices))
    how = "add" if op.accumulate else None
    wide = _wide(x, how)
    values = at.node("Expand", at.cast(new, wide), at.node("Concat", lead, rest, axis=0))
    found = _scattered(at, x, vectors, len(indices), values, how, _constant(indices))
    return at.cast(found, x.dtype, wide)


@writes(DynamicUpdateSlice)
def dynamic_update_slice(at: Place, op: Any, x: Tensor, update: Tensor, starts: Tensor) -> Any:
    dims, taken = at.dims(x), at.dims(update)
    part = [a for a in range(x.ndim) if dims[a] != taken[a]]
    if not part:
        return at.node("Identity", update)
    order = [*part, *(a for a in range(x.ndim) if a not in part)]
    own, rows = position(at, starts), list[str]()
    grid = at.shape([taken[a] for a in part])
    for place, a in enumerate(part):
        last = at.shape([dims[a] - taken[a]])
        start = at.node("Max", at.node("Min", at.slice(own, 0, a, a + 1), last), at.ints([0]))
        each = at.node("Range", at.number(0, "int64"), at.scalar(taken[a]), at.number(1, "int64"))
        along = at.unsqueeze(at.node("Add", each, start), range(1, len(part) - place))
        rows.append(at.unsqueeze(at.node("Expand", along, grid), [len(part)]))
    vectors = rows[0] if len(rows) == 1 else at.node("Concat", *rows, axis=-1)
    found = at.node("ScatterND", at.transpose(x, order), vectors, at.transpose(update, order))
    return at.transpose(found, [order.index(a) for a in range(x.ndim)])


@writes(ExpertLinear)
def expert_linear(
    at: Place, op: Any, x: Tensor, weight: Tensor, experts: Tensor, bias: Tensor | None = None
) -> Any:
    own = nearest(at, position(at, experts), at.scalar(at.dims(weight)[0]))
    rows = at.node("Unsqueeze", x, at.ints([1, 3]))
    found = at.node(
        "Squeeze", at.node("MatMul", at.node("Gather", weight, own, axis=0), rows), at.ints([3])
    )
    return found if bias is None else at.node("Add", found, at.node("Gather", bias, own, axis=0))


# Sorting and searching


def sorted_along(at: Place, x: Tensor, axis: int, descending: bool, count: int = 0) -> list[str]:
    """The sorted elements, or the first of them, and their indices."""
    axis %= x.ndim
    number = at.shape([at.dims(x)[axis] if count < 1 else count])
    return at.nodes("TopK", 2, x, number, axis=axis, largest=int(descending))


@writes(sorting.Sort)
def sort(at: Place, op: sorting.Sort, x: Tensor) -> Any:
    return sorted_along(at, x, op.axis, op.descending)[0]


@writes(sorting.Argsort)
def argsort(at: Place, op: sorting.Argsort, x: Tensor) -> Any:
    return at.cast(sorted_along(at, x, op.axis, op.descending)[1], op.dtype, "int64")


@writes(sorting.Topk)
def topk(at: Place, op: sorting.Topk, x: Tensor) -> Any:
    values, indices = sorted_along(at, x, op.axis, op.largest, op.k)
    places = at.cast(indices, op.dtype, "int64")
    return {"both": [values, places], "values": values, "indices": places}[op.ret_type]


@writes(arg_reduce.Argmax, arg_reduce.Argmin)
def arg_extreme(at: Place, op: Any, x: Tensor) -> Any:
    kind = "ArgMax" if isinstance(op, arg_reduce.Argmax) else "ArgMin"
    source: Any = at.cast(x, "int32") if x.dtype.is_bool else x
    if op.axis is not None:
        return at.node(kind, source, axis=op.axis, keepdims=int(op.keepdims))
    flat = at.node("Reshape", source, at.ints([-1]))
    found = at.node(kind, flat, axis=0, keepdims=0)
    return at.reshape(found, [1] * x.ndim) if op.keepdims else found


@writes(search.Bucketize)
def bucketize(at: Place, op: search.Bucketize, x: Tensor, edges: Tensor) -> Any:
    """The number of edges that are below."""
    inner = at.unsqueeze(x, [x.ndim])
    above = at.node("Less" if op.right else "LessOrEqual", inner, edges)
    count = at.node("ReduceSum", at.cast(at.node("Not", above), "int64"), at.ints([-1]), keepdims=0)
    return at.cast(count, "int32" if op.out_int32 else "int64", "int64")


@writes(set.Nonzero)
def nonzero(at: Place, op: Any, x: Tensor) -> Any:
    return at.node("NonZero", x if x.ndim else at.unsqueeze(x, [0]))


@writes(set.Unique)
def unique(at: Place, op: set.Unique, x: Tensor) -> Any:
    # Runtimes have no others.
    wide = (
        "int64" if x.dtype in ("bool", "int16", "int32", "uint8", "uint16", "uint32") else x.dtype
    )
    values, first, inverse, counts = at.nodes(
        "Unique", 4, at.cast(x, wide), axis=op.axis, sorted=int(op.sorted)
    )
    values = at.cast(values, x.dtype, wide)
    asked = ((op.return_index, first), (op.return_inverse, inverse), (op.return_counts, counts))
    more = [name for wanted, name in asked if wanted]
    return [values, *more] if more else values


@writes(quantization.OneHot)
def one_hot(at: Place, op: quantization.OneHot, indices: Tensor) -> Any:
    dtype = op.dtype_of_values()
    given = position(at, indices)
    values = np.array([op.off_value, op.on_value]).astype(dtype.numpy)
    if op.depth and indices.ndim and dtype in ("float32", "int64", "int32"):
        # ONNX counts negative indices from the end, and here they are out of range.
        outside = at.node("Less", given, at.number(0, "int64"))
        place = at.node("Where", outside, at.number(op.depth, "int64"), given)
        return at.node(
            "OneHot", place, at.number(op.depth, "int64"), at.array(values), axis=op.axis
        )
    axis = op.axis % (indices.ndim + 1)
    places = np.arange(op.depth).reshape([-1] + [1] * (indices.ndim - axis))
    hit = at.node("Equal", at.unsqueeze(given, [axis]), at.array(places))
    if dtype.is_bool:
        on, off = bool(values[1]), bool(values[0])
        if on == off:
            return at.node("And" if not on else "Or", hit, at.number(on, "bool"))
        return hit if on else at.node("Not", hit)
    return at.node("Where", hit, at.array(values[1]), at.array(values[0]))


@writes(nms.AllClassNonMaxSuppression)
def all_class_nms(at: Place, op: nms.AllClassNonMaxSuppression, *args: Any) -> Any:
    if op.output_format != "onnx":
        raise at.fail(f'with output_format="{op.output_format}"')
    boxes, scores, most, iou, score = args

    def vector(value: Any, dtype: str) -> str:
        tensor = at.writer.tensor(value, dtype)
        return at.node("Reshape", at.cast(tensor, dtype), at.ints([1]))

    kept = at.node(
        "NonMaxSuppression", boxes, scores, vector(most, "int64"), vector(iou, "float32"), vector(score, "float32")
    )  # fmt: skip
    return [kept, at.node("Shape", kept, start=0, end=1)]
