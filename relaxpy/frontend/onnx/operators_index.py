"""Reading and writing at indices, sorting, searching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relaxpy import op
from relaxpy.frontend.onnx.importer import Site
from relaxpy.frontend.onnx.operators_elementwise import constant
from relaxpy.frontend.onnx.table import operator
from relaxpy.frontend.site import check
from relaxpy.ir import Dim, Expr, SymVar, TensorType, TupleGetItem
from relaxpy.ir.dim import dim_op, product


def _check_indices(at: Site, found: Any, sizes: Sequence[Dim]) -> None:
    """Refuse indices, if they are known, outside of axes of these sizes. UsageError (`onnx-file`)."""
    if found is None or found.dtype == object or not found.size:
        return
    columns = found.reshape(-1, len(sizes))
    for size, column in zip(sizes, columns.T, strict=True):
        if (
            size.value is not None
            and not -size.value <= int(column.min()) <= int(column.max()) < size.value
        ):
            raise at.fail(
                "onnx-file", f"{at.node.title}: an index is outside of an axis of size {size}"
            )


def wrapped(at: Site, indices: Expr, size: Dim) -> Any:
    """Indices of which negative ones count from the end."""
    found = at.known(indices)
    _check_indices(at, found, [size])
    if found is not None and found.dtype != object and found.size and (found >= 0).all():
        return indices
    if at.dtype_of(indices).is_int and not at.dtype_of(indices).is_signed:
        return indices
    whole = at.number(size, at.dtype_of(indices))
    return at.emit(
        op.where(
            op.less(indices, constant(0, at.dtype_of(indices))), op.add(indices, whole), indices
        )
    )


@operator("Gather")
def gather(at: Site, x: Expr, indices: Expr, axis: int = 0, **_: Any) -> Any:
    axis = at.axis(axis, at.ndim(x))
    return op.take(x, wrapped(at, indices, at.shape_of(x)[axis]), axis=axis)


@operator("GatherElements")
def gather_elements(at: Site, x: Expr, indices: Expr, axis: int = 0, **_: Any) -> Any:
    axis = at.axis(axis, at.ndim(x))
    return op.gather_elements(x, wrapped(at, indices, at.shape_of(x)[axis]), axis=axis)


def _wrapped_rows(at: Site, indices: Expr, sizes: list[Dim]) -> Any:
    """Rows of indices of several axes of these sizes."""
    found = at.known(indices)
    _check_indices(at, found, sizes)
    if found is not None and found.dtype != object and found.size and (found >= 0).all():
        return indices
    whole = at.cast(at.sizes_tensor(sizes), at.dtype_of(indices))
    zero = constant(0, at.dtype_of(indices))
    return at.emit(op.where(op.less(indices, zero), op.add(indices, whole), indices))


@operator("GatherND")
def gather_nd(at: Site, x: Expr, indices: Expr, batch_dims: int = 0, **_: Any) -> Any:
    count = at.shape_of(indices)[-1].value
    if count is None:
        raise at.fail(
            "onnx-operator", "GatherND with a number of indices that is known only when it runs"
        )
    sizes = at.shape_of(x)[batch_dims : batch_dims + count]
    return op.gather_nd(x, _wrapped_rows(at, indices, sizes), batch_dims=batch_dims)


_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@operator("ScatterElements", "Scatter")
def scatter_elements(
    at: Site,
    x: Expr,
    indices: Expr,
    updates: Expr,
    axis: int = 0,
    reduction: str = "none",
    **_: Any,
) -> Any:
    axis = at.axis(axis, at.ndim(x))
    places = wrapped(at, indices, at.shape_of(x)[axis])
    return op.scatter_elements(x, places, updates, axis=axis, reduction=_REDUCTIONS[reduction])


@operator("ScatterND")
def scatter_nd(
    at: Site, x: Expr, indices: Expr, updates: Expr, reduction: str = "none", **_: Any
) -> Any:
    count = at.shape_of(indices)[-1].value
    if count is None:
        raise at.fail(
            "onnx-operator", "ScatterND with a number of indices that is known only when it runs"
        )
    places = _wrapped_rows(at, indices, at.shape_of(x)[:count])
    return op.scatter_nd(x, places, updates, reduction=_REDUCTIONS[reduction])


@operator("TensorScatter")
def tensor_scatter(
    at: Site,
    past: Expr,
    update: Expr,
    starts: Any = None,
    axis: int = -2,
    mode: str = "linear",
    **_: Any,
) -> Any:
    """Rows of an update along an axis, from a start of each batch on."""
    axis = at.axis(axis, at.ndim(past))
    dims, new = at.shape_of(past), at.shape_of(update)
    rank = len(dims)
    if starts is None:
        starts = at.emit(op.zeros([dims[0]], "int64"))
    starts = at.emit(op.reshape(at.cast(starts, "int64"), [dims[0], 1]))
    steps = at.emit(op.arange(0, new[axis], 1, dtype="int64"))
    places = at.emit(op.add(starts, steps))
    if mode == "circular":
        places = at.emit(op.floor_mod(places, at.number(dims[axis], "int64")))
    column = [dims[0] if a == 0 else new[axis] if a == axis else Dim.of(1) for a in range(rank)]
    places = at.emit(op.broadcast_to(at.emit(op.reshape(places, column)), new))
    return op.scatter_elements(past, places, update, axis=axis)


@operator("OneHot")
def one_hot(at: Site, indices: Expr, depth: Expr, values: Expr, axis: int = -1, **_: Any) -> Any:
    (count,) = at.ints(depth, "the depth")
    rank = at.ndim(indices)
    axis = at.axis(axis, rank + 1)
    whole = at.number(count, "int64")
    places = at.cast(indices, "int64")
    places = at.emit(op.where(op.less(places, constant(0, "int64")), op.add(places, whole), places))
    places = at.emit(op.expand_dims(places, [axis]))
    row = at.emit(op.arange(0, count, 1, dtype="int64"))
    row = at.emit(op.reshape(row, [count if a == axis else Dim.of(1) for a in range(rank + 1)]))
    off, on = (at.emit(op.reshape(op.strided_slice(values, [0], [i], [i + 1]), ())) for i in (0, 1))
    return op.where(op.equal(places, row), on, off)


@operator("TopK")
def top_k_v1(
    at: Site, x: Expr, count: Any = None, k: int = 0, axis: int = -1, largest: int = 1, **_: Any
) -> Any:
    """Equal elements are in the order of their indices."""
    axis = at.axis(axis, at.ndim(x))
    (wanted,) = [Dim.of(k)] if count is None else at.ints(count, "k")
    check(
        at.builder, dim_op("and", dim_op("le", 0, wanted), dim_op("le", wanted, at.shape_of(x)[axis])),
        "TopK takes no more elements than there are", None, "onnx-shape", at.span,
    )  # fmt: skip
    order = at.emit(op.argsort(x, axis=axis, descending=bool(largest), dtype="int64"))
    order = at.emit(op.strided_slice(order, [axis], [0], [wanted]))
    return [op.gather_elements(x, order, axis=axis), order]


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(
        at: Site, x: Expr, axis: int = 0, keepdims: int = 1, select_last_index: int = 0, **_: Any
    ) -> Any:
        axis = at.axis(axis, at.ndim(x))
        x = at.cast(x, "int8") if at.dtype_of(x).is_bool else x
        if not select_last_index:
            return at.cast(at.emit(function(x, axis=axis, keepdims=bool(keepdims))), "int64")
        found = at.emit(
            function(at.emit(op.flip(x, axis=axis)), axis=axis, keepdims=bool(keepdims))
        )
        last = at.number(at.shape_of(x)[axis] - 1, "int64")
        return op.subtract(last, at.cast(found, "int64"))

    return rule


operator("ArgMax")(_extreme(op.argmax))
operator("ArgMin")(_extreme(op.argmin))


@operator("NonZero")
def non_zero(at: Site, x: Expr, **_: Any) -> Any:
    found = at.emit(op.nonzero(at.emit(op.expand_dims(x, 0)) if not at.ndim(x) else x))
    count = SymVar(at.importer.taken.fresh("count")).dim
    return at.match(found, TensorType((max(1, at.ndim(x)), count), "int64"))


@operator("Compress")
def compress(at: Site, x: Expr, condition: Expr, axis: int | None = None, **_: Any) -> Any:
    if axis is None:
        x, axis = at.emit(op.reshape(x, [product(tuple(at.shape_of(x)))])), 0
    axis = at.axis(axis, at.ndim(x))
    found = at.emit(op.nonzero(condition))
    places = at.emit(op.reshape(found, [at.shape_of(found)[1]]))
    return op.take(x, places, axis=axis)


@operator("Unique")
def unique(at: Site, x: Expr, axis: int | None = None, sorted: int = 1, **_: Any) -> Any:
    found = at.emit(
        op.unique(
            x,
            sorted=bool(sorted),
            return_index=True,
            return_inverse=True,
            return_counts=True,
            axis=axis,
        )
    )
    values, *others = (at.emit(TupleGetItem(found, i)) for i in range(4))
    return [values, *(at.cast(each, "int64") for each in others)]


@operator("ReverseSequence")
def reverse_sequence(
    at: Site, x: Expr, lengths: Expr, batch_axis: int = 1, time_axis: int = 0, **_: Any
) -> Any:
    return op.reverse_sequence(
        x, at.cast(lengths, "int64"), seq_axis=time_axis, batch_axis=batch_axis
    )


@operator("NonMaxSuppression")
def non_max_suppression(
    at: Site, boxes: Expr, scores: Expr, most: Any = None, iou: Any = None, score: Any = None,
    center_point_box: int = 0, **_: Any,
) -> Any:  # fmt: skip
    if center_point_box:
        x, y, w, h = (at.emit(op.strided_slice(boxes, [2], [i], [i + 1])) for i in range(4))
        half = constant(0.5, at.dtype_of(boxes))
        dx, dy = at.emit(op.multiply(w, half)), at.emit(op.multiply(h, half))
        corners = [op.subtract(y, dy), op.subtract(x, dx), op.add(y, dy), op.add(x, dx)]
        boxes = at.emit(op.concat([at.emit(c) for c in corners], axis=2))
    limit = constant(0, "int64") if most is None else at.emit(op.reshape(most, ()))
    overlap = constant(0, "float32") if iou is None else at.emit(op.reshape(iou, ()))
    least = constant(-np.inf, "float32") if score is None else at.emit(op.reshape(score, ()))
    # ONNX drops boxes above the threshold, the operator those at it, too.
    overlap = at.emit(op.nextafter(overlap, constant(np.inf, "float32")))
    found = at.emit(op.vision.all_class_non_max_suppression(boxes, scores, limit, overlap, least))
    rows, count = (at.emit(TupleGetItem(found, i)) for i in (0, 1))
    return op.strided_slice(rows, [0], [0], at.ints(count, "the number of boxes"))
