"""Gathering: reading at indices that a tensor gives. No index, however wrong, reads outside of its tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import PrimType, TensorType, TupleType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr, ShapeExpr
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.op.rule import Cotangent, NoRule, Rule

_LAST = 2**63 - 1


def position(index: Any) -> Any:
    """An element of an index tensor as int64. An unsigned value too large for int64 becomes the largest int64: TVM
    assumes that an unsigned number stays positive under any cast."""
    if te.dtype_of(index) == "uint64":
        index = te.minimum(index, te.literal(_LAST, index))
    return te.cast(index, DType("int64"))


def from_end(index: Any, size: Dim) -> Any:
    """An element of an index tensor as an index from the front: a negative one counts from the end."""
    at = position(index)
    return te.select(at < 0, at + te.dim(size), at)


def nearest(at: Any, size: Dim) -> Any:
    """`at` clamped to the valid indices of an axis."""
    return te.maximum(te.minimum(at, te.dim(size) - 1), te.dim(0))


def unless_empty(sizes: Sequence[Dim], read: Any) -> Any:
    """The element `read`, or 0 if one of the indexed axes has size 0."""
    read = te.element(read)
    for size in sizes:
        if not size.value:
            read = te.if_then_else(te.dim(size) > 0, read, te.literal(0, read))
    return read


def position_numpy(index: np.ndarray) -> np.ndarray:
    """`position` on numpy."""
    fits = np.minimum(index, np.uint64(_LAST)) if index.dtype == np.uint64 else index
    return fits.astype(np.int64)


def from_end_numpy(index: np.ndarray, size: int) -> np.ndarray:
    """`from_end` on numpy."""
    at = position_numpy(index)
    return np.where(at < 0, at + size, at)


def read_numpy(data: np.ndarray, index: Sequence[np.ndarray], axes: int) -> np.ndarray:
    """`data[index]`, where the last `axes` index arrays are the user's and may be out of range."""
    given = len(index) - axes
    lead = np.broadcast_shapes(*(i.shape for i in index))
    if 0 in data.shape[given : given + axes]:
        return np.zeros((*lead, *data.shape[given + axes :]), data.dtype)
    places = list(index[:given])
    for at, size in zip(index[given:], data.shape[given:], strict=False):
        places.append(np.clip(from_end_numpy(at, size), 0, size - 1))
    return data[tuple(places)]


