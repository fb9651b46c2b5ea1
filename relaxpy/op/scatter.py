"""Scattering: writing at indices that a tensor gives. Updates are applied in row-major order, so indices that occur
more than once have a defined result. An index out of range is skipped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import Dim, dim_op, product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Constant, Expr, PrimValue
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.gather import from_end, from_end_numpy, index_tensors, sizes_of_vectors
from relaxpy.op.rule import Cotangent, NoRule, Rule

REDUCTIONS = ("update", "add", "mul", "min", "max", "mean")
"""The ways to combine an element with an update."""


def wide_dtype(dtype: str, reduction: str) -> DType:
    """The accumulation dtype: float32 for sums and products of narrower floats, 64 bits for means of integers."""
    kind = DType(dtype)
    if reduction in ("update", "min", "max"):
        return kind
    if kind.is_int and reduction == "mean":
        return DType("int64" if kind.is_signed else "uint64")
    return DType("float32") if kind.is_narrow else kind


def check_reduction(d: Deduction, data: KnownTensor, reduction: str) -> None:
    """Refuse an unknown reduction, or one that is not defined on bools."""
    d.require(
        reduction in REDUCTIONS,
        f"reduction {reduction!r} is none of {', '.join(REDUCTIONS)}", arg="reduction",
    )  # fmt: skip
    d.require(
        reduction == "update" or data.dtype != "bool",
        f"data must be numbers for reduction {reduction!r}, got bool", arg="data", code="op-dtype",
    )  # fmt: skip


@dataclass(frozen=True)
class Updates:
    """The updates, for the tensor program."""

    shape: Sequence[Any]
    """The extents of the loops over the updates."""
    inputs: Sequence[te.Tensor]
    """The tensors that indices and values are read from."""
    read: Callable[..., tuple[list[Any], Any]]
    """`read(p, buffers, index)`: the index in data, and the value, of update number `index`."""


def in_its_dtype(out: Any, reduction: str) -> bool:
    """Is the reduction computed in the dtype of its result, without further tensors?"""
    return reduction != "mean" and wide_dtype(out.dtype, reduction) == out.dtype


def scattered(
    out: KnownTensor, data: te.Tensor | None, updates: Updates, reduction: str, name: str
) -> te.Tensor:
    """The tensor program: a copy of `data`, to which the updates are applied in order; None: the result is data."""
    wide, sizes = wide_dtype(out.dtype, reduction), out.dims if data is None else te.dims(data)
    outputs = [(out.dims, wide)] + ([(out.dims, DType("int64"))] if reduction == "mean" else [])

    def fill(p: Any, *buffers: Any) -> None:
        result, *counts = buffers[: len(outputs)]
        others = buffers[len(outputs) :]
        if data is not None:
            source, *others = others
            with p.loops(result.shape) as at:
                p.write(result, *at, value=te.cast(p.read(source, *at), wide))
                for count in counts:
                    p.write(count, *at, value=te.dim(1))
        with p.loops([te.dim(size) for size in updates.shape], "u") as index:
            named, value = updates.read(p, others, index)
            place = [p.let(f"at{a}", at) for a, at in enumerate(named)]
            inside = [
                te.logical_and(at >= 0, at < te.dim(s)) for at, s in zip(place, sizes, strict=True)
            ]
            with p.when(reduce(te.logical_and, inside, te.const(True, "bool"))):
                met = combined(p.read(result, *place), te.cast(value, wide), reduction)
                p.write(result, *place, value=met)
                for count in counts:
                    p.write(count, *place, value=p.read(count, *place) + 1)

    given = updates.inputs if data is None else [data, *updates.inputs]
    results = te.serial(outputs, given, fill, name)

    def finished(*i: Any) -> Any:
        total = te.element(results[0](*i))
        if reduction == "mean":
            count = te.cast(results[1](*i), wide)
            total = total / count if wide.is_float else te.floor_divide(total, count)
        return te.cast(total, out.dtype)

    if in_its_dtype(out, reduction):
        return results[0]
    return te.compute(out.dims, finished, "narrowed")


def combined(old: Any, new: Any, reduction: str) -> Any:
    """An element combined with an update (for a mean: their sum)."""
    match reduction:
        case "update":
            return new
        case "mul":
            return old * new
        case "min":
            return te.minimum(old, new)
        case "max":
            return te.maximum(old, new)
        case _:
            return old + new


def scatter_numpy(
    data: np.ndarray, places: Sequence[np.ndarray], updates: np.ndarray, reduction: str
) -> np.ndarray:
    """The same on numpy: `places` has an index array for each axis of data, of the shape of `updates`."""
    wide = wide_dtype(DType(data.dtype), reduction)
    found, count = data.astype(wide.numpy), np.ones(data.shape, np.int64)
    combine: dict[str, Any] = {
        "update": lambda _, new: new, "add": np.add, "mul": np.multiply, "mean": np.add,
        "min": np.minimum, "max": np.maximum,
    }  # fmt: skip
    for index in np.ndindex(updates.shape):
        at = tuple(int(place[index]) for place in places)
        if all(0 <= p < size for p, size in zip(at, data.shape, strict=True)):
            found[at] = combine[reduction](found[at], updates[index].astype(wide.numpy))
            count[at] += 1
    if reduction == "mean":
        found = (
            found / count.astype(wide.numpy) if wide.is_float else found // count.astype(wide.numpy)
        )
    return found.astype(data.dtype)


@define_op
class ScatterElements(Op):
    """Scatter elements along `axis` (ONNX's ScatterElements). The result is a copy of data; each element of `updates`
    is combined with the element at its own index, with the index along `axis` replaced by `indices`. The reduction
    "update" replaces; "add", "mul", "min" and "max" combine; "mean" is the mean of the old element and its updates, for
    integers rounded down. Updates are applied in row-major order: of several replacements the last wins. A negative
    index counts from the end; an index still out of range is skipped."""

    name = "scatter_elements"
    of_data = True
    axis: int = 0
    reduction: str = "update"

    def deduce(
        self, d: Deduction, data: KnownTensor, indices: KnownTensor, updates: KnownTensor
    ) -> TensorType:
        check_reduction(d, data, self.reduction)
        d.need_int(indices, "indices")
        d.same_dtype(data, updates)
        axis = d.axis(self.axis, data.ndim)
        for name, other in (("indices", indices), ("updates", updates)):
            d.require(
                other.ndim == data.ndim,
                f"data has {data.ndim} dimensions and {name} {other.ndim}", arg=name, code="op-rank",
            )  # fmt: skip
        for a, size in enumerate(data.dims):
            count = indices.dims[a]
            message = f"sizes of axis {a} of indices and of updates differ"
            d.same_dim(count, updates.dims[a], message, arg="updates")
            if a != axis:
                message = f"indices has size {count} along axis {a}, where data has {size}"
                d.ensure(dim_op("le", count, size), message, arg="indices")
        return TensorType(data.shape, data.dtype)

    def legalize(
        self, out: KnownTensor, data: te.Tensor, indices: te.Tensor, updates: te.Tensor
    ) -> te.Tensor:
        axis = self.axis % out.ndim
        size = te.dims(data)[axis]

        def read(p: Any, buffers: Any, i: list[Any]) -> tuple[list[Any], Any]:
            places, values = buffers
            at = from_end(p.read(places, *i), size)
            return [*i[:axis], at, *i[axis + 1 :]], p.read(values, *i)

        made = Updates(te.dims(updates), [indices, updates], read)
        return scattered(out, data, made, self.reduction, "scatter_elements")

    def reference(self, data: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        places: list[Any] = list(np.indices(indices.shape))
        axis = self.axis % data.ndim
        places[axis] = from_end_numpy(indices, data.shape[axis])
        return scatter_numpy(data, places, updates, self.reduction)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        _, indices, updates = args
        if self.reduction not in ("update", "add"):
            return [NoRule(f"scatter_elements with reduction {self.reduction!r} has no rule")] * 3
        kept = ct
        if self.reduction == "update":
            kept = b.scatter_elements(ct, indices, b.zeros_like(updates), self.axis)
            mine = last_written(
                b, ct, updates,
                lambda data, numbers: b.scatter_elements(data, indices, numbers, self.axis),
                lambda data: b.gather_elements(data, indices, self.axis),
            )  # fmt: skip
        else:
            mine = in_range(b, indices, b.dims(ct)[self.axis % b.rank(ct)])
        return [kept, None, b.where(mine, b.gather_elements(ct, indices, self.axis), 0.0)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ids = np.array([[0, 3, -1, 0], [1, -5, 99, 1]], np.int64)
        for reduction in REDUCTIONS:
            yield sample(
                cls(1, reduction), rand(2, 5), ids, rand(2, 4), dims="n m, n 4, n 4", atol=1e-5
            )
        yield sample(cls(), rand(5, 4), ids.astype(np.int32), rand(2, 4), dims="k m, n m, n m")
        yield sample(cls(-2, "add"), rand(3, 6), ids, rand(2, 4), dims="3 n, 2 m, 2 m")
        h = rand(3, 4, dtype="float16"), ids, rand(2, 4, dtype="float16")
        yield sample(cls(0, "add"), *h, dims="n 4, m 4, m 4", rtol=2e-3)
        ints = rand(3, 4, dtype="int32", high=99), ids, rand(2, 4, dtype="int32", high=99)
        yield sample(cls(0, "mean"), *ints, dims="n 4, m 4, m 4")
        yield sample(cls(0, "add"), rand(0, 4), ids, rand(2, 4), dims="n 4, m 4, m 4")
        yield wrong(cls(), rand(3), ids, rand(2, 4), code="op-rank", match="data has 1")
        yield wrong(cls(), rand(3, 4), ids, rand(2, 3), code="shape-mismatch", match="4 and 3")
        yield wrong(
            cls(), rand(3, 3), ids, rand(2, 4), code="shape-mismatch", match="size 4 along axis 1"
        )
        yield wrong(cls(), rand(3, 4), ids, ids, code="op-dtype", match="int64")
        yield wrong(cls(0, "sub"), rand(3, 4), ids, rand(2, 4), code="op-arguments", match="sub")
        bools = rand(2, 4, dtype="bool")
        yield wrong(cls(0, "add"), bools, ids, bools, code="op-dtype", match="bool")


@define_op
class ScatterND(Op):
    """Scatter slices (ONNX's ScatterND). The result is a copy of data; each vector along the last axis of `indices` is
    the index of a slice, which is combined with the corresponding slice of `updates`. The reduction "update" replaces;
    "add", "mul", "min" and "max" combine; "mean" is the mean of the old element and its updates, for integers rounded
    down. Updates are applied in row-major order: of several replacements the last wins. A negative index counts from
    the end; an index still out of range is skipped."""

    name = "scatter_nd"
    reduction: str = "update"

    def deduce(
        self, d: Deduction, data: KnownTensor, indices: KnownTensor, updates: KnownTensor
    ) -> TensorType:
        check_reduction(d, data, self.reduction)
        d.need_int(indices, "indices")
        d.same_dtype(data, updates)
        d.require(indices.ndim > 0, "indices has no dimensions", arg="indices", code="op-rank")
        depth = indices.dims[-1].value
        if depth is None:
            d.require(
                not d.exact, f"the last dimension of indices must be a constant, got {indices.dims[-1]}",
                arg="indices", code="op-rank",
            )  # fmt: skip
            return TensorType(data.shape, data.dtype)
        d.require(
            depth <= data.ndim, f"indices has {depth} axes, but data has {data.ndim}",
            arg="indices", code="op-rank",
        )  # fmt: skip
        wanted = (*indices.dims[:-1], *data.dims[depth:])
        d.require(
            updates.ndim == len(wanted),
            f"updates must have {len(wanted)} dimensions, got {updates.ndim}", arg="updates",
            code="op-rank",
        )  # fmt: skip
        for a, (size, given) in enumerate(zip(wanted, updates.dims, strict=True)):
            d.same_dim(size, given, f"the size of axis {a} of updates differs", arg="updates")
        return TensorType(data.shape, data.dtype)

    def legalize(
        self, out: KnownTensor, data: te.Tensor, indices: te.Tensor, updates: te.Tensor
    ) -> te.Tensor:
        lead = len(indices.shape) - 1
        named = te.dims(data)[: te.dims(indices)[-1].value or 0]

        def read(p: Any, buffers: Any, i: list[Any]) -> tuple[list[Any], Any]:
            places, values = buffers
            at = [from_end(p.read(places, *i[:lead], k), size) for k, size in enumerate(named)]
            return [*at, *i[lead:]], p.read(values, *i)

        made = Updates(te.dims(updates), [indices, updates], read)
        return scattered(out, data, made, self.reduction, "scatter_nd")

    def reference(self, data: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        lead, depth = indices.ndim - 1, indices.shape[-1]
        grid = np.indices(updates.shape)
        vectors = indices[tuple(grid[:lead])]
        named = [
            np.broadcast_to(from_end_numpy(vectors[..., k], data.shape[k]), updates.shape)
            for k in range(depth)
        ]
        return scatter_numpy(data, [*named, *grid[lead:]], updates, self.reduction)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        _, indices, updates = args
        if self.reduction not in ("update", "add"):
            return [NoRule(f"scatter_nd with reduction {self.reduction!r} has no rule")] * 3
        kept = ct
        if self.reduction == "update":
            kept = b.scatter_nd(ct, indices, b.zeros_like(updates))
            mine = last_written(
                b, ct, updates,
                lambda data, numbers: b.scatter_nd(data, indices, numbers),
                lambda data: b.gather_nd(data, indices),
            )  # fmt: skip
        else:
            mine = b.all(in_range(b, indices, sizes_of_vectors(b, ct, indices)), -1)
            mine = beside(b, mine, b.rank(updates))
        return [kept, None, b.where(mine, b.gather_nd(ct, indices), 0.0)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        pairs = np.array([[0, 1], [2, -1], [-9, 7], [0, 1]], np.int64)
        for reduction in REDUCTIONS:
            yield sample(cls(reduction), rand(3, 4), pairs, rand(4), dims="n m, k 2, k", atol=1e-5)
        rows = np.array([[1], [-1], [1]], np.int32)
        yield sample(cls("add"), rand(4, 2), rows, rand(3, 2), dims="n m, k 1, k m")
        grid = rand(2, 3, 1, dtype="int64")
        yield sample(cls(), rand(5, 2), grid, rand(2, 3, 2), dims="n 2, k l 1, k l 2")
        yield sample(cls("mul"), rand(3), rows[:2, :0], rand(2, 3), dims="n, k 0, k n")
        yield sample(cls(), rand(0, 4), pairs, rand(4), dims="n 4, k 2, k")
        yield sample(cls(), rand(4, 2), rows[1], rand(2), dims="n m, 1, m")
        yield wrong(cls(), rand(3), pairs, rand(4), code="op-rank", match="indices has 2 axes")
        yield wrong(cls(), rand(3, 4), pairs, rand(3), code="shape-mismatch", match="4 and 3")
        yield wrong(
            cls(), rand(3, 4), pairs, rand(4, 2), code="op-rank", match="1 dimensions, got 2"
        )
        yield wrong(cls("max"), rand(3, 4), pairs, pairs[0], code="op-dtype", match="int64")
        yield wrong(cls("sub"), rand(3, 4), pairs, rand(4), code="op-arguments", match="sub")


@define_op
class IndexPut(Op):
    """A copy of data after `data[i, j, …] = values` (with `accumulate`: `+=`, once for each update). The index tensors
    are broadcast together; values are broadcast to them and to the axes of data that are not indexed. Updates are
    applied in row-major order: of several replacements the last wins. A negative index counts from the end; an index
    still out of range is skipped."""

    name = "index_put"
    of_data = True
    accumulate: bool = False

    def deduce(
        self, d: Deduction, data: KnownTensor, indices: TupleType, values: KnownTensor
    ) -> TensorType:
        check_reduction(d, data, self._reduction)
        named = index_tensors(d, data, indices)
        d.same_dtype(data, values)
        lead = d.broadcast(*(index.dims for index in named))
        rank = max(index.ndim for index in named) + data.ndim - len(named)
        d.require(
            values.ndim <= rank,
            f"values of {values.ndim} dimensions cannot be broadcast to {rank}", arg="values",
            code="op-rank",
        )  # fmt: skip
        if lead is not None:
            wanted = (*lead, *data.dims[len(named) :])
            for given, size in zip(values.dims, wanted[rank - values.ndim :], strict=True):
                fits = dim_op("or", dim_op("eq", given, size), dim_op("eq", given, 1))
                d.ensure(fits, f"values: {given} cannot be broadcast to {size}", arg="values")
        return TensorType(data.shape, data.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return args[0] if isinstance(args[0], TensorType) else TensorType()

    @property
    def _reduction(self) -> str:
        return "add" if self.accumulate else "update"

    def legalize(
        self, out: KnownTensor, data: te.Tensor, indices: Sequence[te.Tensor], values: te.Tensor
    ) -> te.Tensor:
        sizes, shapes = te.dims(data), [te.dims(index) for index in indices]
        lead = reduce(_broadcast, shapes)
        shape = (*lead, *sizes[len(indices) :])

        def read(p: Any, buffers: Any, i: list[Any]) -> tuple[list[Any], Any]:
            *given, source = buffers
            first = i[: len(lead)]
            named = [
                from_end(p.read(index, *te.broadcast_index(dims, lead, first)), size)
                for index, dims, size in zip(given, shapes, sizes, strict=False)
            ]
            value = p.read(source, *te.broadcast_index(te.dims(values), shape, i))
            return [*named, *i[len(lead) :]], value

        made = Updates(shape, [*indices, values], read)
        return scattered(out, data, made, self._reduction, "index_put")

    def reference(
        self, data: np.ndarray, indices: Sequence[np.ndarray], values: np.ndarray
    ) -> np.ndarray:
        lead = np.broadcast_shapes(*(index.shape for index in indices))
        grid = np.indices((*lead, *data.shape[len(indices) :]))
        at = tuple(grid[: len(lead)])
        named = [
            from_end_numpy(np.broadcast_to(index, lead)[at], size)
            for index, size in zip(indices, data.shape, strict=False)
        ]
        updates = np.broadcast_to(values, grid.shape[1:])
        return scatter_numpy(data, [*named, *grid[len(lead) :]], updates, self._reduction)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        _, indices, values = args
        taken = b.index_tensor(ct, indices)
        if self.accumulate:
            kept = ct
            near = (in_range(b, each, n) for each, n in zip(indices, b.dims(ct), strict=False))
            mine = beside(b, functools.reduce(b.logical_and, near), b.rank(taken))
        else:
            kept = b.index_put(ct, indices, b.zeros_like(values))
            mine = last_written(
                b, ct, taken,
                lambda data, numbers: b.index_put(data, indices, numbers),
                lambda data: b.index_tensor(data, indices),
            )  # fmt: skip
        return [kept, None, b.sum_to(b.where(mine, taken, 0.0), values)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rows, columns = np.array([[0], [-1], [9]], np.int64), np.array([3, -9], np.int64)
        both = rows, columns
        yield sample(cls(), rand(3, 4), both, rand(3, 2), dims="n m, k 1, l, k l")
        yield sample(cls(True), rand(3, 4), both, rand(2), dims="n m, k 1, l, l")
        again = np.array([1, 1, 0], np.int32)
        yield sample(cls(True), rand(3, 4), (again,), rand(3, 4), dims="n m, k, k m")
        yield sample(cls(), rand(3, 4), (again,), rand(3, 4), dims="n m, k, k m")
        yield sample(cls(), rand(3, 4), (again, again), rand(), dims="n m, k, l,")
        yield sample(cls(True), rand(0, 4), (again,), rand(4), dims="n 4, k, 4")
        h = rand(3, dtype="float16"), (again,), rand(3, dtype="float16")
        yield sample(cls(True), *h, dims="n, k, k", rtol=2e-3)
        yield wrong(cls(), rand(3), both, rand(), code="op-rank", match="2 index tensors")
        yield wrong(cls(), rand(3, 4), both, rand(3), code="shape-mismatch", match="3 cannot")
        yield wrong(cls(), rand(3, 4), both, rand(1, 3, 2), code="op-rank", match="values of 3")
        yield wrong(cls(), rand(3, 4), (rand(2),), rand(), code="op-dtype", match="integers")
        yield wrong(cls(), rand(3, 4), (rows,), rows, code="op-dtype", match="int64")


def _broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """The broadcast of two shapes; which dimension wins may be known only at run time."""
    ndim = max(len(a), len(b))
    pairs = zip(
        (Dim.of(1),) * (ndim - len(a)) + tuple(a),
        (Dim.of(1),) * (ndim - len(b)) + tuple(b),
        strict=True,
    )
    return tuple(dim_op("select", dim_op("eq", x, 1), y, x) for x, y in pairs)


# Rules of differentiation


def in_range(b: Rule, indices: Expr, size: Dim | Expr) -> Expr:
    """Which indices are in range of an axis of this size: the updates at others are skipped."""
    indices = b.astype(indices, "int64")
    front = b.where(b.less(indices, 0), b.add(indices, size), indices)
    return b.logical_and(b.greater_equal(front, 0), b.less(front, size))


def beside(b: Rule, mask: Expr, rank: int) -> Expr:
    """A mask with axes of size 1 behind, up to a rank."""
    return b.reshape(mask, (*b.dims(mask), *(1,) * (rank - b.rank(mask))))


def last_written(
    b: Rule,
    data: Expr,
    updates: Expr,
    write: Callable[[Expr, Expr], Expr],
    read: Callable[[Expr], Expr],
) -> Expr:
    """Which updates are in the result: of several for one element the last, and none that are out of range. Their
    numbers are written in their place, and read back."""
    numbers = b.reshape(b.arange(PrimValue(product(b.dims(updates)))), b.dims(updates))
    nowhere = b.full(b.dims(data), Constant(-1, "int64"), "int64")
    return b.equal(read(write(nowhere, numbers)), numbers)
