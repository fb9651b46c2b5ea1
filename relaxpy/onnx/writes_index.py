"""Operators that read and write at indices, sort and search.

Indices out of range: relaxpy reads the nearest element, and skips updates; ONNX leaves them to the runtime, which
raises an error. `R.take`, in which a negative index is the first element, is written with its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaxpy.onnx.write_table import writes
from relaxpy.onnx.write_values import Tensor
from relaxpy.onnx.writer import Place
from relaxpy.op import arg_reduce, nms, quantization, search, set, sorting
from relaxpy.op.expert_linear import ExpertLinear
from relaxpy.op.gather import GatherElements, GatherND, IndexTensor, Take
from relaxpy.op.scatter import IndexPut, ScatterElements, ScatterND


def wide(at: Place, indices: Tensor) -> Any:
    """Indices as ONNX takes them."""
    return indices if indices.dtype in ("int32", "int64") else at.cast(indices, "int64")


@writes(Take)
def take(at: Place, op: Take, x: Tensor, indices: Tensor) -> Any:
    axis = (op.axis or 0) % x.ndim
    size = at.dims(x)[axis]
    if size.value == 0:
        raise at.fail("along an axis of size 0")
    given = indices.constant
    found: Any = at.cast(indices, "int64")
    limit = size.value
    if given is not None and limit is not None and np.all((given >= 0) & (given < limit)):
        return at.node("Gather", x, found, axis=axis)
    last = at.scalar(size - 1)
    if op.mode == "wrap":
        return at.node("Gather", x, at.node("Mod", found, at.scalar(size)), axis=axis)
    inside = at.node("Min", at.node("Max", found, at.number(0, "int64")), last)
    rows = at.node("Gather", x, inside, axis=axis)
    if op.mode != "nan":
        return rows
    same = at.node("Equal", found, inside)
    spread = at.unsqueeze(same, range(indices.ndim, indices.ndim + x.ndim - axis - 1))
    return at.node("Where", spread, rows, at.number(np.nan, x.dtype))


@writes(GatherElements)
def gather_elements(at: Place, op: GatherElements, x: Tensor, indices: Tensor) -> Any:
    return at.node("GatherElements", x, wide(at, indices), axis=op.axis)


@writes(GatherND)
def gather_nd(at: Place, op: GatherND, x: Tensor, indices: Tensor) -> Any:
    if at.dims(indices)[-1].value in (0, None):
        raise at.fail(f"with indices of {at.dims(indices)[-1]} numbers")
    return at.node("GatherND", x, at.cast(indices, "int64"), batch_dims=op.batch_dims)


def joined(at: Place, indices: Sequence[Tensor]) -> str:
    """Index tensors, broadcast together, as vectors along a last axis."""
    ndim = max(each.ndim for each in indices)
    total: Any = None
    for each in indices:
        zero = at.node("Mul", at.cast(each, "int64"), at.number(0, "int64"))
        total = zero if total is None else at.node("Add", total, zero)
    parts = [at.node("Add", at.cast(each, "int64"), total) for each in indices]
    return at.node("Concat", *(at.unsqueeze(part, [ndim]) for part in parts), axis=-1)


@writes(IndexTensor)
def index_tensor(at: Place, op: Any, x: Tensor, indices: Sequence[Tensor]) -> Any:
    return at.node("GatherND", x, joined(at, indices))


_REDUCTIONS = {"update": None, "add": "add", "mul": "mul", "min": "min", "max": "max"}


def reduction(at: Place, name: str) -> str | None:
    """ONNX's name of a reduction."""
    if name not in _REDUCTIONS:
        raise at.fail(f'with reduction="{name}", which ONNX does not have')
    return _REDUCTIONS[name]


@writes(ScatterElements)
def scatter_elements(
    at: Place, op: ScatterElements, x: Tensor, indices: Tensor, new: Tensor
) -> Any:
    return at.node(
        "ScatterElements",
        x,
        wide(at, indices),
        new,
        axis=op.axis,
        reduction=reduction(at, op.reduction),
    )


@writes(ScatterND)
def scatter_nd(at: Place, op: ScatterND, x: Tensor, indices: Tensor, new: Tensor) -> Any:
    return at.node(
        "ScatterND", x, at.cast(indices, "int64"), new, reduction=reduction(at, op.reduction)
    )


@writes(IndexPut)
def index_put(at: Place, op: IndexPut, x: Tensor, indices: Sequence[Tensor], new: Tensor) -> Any:
    vectors = joined(at, indices)
    lead = at.node("Shape", vectors, end=-1)
    rest = at.node("Shape", x, start=len(indices))
    values = at.node("Expand", new, at.node("Concat", lead, rest, axis=0))
    return at.node("ScatterND", x, vectors, values, reduction="add" if op.accumulate else None)


@writes(ExpertLinear)
def expert_linear(
    at: Place, op: Any, x: Tensor, weight: Tensor, experts: Tensor, bias: Tensor | None = None
) -> Any:
    last = at.scalar(at.dims(weight)[0] - 1)
    own = at.node("Min", at.node("Max", at.cast(experts, "int64"), at.number(0, "int64")), last)
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
    values, first, inverse, counts = at.nodes("Unique", 4, x, axis=op.axis, sorted=int(op.sorted))
    asked = ((op.return_index, first), (op.return_inverse, inverse), (op.return_counts, counts))
    more = [name for wanted, name in asked if wanted]
    return [values, *more] if more else values


@writes(quantization.OneHot)
def one_hot(at: Place, op: quantization.OneHot, indices: Tensor) -> Any:
    dtype = op.dtype_of_values()
    own = "int32" if dtype.is_bool else dtype
    # ONNX counts negative indices from the end, and here they are out of range.
    given = at.cast(indices, "int64")
    outside = at.node("Less", given, at.number(0, "int64"))
    place = at.node("Where", outside, at.number(op.depth, "int64"), given)
    values = at.array(
        np.array([op.off_value, op.on_value]).astype(
            np.dtype(dtype.numpy if own is dtype else np.int32)
        )
    )
    found = at.node("OneHot", place, at.number(op.depth, "int64"), values, axis=op.axis)
    return at.cast(found, dtype, own)


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
