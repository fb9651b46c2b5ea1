"""Reversing elements along an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.gather import position, position_numpy
from relaxpy.op.rule import Cotangent, Rule


@define_op
class Flip(Op):
    """Reverse the slices along `axis`, as `numpy.flip`."""

    name = "flip"
    mixed = "follow"
    axis: int

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        d.axis(self.axis, data.ndim)
        return TensorType(data.shape, data.dtype)

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        axis = self.axis % out.ndim
        last = te.dim(te.dims(data)[axis] - 1)
        return te.compute(
            out.dims, lambda *i: data(*i[:axis], last - i[axis], *i[axis + 1 :]), "flip"
        )

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.flip(data, self.axis))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.emit(self(ct))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0), rand(3, 4), dims="n m")
        yield sample(cls(-1), rand(2, 3, 4, dtype="int32"), dims="n 3 m")
        yield sample(cls(axis=0), rand(0, 2), dims="n 2")
        yield sample(cls(0), rand(5, dtype="bool"), dims="n")
        yield wrong(cls(2), rand(3, 4), code="op-axis", match="2")
        yield wrong(cls(0), rand(), code="op-axis", match="0")


@define_op
class ReverseSequence(Op):
    """Reverse the first `seq_lengths[b]` elements along `seq_axis` of each sequence b along `batch_axis`, and keep the
    others. Lengths are clamped to the size of the axis and to 0."""

    name = "reverse_sequence"
    mixed = "follow"
    seq_axis: int = 1
    batch_axis: int = 0

    def deduce(self, d: Deduction, data: KnownTensor, seq_lengths: KnownTensor) -> TensorType:
        d.need_int(seq_lengths, "seq_lengths")
        seq = d.axis(self.seq_axis, data.ndim, "seq_axis")
        batch = d.axis(self.batch_axis, data.ndim, "batch_axis")
        d.require(
            seq != batch, f"seq_axis and batch_axis are both {seq}", arg="seq_axis", code="op-axis"
        )
        d.require(
            seq_lengths.ndim == 1, f"seq_lengths must have one dimension, got {seq_lengths.ndim}",
            arg="seq_lengths", code="op-rank",
        )  # fmt: skip
        d.same_dim(
            data.dims[batch], seq_lengths.dims[0],
            f"the size of axis {batch} of data and the number of lengths differ", arg="seq_lengths",
        )  # fmt: skip
        return TensorType(data.shape, data.dtype)

    def legalize(self, out: KnownTensor, data: te.Tensor, seq_lengths: te.Tensor) -> te.Tensor:
        seq, batch = self.seq_axis % out.ndim, self.batch_axis % out.ndim

        def element(*i: Any) -> Any:
            given = position(seq_lengths(i[batch]))
            length = te.minimum(given, te.dim(te.dims(data)[seq]))
            place = te.select(i[seq] < length, length - 1 - i[seq], i[seq])
            return data(*i[:seq], place, *i[seq + 1 :])

        return te.compute(out.dims, element, "reverse_sequence")

    def reference(self, data: np.ndarray, seq_lengths: np.ndarray) -> np.ndarray:
        by_batch = np.moveaxis(data, (self.batch_axis, self.seq_axis), (0, 1))
        found = by_batch.copy()
        for sequence, length in zip(found, position_numpy(seq_lengths), strict=True):
            first = sequence[: max(int(length), 0)]
            first[...] = first[::-1].copy()
        return np.ascontiguousarray(np.moveaxis(found, (0, 1), (self.batch_axis, self.seq_axis)))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.emit(self(ct, args[1])), None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        lengths = np.array([2, 4, 0], np.int64)
        yield sample(cls(), rand(3, 4), lengths, dims="n m, n")
        beyond = np.array([7, -3, 1], np.int32)
        yield sample(cls(), rand(3, 4, 2), beyond, dims="n m 2, n")
        yield sample(cls(seq_axis=0, batch_axis=-1), rand(4, 2, 3), lengths, dims="m 2 n, n")
        yield sample(cls(), rand(0, 4), lengths[:0], dims="n 4, n")
        yield wrong(cls(seq_axis=0), rand(3, 4), lengths, code="op-axis", match="both 0")
        yield wrong(cls(), rand(2, 4), lengths, code="shape-mismatch", match="2 and 3")
        yield wrong(cls(), rand(3, 4), rand(3), code="op-dtype", match="integers")
        yield wrong(cls(), rand(3, 4), rand(3, 1, dtype="int32"), code="op-rank", match="one")
        yield wrong(cls(seq_axis=2), rand(3, 4), lengths, code="op-axis", match="seq_axis 2")
