"""Slices at places that a tensor gives: gather and scatter as StableHLO and JAX have them, with their names for the
attributes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownShape, KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.gather import nearest, position, position_numpy


@dataclass(frozen=True)
class SlicesAt(Op):
    """Slices of a tensor x that begin where the vectors along the last axis of `indices` say."""

    def _check(
        self,
        d: Deduction,
        x: KnownTensor,
        indices: KnownTensor,
        axes: Sequence[tuple[str, tuple[int, ...], int]],
        pairs: tuple[tuple[int, ...], tuple[int, ...]],
        named: tuple[str, tuple[int, ...]],
    ) -> None:
        """Refuse axes that are out of range or repeated, and sizes that differ. `axes`: attributes, their values and
        the ranks that they are of; `pairs`: the axes of x and of `indices` that go together; `named`: the attribute
        that says which axes of x the vectors are of."""
        d.need_int(indices, "indices")
        d.require(indices.ndim > 0, "indices has no dimensions", arg="indices", code="op-rank")
        for name, numbers, ndim in axes:
            d.require(
                len(set(numbers)) == len(numbers) and all(0 <= a < ndim for a in numbers),
                f"{name} must be different axes from 0 to {ndim - 1}, got {list(numbers)}", arg=name,
                code="op-axis",
            )  # fmt: skip
        name, numbers = named
        fits = dim_op("eq", indices.dims[-1], len(numbers))
        message = (
            f"{name} names {len(numbers)} axes, and the vectors in indices have {indices.dims[-1]}"
        )
        d.ensure(fits, message, arg="indices")
        d.require(
            len(pairs[0]) == len(pairs[1]),
            f"there are {len(pairs[0])} batching axes of the tensor and {len(pairs[1])} of indices",
            code="op-axis",
        )  # fmt: skip
        for a, b in zip(*pairs, strict=True):
            d.same_dim(
                x.dims[a], indices.dims[b], f"batching axes {a} and {b} differ", arg="indices"
            )


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
        gone = (*self.collapsed_slice_dims, *self.operand_batching_dims)
        ndim = len(self.offset_dims) + max(indices.ndim - 1, 0)
        self._check(
            d, x, indices,
            (
                ("offset_dims", self.offset_dims, ndim),
                ("collapsed_slice_dims", self.collapsed_slice_dims, x.ndim),
                ("operand_batching_dims", gone, x.ndim),
                ("start_index_map", self.start_index_map, x.ndim),
                ("start_indices_batching_dims", self.start_indices_batching_dims, indices.ndim - 1),
            ),
            (self.operand_batching_dims, self.start_indices_batching_dims),
            ("start_index_map", self.start_index_map),
        )  # fmt: skip
        d.require(
            self.mode in ("clip", "fill"), f"mode {self.mode!r} is none of clip, fill", arg="mode"
        )
        d.require(
            len(slice_sizes.dims) == x.ndim,
            f"slice_sizes must have {x.ndim} numbers, got {len(slice_sizes.dims)}",
            arg="slice_sizes", code="op-rank",
        )  # fmt: skip
        d.require(
            len(self.offset_dims) + len(gone) == x.ndim,
            f"offset_dims must name {x.ndim - len(gone)} axes, one for each of x that is not collapsed, "
            f"got {list(self.offset_dims)}", arg="offset_dims", code="op-axis",
        )  # fmt: skip
        for a, (size, taken) in enumerate(zip(x.dims, slice_sizes.dims, strict=True)):
            if a in gone:
                d.ensure(
                    dim_op("eq", taken, 1),
                    f"a slice has size {taken} along axis {a}, which is collapsed",
                    arg="slice_sizes",
                )
            message = f"a slice has size {taken} along axis {a}, where x has {size}"
            d.ensure(dim_op("le", taken, size), message, arg="slice_sizes")
        batch = iter(indices.dims[:-1])
        kept = iter([slice_sizes.dims[a] for a in self._kept(x.ndim)])
        dims = [next(kept if o in self.offset_dims else batch) for o in range(ndim)]
        return TensorType(dims, x.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        x, indices, _ = args
        dtype = x.dtype if isinstance(x, TensorType) else None
        known = isinstance(indices, TensorType) and indices.ndim > 0
        ndim = indices.ndim - 1 + len(self.offset_dims) if known else -1
        return TensorType(None, dtype, ndim)

    def _kept(self, ndim: int) -> list[int]:
        """The axes of x that the result has, in order."""
        gone = (*self.collapsed_slice_dims, *self.operand_batching_dims)
        return [a for a in range(ndim) if a not in gone]

    def _fill(self, dtype: DType) -> int | float | bool:
        if self.fill_value is not None:
            return bool(self.fill_value) if dtype.is_bool else self.fill_value
        if dtype.is_float:
            return float("nan")
        if dtype.is_bool:
            return True
        low, high = dtype.limits
        return int(low if dtype.is_signed else high)

    def _axes(
        self, ndim: int, place: Sequence[Any]
    ) -> tuple[list[Any], dict[int, Any], dict[int, Any]]:
        """Of an index of the result: the index in the axes of `indices`; the offset in a slice, and the batching index,
        by axis of x."""
        batch = [v for o, v in enumerate(place) if o not in self.offset_dims]
        offsets = [v for o, v in enumerate(place) if o in self.offset_dims]
        pairs = zip(self.operand_batching_dims, self.start_indices_batching_dims, strict=True)
        return (
            batch,
            dict(zip(self._kept(ndim), offsets, strict=True)),
            {a: batch[b] for a, b in pairs},
        )

    def legalize(
        self, out: KnownTensor, x: te.Tensor, indices: te.Tensor, slice_sizes: Any
    ) -> te.Tensor:
        sizes, taken = te.dims(x), te.dims(slice_sizes)

        def element(*o: Any) -> Any:
            batch, offset, index = self._axes(len(sizes), o)
            there = te.const(True, "bool")
            for k, a in enumerate(self.start_index_map):
                start = position(indices(*batch, te.dim(k)))
                index[a] = nearest(start, sizes[a] - taken[a] + 1)
                there = te.logical_and(there, te.equal(start, index[a]))
            for a, within in offset.items():
                index[a] = index[a] + within if a in index else within
            read = te.element(x(*(index.get(a, te.dim(0)) for a in range(len(sizes)))))
            if self.mode == "clip":
                return read
            return te.select(there, read, te.literal(self._fill(out.dtype), read))

        return te.compute(out.dims, element, "gather")

    def reference(
        self, x: np.ndarray, indices: np.ndarray, slice_sizes: Sequence[int]
    ) -> np.ndarray:
        lead, kept = list(indices.shape[:-1]), [slice_sizes[a] for a in self._kept(x.ndim)]
        ndim = len(lead) + len(kept)
        shape = [(kept if o in self.offset_dims else lead).pop(0) for o in range(ndim)]
        batch, offset, index = self._axes(x.ndim, list(np.indices(shape)))
        there = np.ones(shape, bool)
        for k, a in enumerate(self.start_index_map):
            start = position_numpy(indices)[(*batch, k)]
            last = x.shape[a] - slice_sizes[a]
            there &= (start >= 0) & (start <= last)
            index[a] = np.clip(start, 0, last)
        for a, within in offset.items():
            index[a] = index.get(a, 0) + within
        found = x[tuple(index.get(a, np.zeros(shape, np.int64)) for a in range(x.ndim))]
        if self.mode == "clip":
            return np.asarray(found)
        return np.where(there, found, np.asarray(self._fill(DType(x.dtype))).astype(x.dtype))

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
            match="collapsed",
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
