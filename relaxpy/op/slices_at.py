"""Slices at places that a tensor gives: gather, scatter and the update of one slice as StableHLO and JAX have them,
with their names for the attributes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.gather import nearest, position, position_numpy
from relaxpy.op.rule import Cotangent, NoRule, Rule
from relaxpy.op.scatter import (
    Updates,
    check_reduction,
    in_its_dtype,
    scatter_numpy,
    scattered,
)


class SlicesAt(Op):
    """Slices of a tensor x that begin where the vectors along the last axis of `indices` say. The slices are a tensor
    with the axes of `indices` but the last and those of a slice."""

    attributes: ClassVar[tuple[str, str, str, str, str]]
    """The names of the attributes with: the axes of the slices that are those of a slice; the axes of x that they have
    not; the axis of x for each element of a vector; the axes of x that go together with axes of `indices`; and
    those."""

    def _numbers(self) -> tuple[tuple[int, ...], ...]:
        offset, *others = (getattr(self, name) for name in self.attributes)
        return (tuple(sorted(offset)), *others)

    def _kept(self, ndim: int) -> list[int]:
        """The axes of x that the slices have, in order."""
        _, gone, _, batching, _ = self._numbers()
        return [a for a in range(ndim) if a not in gone and a not in batching]

    def _check(self, d: Deduction, x: KnownTensor, indices: KnownTensor) -> None:
        """Refuse axes that are out of range or repeated, and sizes that differ."""
        d.need_int(indices, "indices")
        d.require(indices.ndim > 0, "indices has no dimensions", arg="indices", code="op-rank")
        offset, gone, named, batching, paired = self._numbers()
        ranks = (len(offset) + indices.ndim - 1, x.ndim, x.ndim, x.ndim, indices.ndim - 1)
        batched = (offset, gone, named, (*gone, *batching), paired)
        for name, axes, ndim in zip(self.attributes, batched, ranks, strict=True):
            d.require(
                len(set(axes)) == len(axes) and all(0 <= a < ndim for a in axes),
                f"{name} must be different axes from 0 to {ndim - 1}, got {list(axes)}", arg=name,
                code="op-axis",
            )  # fmt: skip
        count = x.ndim - len(gone) - len(batching)
        d.require(
            len(offset) == count,
            f"{self.attributes[0]} must name {count} axes, one for each that a slice keeps, got "
            f"{list(offset)}", arg=self.attributes[0], code="op-axis",
        )  # fmt: skip
        given = indices.dims[-1]
        message = (
            f"{self.attributes[2]} names {len(named)} axes, and vectors in indices have {given}"
        )
        d.ensure(dim_op("eq", given, len(named)), message, arg="indices")
        d.require(
            len(batching) == len(paired),
            f"{self.attributes[3]} names {len(batching)} axes and {self.attributes[4]} {len(paired)}",
            arg=self.attributes[3], code="op-axis",
        )  # fmt: skip
        for a, b in zip(batching, paired, strict=True):
            message = f"batching axes {a} and {b} differ"
            d.same_dim(x.dims[a], indices.dims[b], message, arg="indices")

    def _placed(
        self,
        place: Sequence[Any],
        room: Sequence[Any],
        start: Callable[[list[Any], int], Any],
        nearest: Callable[[Any, Any], Any],
    ) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """The index in x of the element `place` of the slices, and pairs of where slices are to begin and do. `room`:
        the places that a slice has along each axis of x; `start(batch, k)` reads an element of a vector."""
        offset, _, named, batching, paired = self._numbers()
        batch = [at for o, at in enumerate(place) if o not in offset]
        index: dict[int, Any] = {a: batch[b] for a, b in zip(batching, paired, strict=True)}
        moved = []
        for k, a in enumerate(named):
            wanted = start(batch, k)
            index[a] = nearest(wanted, room[a])
            moved.append((wanted, index[a]))
        for a, o in zip(self._kept(len(room)), offset, strict=True):
            index[a] = index[a] + place[o] if a in index else place[o]
        return [index.get(a) for a in range(len(room))], moved

    def _placed_numpy(
        self, shape: Sequence[int], indices: np.ndarray, room: Sequence[int]
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """For all slices of `shape`: the indices in x, and whether a slice is where it is to begin."""
        found, moved = self._placed(
            list(np.indices(shape)),
            room,
            lambda batch, k: position_numpy(indices)[(*batch, np.int64(k))],
            lambda at, count: np.clip(at, 0, count - 1),
        )
        places = [np.broadcast_to(0 if at is None else at, shape) for at in found]
        there = np.ones(shape, bool)
        for wanted, at in moved:
            there &= wanted == at
        return places, there


def unmoved(moved: Sequence[tuple[Any, Any]]) -> Any:
    """Whether a slice is where it is to begin: of pairs of both. (A comparison of an index with a size could be turned
    into one of sums, which wrap around.)"""
    same = (te.equal(wanted, at) for wanted, at in moved)
    return functools.reduce(te.logical_and, same, te.const(True, "bool"))


@define_op
class Gather(SlicesAt):
    """Slices of x at `indices`, as the gather of StableHLO and `jax.lax`. The vectors along the last axis of `indices`
    say where slices begin along the axes `start_index_map` of x; a slice has `slice_sizes` elements along each axis.
    The result has the axes of `indices` but the last and, at `offset_dims`, those of a slice, without the axes
    `collapsed_slice_dims` and `operand_batching_dims`, in which its size is 1. Along `operand_batching_dims` a slice is
    where its index along `start_indices_batching_dims` says. A slice that would begin before x or end after it is moved
    into x (mode "clip"), or is `fill_value` (mode "fill"; None: NaN, the smallest signed or the largest unsigned
    integer, True)."""

    name = "gather"
    mixed = "follow"
    attributes = (
        "offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
        "start_indices_batching_dims",
    )  # fmt: skip
    offset_dims: tuple[int, ...] = ()
    """Axes of the result that are those of a slice."""
    collapsed_slice_dims: tuple[int, ...] = ()
    """Axes of x that the result has not."""
    start_index_map: tuple[int, ...] = ()
    """The axis of x for each element of an index vector."""
    operand_batching_dims: tuple[int, ...] = ()
    """Axes of x that go together with axes of `indices`."""
    start_indices_batching_dims: tuple[int, ...] = ()
    """Those axes of `indices`."""
    mode: str = "clip"
    fill_value: int | float | None = None

    def deduce(
        self, d: Deduction, x: KnownTensor, indices: KnownTensor, slice_sizes: KnownShape
    ) -> TensorType:
        self._check(d, x, indices)
        d.require(
            self.mode in ("clip", "fill"), f"mode {self.mode!r} is none of clip, fill", arg="mode"
        )
        d.require(
            len(slice_sizes.dims) == x.ndim,
            f"slice_sizes must have {x.ndim} numbers, got {len(slice_sizes.dims)}",
            arg="slice_sizes", code="op-rank",
        )  # fmt: skip
        kept = self._kept(x.ndim)
        for a, (size, taken) in enumerate(zip(x.dims, slice_sizes.dims, strict=True)):
            if a not in kept:
                message = f"a slice has size {taken} along axis {a}, which is left out"
                d.ensure(dim_op("eq", taken, 1), message, arg="slice_sizes")
            message = f"a slice has size {taken} along axis {a}, where x has {size}"
            d.ensure(dim_op("le", taken, size), message, arg="slice_sizes")
        dims = list(indices.dims[:-1])
        for o, a in zip(sorted(self.offset_dims), kept, strict=True):
            dims.insert(o, slice_sizes.dims[a])
        return TensorType(dims, x.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        x, indices, _ = args
        dtype = x.dtype if isinstance(x, TensorType) else None
        ndim = -1
        if isinstance(indices, TensorType) and indices.ndim > 0:
            ndim = indices.ndim - 1 + len(self.offset_dims)
        return TensorType(None, dtype, ndim)

    def _fill(self, dtype: DType) -> int | float | bool:
        if self.fill_value is not None:
            return bool(self.fill_value) if dtype.is_bool else self.fill_value
        if dtype.is_float:
            return float("nan")
        if dtype.is_bool:
            return True
        low, high = dtype.limits
        return int(low if dtype.is_signed else high)

    def legalize(
        self, out: KnownTensor, x: te.Tensor, indices: te.Tensor, slice_sizes: Any
    ) -> te.Tensor:
        room = [
            size - taken + 1 for size, taken in zip(te.dims(x), te.dims(slice_sizes), strict=True)
        ]

        def start(batch: list[Any], k: int) -> Any:
            return position(indices(*batch, te.dim(k)))

        def element(*place: Any) -> Any:
            index, moved = self._placed(place, room, start, nearest)
            read = te.element(x(*(te.dim(0) if at is None else at for at in index)))
            if self.mode == "clip":
                return read
            return te.select(unmoved(moved), read, te.literal(self._fill(out.dtype), read))

        return te.compute(out.dims, element, "gather")

    def reference(
        self, x: np.ndarray, indices: np.ndarray, slice_sizes: Sequence[int]
    ) -> np.ndarray:
        shape = list(indices.shape[:-1])
        for o, a in zip(sorted(self.offset_dims), self._kept(x.ndim), strict=True):
            shape.insert(o, slice_sizes[a])
        room = [size - taken + 1 for size, taken in zip(x.shape, slice_sizes, strict=True)]
        places, there = self._placed_numpy(shape, indices, room)
        found = np.asarray(x[tuple(places)])
        if self.mode == "clip":
            return found
        return np.where(there, found, np.asarray(self._fill(DType(x.dtype))).astype(x.dtype))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        x, indices, _ = args
        names = zip(self.attributes, Scatter.attributes, strict=True)
        same = {theirs: getattr(self, ours) for ours, theirs in names}
        mode = "clip" if self.mode == "clip" else "drop"
        return [
            b.scatter(b.zeros_like(x), indices, ct, **same, mode=mode, reduction="add"),
            None,
            None,
        ]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rows = np.array([[2], [-1], [9], [0]], np.int64)
        pairs = np.array([[[0, 1], [2, -4]], [[1, 3], [7, 0]]], np.int32)
        for mode in ("clip", "fill"):
            of_rows = cls((1,), (0,), (0,), mode=mode)
            yield sample(of_rows, rand(4, 5), rows, (1, 5), dims="n m, k 1, 1 m")
            windows = cls((0, 3), (), (0, 1), mode=mode)
            yield sample(windows, rand(4, 5), pairs, (2, 3), dims="n m, k l 2, 2 3")
            batched = cls((2,), (1,), (2, 1), (0,), (1,), mode=mode)
            yield sample(batched, rand(2, 3, 5), pairs, (1, 1, 2), dims="n 3 m, k n 2, 1 1 2")
        yield sample(cls((0,), (), (0,)), rand(6), rows[0], (3,), dims="n, 1, 3")
        yield sample(
            cls((1,), (), (0,), mode="fill"), rand(4, dtype="int32"), rows, (2,), dims="2*n, k 1, n"
        )
        for dtype in ("int8", "uint16", "bool"):
            x = rand(4, dtype=dtype)
            yield sample(cls((), (0,), (0,), mode="fill"), x, rows, (1,), dims="n, k 1, 1")
        filled = cls((), (0,), (0,), mode="fill", fill_value=7)
        yield sample(filled, rand(4, dtype="float16"), rows, (1,), dims="n, k 1, 1")
        yield sample(cls((0,), (1,), ()), rand(3, 2), rows[0, :0], (3, 1), dims="n m, 0, n 1")
        yield wrong(
            cls((1,), (0,), (0,)), rand(4, 5), rand(4, 1), (1, 5), code="op-dtype", match="integers"
        )
        yield wrong(
            cls((1,), (0,), (0, 1)),
            rand(4, 5),
            rows,
            (1, 5),
            code="shape-mismatch",
            match="names 2 axes",
        )
        yield wrong(
            cls((1,), (0,), (2,)), rand(4, 5), rows, (1, 5), code="op-axis", match="start_index_map"
        )
        yield wrong(
            cls((1,), (), (0,)),
            rand(4, 5),
            rows,
            (1, 5),
            code="op-axis",
            match="offset_dims must name 2",
        )
        yield wrong(
            cls((1,), (0,), (0,)),
            rand(4, 5),
            rows,
            (2, 5),
            code="shape-mismatch",
            match="left out",
        )
        yield wrong(
            cls((1,), (0,), (0,)), rand(4, 5), rows, (1, 6), code="shape-mismatch", match="size 6"
        )
        yield wrong(
            cls((1,), (0,), (0,)), rand(4, 5), rows, (1,), code="op-rank", match="2 numbers"
        )
        yield wrong(
            cls((1,), (0,), (0,), mode="wrap"),
            rand(4, 5),
            rows,
            (1, 5),
            code="op-arguments",
            match="wrap",
        )


@define_op
class Scatter(SlicesAt):
    """A copy of data with slices of it combined with updates, as the scatter of StableHLO and `jax.lax`. The vectors
    along the last axis of `indices` say where slices begin along the axes `scatter_dims_to_operand_dims` of data.
    `updates` has the axes of `indices` but the last and, at `update_window_dims`, those of a slice, without the axes
    `inserted_window_dims` and `operand_batching_dims`, in which its size is 1. Along `operand_batching_dims` a slice is
    where its index along `scatter_indices_batching_dims` says. A slice that would begin before data or end after it is
    skipped (mode "drop") or moved into data (mode "clip"). The reduction "update" replaces; "add", "mul", "min" and
    "max" combine. Updates are applied in row-major order: of several replacements the last wins."""

    name = "scatter"
    of_data = True
    updates = "data"
    attributes = (
        "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims",
        "operand_batching_dims", "scatter_indices_batching_dims",
    )  # fmt: skip
    update_window_dims: tuple[int, ...] = ()
    """Axes of updates that are those of a slice."""
    inserted_window_dims: tuple[int, ...] = ()
    """Axes of data that updates has not."""
    scatter_dims_to_operand_dims: tuple[int, ...] = ()
    """The axis of data for each element of an index vector."""
    operand_batching_dims: tuple[int, ...] = ()
    """Axes of data that go together with axes of `indices`."""
    scatter_indices_batching_dims: tuple[int, ...] = ()
    """Those axes of `indices`."""
    mode: str = "drop"
    reduction: str = "update"

    def deduce(
        self, d: Deduction, data: KnownTensor, indices: KnownTensor, updates: KnownTensor
    ) -> TensorType:
        check_reduction(d, data, self.reduction)
        d.same_dtype(data, updates)
        self._check(d, data, indices)
        d.require(
            self.mode in ("clip", "drop"), f"mode {self.mode!r} is none of clip, drop", arg="mode"
        )
        ndim = indices.ndim - 1 + len(self.update_window_dims)
        d.require(
            updates.ndim == ndim, f"updates must have {ndim} dimensions, got {updates.ndim}",
            arg="updates", code="op-rank",
        )  # fmt: skip
        batch = [size for o, size in enumerate(updates.dims) if o not in self.update_window_dims]
        for a, (size, given) in enumerate(zip(indices.dims[:-1], batch, strict=True)):
            d.same_dim(size, given, f"axis {a} of indices differs in updates", arg="updates")
        for a, o in zip(self._kept(data.ndim), sorted(self.update_window_dims), strict=True):
            size, taken = data.dims[a], updates.dims[o]
            message = f"a slice has size {taken} along axis {a}, where data has {size}"
            d.ensure(dim_op("le", taken, size), message, arg="updates")
        return TensorType(data.dims, data.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return args[0] if isinstance(args[0], TensorType) else TensorType()

    def _room(self, sizes: Sequence[Any], of_updates: Sequence[Any]) -> list[Any]:
        """The number of places that a slice has along each axis of data."""
        kept = zip(self._kept(len(sizes)), sorted(self.update_window_dims), strict=True)
        taken = {a: of_updates[o] for a, o in kept}
        return [size - taken.get(a, 1) + 1 for a, size in enumerate(sizes)]

    def legalize(
        self, out: KnownTensor, data: te.Tensor, indices: te.Tensor, updates: te.Tensor
    ) -> te.Tensor:
        return self._scattered(out, data, indices, updates)

    def may_update(self, out: Any) -> bool:
        return in_its_dtype(out, self.reduction)

    def update(
        self, out: KnownTensor, data: te.Tensor, indices: te.Tensor, updates: te.Tensor
    ) -> te.Tensor:
        return self._scattered(out, None, indices, updates)

    def _scattered(
        self, out: KnownTensor, data: te.Tensor | None, indices: te.Tensor, updates: te.Tensor
    ) -> te.Tensor:
        room = self._room(out.dims, te.dims(updates))

        def read(p: Any, buffers: Any, place: list[Any]) -> tuple[list[Any], Any]:
            vectors, values = buffers
            index, moved = self._placed(
                place, room, lambda batch, k: position(p.read(vectors, *batch, k)), nearest
            )
            index = [te.dim(0) if at is None else at for at in index]
            if self.mode == "drop" and moved:
                index[0] = te.select(unmoved(moved), index[0], te.dim(-1))
            return index, p.read(values, *place)

        made = Updates(te.dims(updates), [indices, updates], read)
        return scattered(out, data, made, self.reduction, "scatter")

    def reference(self, data: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        room = self._room(data.shape, updates.shape)
        places, there = self._placed_numpy(updates.shape, indices, room)
        if self.mode == "drop" and places:
            places[0] = np.where(there, places[0], -1)
        return scatter_numpy(data, places, updates, self.reduction)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, indices, updates = args
        if self.reduction != "add":
            return [NoRule(f"scatter with reduction {self.reduction!r} has no rule")] * 3
        names = zip(self.attributes, Gather.attributes, strict=True)
        same = {theirs: getattr(self, ours) for ours, theirs in names}
        offset, given = iter(sorted(self.update_window_dims)), b.dims(updates)
        kept = set(self._kept(b.rank(data)))
        sizes = tuple(given[next(offset)] if a in kept else Dim.of(1) for a in range(b.rank(data)))
        mode = "clip" if self.mode == "clip" else "fill"
        return [ct, None, b.gather(ct, indices, sizes, **same, mode=mode, fill_value=0.0)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        rows = np.array([[2], [-1], [9], [0], [2]], np.int64)
        pairs = np.array([[[0, 1], [2, -4]], [[1, 3], [7, 0]]], np.int32)
        for mode in ("drop", "clip"):
            of_rows = cls((1,), (0,), (0,), mode=mode)
            yield sample(of_rows, rand(4, 3), rows, rand(5, 3), dims="n m, k 1, k m")
            windows = cls((0, 3), (), (0, 1), mode=mode, reduction="add")
            given = rand(4, 5), pairs, rand(2, 2, 2, 3)
            yield sample(windows, *given, dims="n m, k l 2, 2 k l 3", atol=1e-5)
            batched = cls((2,), (1,), (2, 1), (0,), (1,), mode=mode)
            given = rand(2, 3, 5), pairs, rand(2, 2, 2)
            yield sample(batched, *given, dims="n 3 m, k n 2, k n 2")
        for reduction in ("update", "add", "mul", "min", "max"):
            each = cls((), (0,), (0,), reduction=reduction)
            yield sample(each, rand(4), rows, rand(5), dims="n, k 1, k", atol=1e-5)
        yield sample(cls((0,), (), (0,)), rand(6), rows[0], rand(3), dims="n, 1, m")
        yield sample(cls((0,), (1,), ()), rand(3, 2), rows[0, :0], rand(3), dims="n m, 0, n")
        half = rand(4, dtype="float16"), rows, rand(5, dtype="float16")
        yield sample(cls((), (0,), (0,), reduction="add"), *half, dims="n, k 1, k", rtol=2e-3)
        flags = rand(4, dtype="bool"), rows, rand(5, dtype="bool")
        yield sample(cls((), (0,), (0,)), *flags, dims="n, k 1, k")
        of_rows, x, given = cls((1,), (0,), (0,)), rand(4, 3), rand(5, 3)
        yield wrong(of_rows, x, rand(5, 1), given, code="op-dtype", match="integers")
        yield wrong(of_rows, x, rows, rand(4, 3), code="shape-mismatch", match="5 and 4")
        yield wrong(of_rows, x, rows, rand(5, 4), code="shape-mismatch", match="size 4")
        yield wrong(of_rows, x, rows, rand(5), code="op-rank", match="2 dimensions, got 1")
        yield wrong(of_rows, x, rows, rand(5, 3, dtype="int32"), code="op-dtype", match="int32")
        yield wrong(
            cls((2,), (0,), (0,)), x, rows, given, code="op-axis", match="update_window_dims"
        )
        yield wrong(
            cls((1,), (0,), ()), x, rows, given, code="shape-mismatch", match="names 0 axes"
        )
        odd = cls((1,), (0,), (0,), mode="fill")
        yield wrong(odd, x, rows, given, code="op-arguments", match="none of clip, drop")


@define_op
class DynamicUpdateSlice(Op):
    """A copy of data with `update` in place of the slice that begins at `starts`, a vector with an index for each axis,
    as StableHLO and `jax.lax` have it. A slice that would begin before data or end after it is moved into data."""

    name = "dynamic_update_slice"
    mixed = "follow"
    of_data = True
    updates = "data"

    def deduce(
        self, d: Deduction, data: KnownTensor, update: KnownTensor, starts: KnownTensor
    ) -> TensorType:
        d.same_dtype(data, update)
        d.need_int(starts, "starts")
        d.require(
            update.ndim == data.ndim, f"ranks differ: {data.ndim} and {update.ndim}", arg="update",
            code="op-rank",
        )  # fmt: skip
        d.require(
            starts.ndim == 1,
            f"starts must be a vector, got {starts.ndim} dimensions",
            arg="starts",
            code="op-rank",
        )
        message = f"starts has {starts.dims[0]} numbers for {data.ndim} axes"
        d.ensure(dim_op("eq", starts.dims[0], data.ndim), message, arg="starts")
        for a, (size, taken) in enumerate(zip(data.dims, update.dims, strict=True)):
            message = f"update has size {taken} along axis {a}, where data has {size}"
            d.ensure(dim_op("le", taken, size), message, arg="update")
        return TensorType(data.dims, data.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return args[0] if isinstance(args[0], TensorType) else TensorType()

    def legalize(
        self, out: KnownTensor, data: te.Tensor, update: te.Tensor, starts: te.Tensor
    ) -> te.Tensor:
        sizes = list(zip(te.dims(data), te.dims(update), strict=True))

        def element(*i: Any) -> Any:
            place, inside = list(i), te.const(True, "bool")
            for a, (size, taken) in enumerate(sizes):
                if size != taken:
                    place[a] = i[a] - nearest(position(starts(te.dim(a))), size - taken + 1)
                    here = te.logical_and(place[a] >= 0, place[a] < te.dim(taken))
                    inside = te.logical_and(inside, here)
            new = te.element(update(*place))
            return te.if_then_else(inside, new, te.element(data(*i)))

        return te.compute(out.dims, element, "dynamic_update_slice")

    def update(
        self, out: KnownTensor, data: te.Tensor, update: te.Tensor, starts: te.Tensor
    ) -> te.Tensor:
        room = [a - b + 1 for a, b in zip(te.dims(data), te.dims(update), strict=True)]

        def fill(p: Any, result: Any, new: Any, first: Any) -> None:
            with p.block("part", [te.dim(size) for size in te.dims(update)], apart=True) as at:
                place = [
                    i if count == 1 else i + nearest(position(p.read(first, a)), count)
                    for a, (i, count) in enumerate(zip(at, room, strict=True))
                ]
                p.write(result, *place, value=p.read(new, *at))

        return te.serial((out.dims, out.dtype), [update, starts], fill, "dynamic_update_slice")

    def reference(self, data: np.ndarray, update: np.ndarray, starts: np.ndarray) -> np.ndarray:
        found = data.copy()
        room = np.array(data.shape) - update.shape
        first = np.clip(position_numpy(starts), 0, room)
        found[tuple(slice(f, f + n) for f, n in zip(first, update.shape, strict=True))] = update
        return found

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        _, update, starts = args
        every = tuple(range(b.rank(update)))
        taken = b.gather(ct, starts, b.dims(update), every, (), every, mode="clip")
        return [b.dynamic_update_slice(ct, b.zeros_like(update), starts), taken, None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, new = rand(5, 4), rand(2, 4)
        for first in ((1, 0), (-3, 2), (9, -1)):
            at = np.array(first, np.int32)
            yield sample(cls(), x, new, at, dims="n m, k m, 2")
            yield sample(cls(), x, rand(2, 3), at, dims="n 4, 2 k, 2")
        far = np.array([2**64 - 1, 1], np.uint64)
        yield sample(
            cls(), rand(5, 4, dtype="bool"), rand(1, 1, dtype="bool"), far, dims="n m, 1 1, 2"
        )
        yield sample(cls(), x, rand(0, 4), at, dims="n 4, k 4, 2")
        yield sample(cls(), rand(0), rand(0), at[:1], dims="n, n, 1")
        yield wrong(cls(), x, rand(2, 5), at, code="shape-mismatch", match="size 5")
        yield wrong(cls(), x, rand(2), at, code="op-rank", match="2 and 1")
        yield wrong(cls(), x, new, at[:1], code="shape-mismatch", match="1 numbers for 2")
        yield wrong(cls(), x, new, rand(2), code="op-dtype", match="integers")
        yield wrong(cls(), x, rand(2, 4, dtype="int32"), at, code="op-dtype", match="int32")