@define_op
class Take(Op):
    """Slices of x at `indices` along `axis`, as `numpy.take`. An index out of range is clamped (modes "fast" and
    "clip", in which a negative index reads the first element), wraps around (mode "wrap"), or gives NaN (mode "nan",
    floats only). Slices of an axis of size 0 are 0, in mode "nan" NaN."""

    name = "take"
    mixed = "follow"
    scalar_args = True
    scalar_dtype = "int64"
    axis: int | None = None
    """Axis of x that is indexed; None is allowed if x has one axis."""
    mode: str = "fast"

    def deduce(self, d: Deduction, x: KnownTensor, indices: KnownTensor) -> TensorType:
        d.need_int(indices, "indices")
        d.require(
            self.mode in ("clip", "fast", "wrap", "nan"),
            f"mode {self.mode!r} is none of fast, clip, wrap, nan",
            arg="mode",
        )
        if self.mode == "nan":
            d.need_float(x, "x")
        if self.axis is None:
            d.require(
                x.ndim == 1,
                f"axis is required for {x.ndim} dimensions",
                code="op-axis",
                arg="axis",
            )
        axis = d.axis(self.axis or 0, x.ndim)
        return TensorType((*x.dims[:axis], *indices.dims, *x.dims[axis + 1 :]), x.dtype)

    def legalize(self, out: KnownTensor, x: te.Tensor, indices: te.Tensor) -> te.Tensor:
        size = te.dims(x)[axis := (self.axis or 0) % len(x.shape)]
        count, extent = len(indices.shape), te.dim(size)

        def element(*i: Any) -> Any:
            at = position(indices(*i[axis : axis + count]))
            place = te.floor_mod(at, extent) if self.mode == "wrap" else nearest(at, size)
            read = te.element(x(*i[:axis], place, *i[axis + count :]))
            if self.mode == "nan":
                inside = te.logical_and(at >= 0, at < extent)
                return te.if_then_else(inside, read, te.literal(float("nan"), read))
            return unless_empty([size], read)

        return te.compute(out.dims, element, "take")

    def reference(self, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        axis = (self.axis or 0) % x.ndim
        at, size = position_numpy(indices), x.shape[axis]
        if size == 0:
            shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
            return np.full(shape, np.nan if self.mode == "nan" else 0, x.dtype)
        place = at % size if self.mode == "wrap" else at  # numpy's own mode wraps around in a loop
        found = np.asarray(np.take(x, place, axis=axis, mode="clip"))
        if self.mode == "nan":
            found[(slice(None),) * axis + ((at < 0) | (at >= size),)] = np.nan
        return found

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        x, indices = args
        if self.mode not in ("fast", "clip", ""):
            return [NoRule(f"take of mode {self.mode!r} has no rule")]
        if isinstance(deduce(indices), PrimType):
            indices = b.scalar_to_tensor(indices, "int64")
        return [b.grad.take_backward(ct, x, indices, self.axis, self.mode)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ids = np.array([[0, 3, 2], [1, -5, 99]], np.int64)
        yield sample(cls(0), rand(4, 5), ids, dims="4 5, n m")
        yield sample(cls(1), rand(2, 4, 3), ids.astype(np.int32), dims="n 4 3, m 3")
        yield sample(cls(-1, mode="wrap"), rand(2, 4), ids, dims="n m, 2 k")
        yield sample(cls(1, mode="nan"), rand(2, 4, 3), ids, dims="n m 3, k 3")
        yield sample(cls(0, mode="clip"), rand(4, 5), ids[1], dims="n 5, 3")
        yield sample(cls(), rand(4), np.array(2, np.int64), dims="n,")
        yield sample(cls(0), rand(0, 3), ids[0], dims="n 3, k")
        yield sample(cls(0, mode="nan"), rand(0, 3), ids[0], dims="n 3, k")
        yield sample(cls(0), rand(4, 3), ids[0, :0], dims="n 3, k")
        yield wrong(cls(0), rand(4, 5), rand(3), code="op-dtype", match="indices must be integers")
        yield wrong(cls(), rand(4, 5), ids, code="op-axis", match="axis is required")
        yield wrong(cls(2), rand(4, 5), ids, code="op-axis", match="2")
        yield wrong(cls(0, mode="nearest"), rand(4, 5), ids, code="op-arguments", match="nearest")
        ints = rand(4, 5, dtype="int32")
        yield wrong(cls(0, mode="nan"), ints, ids, code="op-dtype", match="x must have a float")


@define_op
class GatherElements(Op):
    """Gather elements along `axis`, as `torch.gather`: element i of the result is the element of data at index i, with
    the index along `axis` replaced by indices[i]. The result has the shape of `indices`, which may be smaller than data
    along the other axes. A negative index counts from the end; an index still out of range is clamped, and an axis of
    size 0 gives 0."""

    name = "gather_elements"
    mixed = "follow"
    axis: int = 0

    def deduce(self, d: Deduction, data: KnownTensor, indices: KnownTensor) -> TensorType:
        d.need_int(indices, "indices")
        d.require(
            data.ndim == indices.ndim,
            f"data has {data.ndim} dimensions and indices {indices.ndim}", arg="indices",
            code="op-rank",
        )  # fmt: skip
        axis = d.axis(self.axis, data.ndim)
        for a, (size, taken) in enumerate(zip(data.dims, indices.dims, strict=True)):
            if a != axis:
                message = f"indices has size {taken} along axis {a}, where data has {size}"
                d.ensure(dim_op("le", taken, size), message, arg="indices")
        return TensorType(indices.dims, data.dtype)

    def legalize(self, out: KnownTensor, data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        axis = self.axis % out.ndim
        size = te.dims(data)[axis]

        def element(*i: Any) -> Any:
            place = nearest(from_end(indices(*i), size), size)
            return unless_empty([size], data(*i[:axis], place, *i[axis + 1 :]))

        return te.compute(out.dims, element, "gather_elements")

    def reference(self, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        axis = self.axis % data.ndim
        moved, at = np.moveaxis(data, axis, -1), np.moveaxis(indices, axis, -1)
        found = read_numpy(moved, [*np.indices(at.shape)[:-1], at], 1)
        return np.ascontiguousarray(np.moveaxis(found, -1, axis))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, indices = args
        places = nearest_places(b, indices, b.dims(data)[self.axis % b.rank(data)])
        return [b.scatter_elements(b.zeros_like(data), places, ct, self.axis, "add"), None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ids = np.array([[0, 3, -1, 2], [1, -5, 99, 0]], np.int64)
        yield sample(cls(axis=1), rand(2, 4), ids, dims="n m, n 4")
        yield sample(cls(), rand(5, 4), ids.astype(np.int32), dims="k m, n m")
        yield sample(cls(-2), rand(3, 5, 2), rand(3, 2, 2, dtype="int64"), dims="n 5 2, n k 2")
        yield sample(cls(), rand(3, 6), ids, dims="3 n, 2 m")
        yield sample(cls(), rand(0, 4), ids, dims="n 4, k 4")
        yield wrong(cls(), rand(3), ids, code="op-rank", match="1 dimensions and indices 2")
        yield wrong(cls(), rand(3, 3), ids, code="shape-mismatch", match="size 4 along axis 1")
        yield wrong(cls(2), rand(3, 4), ids, code="op-axis", match="2")
        yield wrong(cls(), rand(3, 4), rand(3, 4), code="op-dtype", match="integers")


@define_op
class GatherND(Op):
    """Gather slices of data: each vector along the last axis of `indices` is an index into data that starts at axis
    `batch_dims`. The axes before `batch_dims` are batch axes of both tensors. A negative index counts from the end; an
    index still out of range is clamped, and an axis of size 0 gives 0."""

    name = "gather_nd"
    mixed = "follow"
    batch_dims: int = 0

    def deduce(self, d: Deduction, data: KnownTensor, indices: KnownTensor) -> TensorType:
        d.need_int(indices, "indices")
        batch = self.batch_dims
        d.require(
            0 <= batch <= data.ndim and batch < indices.ndim,
            f"batch_dims {batch} is out of range for data of {data.ndim} and indices of "
            f"{indices.ndim} dimensions", arg="batch_dims", code="op-axis",
        )  # fmt: skip
        for a in range(batch):
            d.same_dim(data.dims[a], indices.dims[a], f"sizes of axis {a} differ", arg="indices")
        depth = indices.dims[-1].value
        if depth is None:  # the number of indexed axes is unknown
            return TensorType(None, data.dtype)
        d.require(
            batch + depth <= data.ndim,
            f"indices names {depth} axes from axis {batch} on, and data has {data.ndim}",
            arg="indices", code="op-rank",
        )  # fmt: skip
        return TensorType((*indices.dims[:-1], *data.dims[batch + depth :]), data.dtype)

    def legalize(self, out: KnownTensor, data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        batch, lead = self.batch_dims, len(indices.shape) - 1
        sizes = te.dims(data)
        named = sizes[batch : batch + (te.dims(indices)[-1].value or 0)]

        def element(*i: Any) -> Any:
            places = [
                nearest(from_end(indices(*i[:lead], te.dim(k)), size), size)
                for k, size in enumerate(named)
            ]
            return unless_empty(named, data(*i[:batch], *places, *i[lead:]))

        return te.compute(out.dims, element, "gather_nd")

    def reference(self, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
        lead, depth = indices.shape[:-1], indices.shape[-1]
        if self.batch_dims + depth == 0:
            return np.ascontiguousarray(np.broadcast_to(data, lead + data.shape))
        batch = list(np.indices(lead)[: self.batch_dims])
        return read_numpy(data, [*batch, *np.moveaxis(indices, -1, 0)], depth)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, indices = args
        if self.batch_dims:
            return [NoRule("gather_nd with batch_dims has no rule")]
        places = nearest_places(b, indices, sizes_of_vectors(b, data, indices))
        return [b.scatter_nd(b.zeros_like(data), places, ct, "add"), None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        pairs = np.array([[0, 1], [2, -1], [-9, 7]], np.int64)
        yield sample(cls(), rand(3, 4), pairs, dims="n m, k 2")
        yield sample(cls(), rand(3, 4, 2), pairs.astype(np.int32), dims="3 n m, 3 2")
        yield sample(cls(), rand(5, 2), rand(2, 3, 1, dtype="int64"), dims="n 2, k l 1")
        yield sample(cls(batch_dims=1), rand(3, 2, 3), pairs, dims="n 2 3, n 2")
        batched = rand(2, 3, 1, dtype="int64")
        yield sample(cls(batch_dims=2), rand(2, 3, 4, 2), batched, dims="n m 4 2, n m 1")
        yield sample(cls(), rand(0, 4), pairs, dims="n 4, k 2")
        yield sample(cls(), rand(3), pairs[:, :0], dims="n, k 0")
        yield wrong(cls(), rand(3), pairs, code="op-rank", match="names 2 axes")
        yield wrong(cls(1), rand(2, 4, 4), pairs, code="shape-mismatch", match="2 and 3")
        yield wrong(cls(2), rand(3, 2), pairs, code="op-axis", match="batch_dims 2")
        yield wrong(cls(), rand(3, 4), rand(3, 2), code="op-dtype", match="integers")


@define_op
class IndexTensor(Op):
    """Index with tensors, `data[i, j, …]` as in numpy: the index tensors are broadcast together and index the first
    axes of data; the other axes follow. A negative index counts from the end; an index still out of range is clamped,
    and an axis of size 0 gives 0."""

    name = "index_tensor"
    mixed = "follow"

    def deduce(self, d: Deduction, data: KnownTensor, indices: TupleType) -> TensorType:
        named = index_tensors(d, data, indices)
        lead = d.broadcast(*(index.dims for index in named))
        rest = data.dims[len(named) :]
        if lead is None:
            ndim = max(index.ndim for index in named)
            return TensorType(None, data.dtype, ndim + len(rest))
        return TensorType((*lead, *rest), data.dtype)

    def legalize(
        self, out: KnownTensor, data: te.Tensor, indices: Sequence[te.Tensor]
    ) -> te.Tensor:
        named = te.dims(data)[: len(indices)]
        lead = out.ndim - len(data.shape) + len(named)
        shape = out.dims[:lead]

        def element(*i: Any) -> Any:
            read = [te.broadcast(index, shape, i[:lead]) for index in indices]
            places = [
                nearest(from_end(at, size), size) for at, size in zip(read, named, strict=True)
            ]
            return unless_empty(named, data(*places, *i[lead:]))

        return te.compute(out.dims, element, "index_tensor")

    def reference(self, data: np.ndarray, indices: Sequence[np.ndarray]) -> np.ndarray:
        return read_numpy(data, indices, len(indices))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, indices = args
        places = [
            nearest_places(b, each, n) for each, n in zip(indices, b.dims(data), strict=False)
        ]
        return [b.index_put(b.zeros_like(data), places, ct, accumulate=True), None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rows, columns = np.array([[0], [-1], [9]], np.int64), np.array([3, -9], np.int64)
        yield sample(cls(), rand(3, 4), (rows, columns), dims="n m, k 1, l")
        yield sample(cls(), rand(3, 4, 2), (rows,), dims="n m 2, k 1")
        yield sample(cls(), rand(3, 4), (rows[:2, 0].astype(np.int32), columns), dims="n m, k, k")
        yield sample(cls(), rand(3, 4), (columns, columns), dims="n m, k, l")
        yield sample(cls(), rand(3, 4), (np.array(1, np.int64), columns), dims="3 4,, k")
        yield sample(cls(), rand(0, 4), (columns,), dims="n 4, k")
        yield wrong(cls(), rand(3), (rows, columns), code="op-rank", match="2 index tensors")
        yield wrong(cls(), rand(3), (), code="op-arguments", match="no index")
        yield wrong(cls(), rand(3, 4), (rows, rand(3)), code="op-dtype", match="integers")
        yield wrong(
            cls(), rand(3, 4), (rows[:, 0], columns), code="shape-mismatch", match="3 and 2"
        )


def index_tensors(d: Deduction, data: KnownTensor, indices: TupleType) -> list[KnownTensor]:
    """The index tensors for the first axes of `data`, after checking their number and dtypes."""
    named = [index for index in indices.fields if isinstance(index, KnownTensor)]
    d.require(len(named) == len(indices.fields), "indices must all be tensors", arg="indices")
    d.require(bool(named), "there is no index tensor", arg="indices")
    for index in named:
        d.need_int(index, "indices")
    d.require(
        len(named) <= data.ndim,
        f"{len(named)} index tensors cannot index {data.ndim} dimensions", arg="indices",
        code="op-rank",
    )  # fmt: skip
    return named


# Rules of differentiation


def nearest_places(b: Rule, indices: Expr, size: Dim | Expr) -> Expr:
    """The indices that are read, from the front: one out of range is clamped."""
    indices = b.astype(indices, "int64")
    front = b.where(b.less(indices, 0), b.add(indices, size), indices)
    return b.maximum(
        b.minimum(front, b.subtract(size, 1) if isinstance(size, Expr) else size - 1), 0
    )


def sizes_of_vectors(b: Rule, data: Expr, indices: Expr) -> Expr:
    """The size of data's axis for each element of the vectors along the last axis of `indices`."""
    count = b.dims(indices)[-1].value or 0
    return b.shape_to_tensor(ShapeExpr(b.dims(data)[:count]))
