"""Sampling from distributions, with random numbers given by the caller."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.linear_algebra import wide_dtype


@define_op
class MultinomialFromUniform(Op):
    """Sample from categorical distributions by inverse transform: for each number u of `uniform_sample` (n, 1), the
    first index at which the running sum of a row of `prob` (batch, size) exceeds u. For u uniform in [0, 1) the index
    has the probabilities of the row. `sample_indices` (n, 1) selects the row; a row out of range is clamped (0 if there
    is no row). If u is not below the sum of the row, the last index with a probability above 0 is returned."""

    name = "multinomial_from_uniform"
    dtype: DType = DType("int64")
    """Dtype of the result."""

    def deduce(
        self, d: Deduction, prob: KnownTensor, uniform_sample: KnownTensor,
        sample_indices: KnownTensor,
    ) -> TensorType:  # fmt: skip
        d.need_float(prob, "prob")
        d.need_float(uniform_sample, "uniform_sample")
        d.need_int(sample_indices, "sample_indices")
        d.require(
            self.dtype.is_int, f"indices must be integers, got {self.dtype}", arg="dtype",
            code="op-dtype",
        )  # fmt: skip
        tensors = {
            "prob": prob, "uniform_sample": uniform_sample, "sample_indices": sample_indices,
        }  # fmt: skip
        for name, x in tensors.items():
            d.require(
                x.ndim == 2,
                f"{name} must have 2 dimensions, got {x.ndim}",
                arg=name,
                code="op-rank",
            )
        columns = {"uniform_sample": uniform_sample.dims, "sample_indices": sample_indices.dims}
        for name, dims in columns.items():
            d.same_dim(dims[1], Dim.of(1), f"{name} must be one column", arg=name)
        count = d.same_dim(
            uniform_sample.dims[0], sample_indices.dims[0], "numbers of samples differ",
            arg="sample_indices",
        )  # fmt: skip
        d.ensure(dim_op("le", 1, prob.dims[1]), "prob must have at least one class", arg="prob")
        return TensorType((count, 1), self.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, self.dtype, 2)

    def legalize(
        self,
        out: KnownTensor,
        prob: te.Tensor,
        uniform_sample: te.Tensor,
        sample_indices: te.Tensor,
    ) -> te.Tensor:
        from relaxpy.tir.writer.scan import scan

        batch, size = te.dims(prob)
        wide = wide_dtype(DType(str(prob.dtype)))
        number = _number_dtype(str(prob.dtype), str(uniform_sample.dtype))
        sums = scan(prob, (batch, size), 1, wide, operator.add, -0.0)
        k = te.reduce_axis(size)

        def row(i: Any) -> Any:
            last = te.dim(batch) - te.dim(1)
            index = te.cast(sample_indices(i, te.dim(0)), DType("int64"))
            return te.maximum(te.minimum(index, last), te.dim(0))

        def total(i: Any, place: Any) -> Any:
            """A running sum of the row of sample i; 0 if there are no rows."""
            read = te.element(sums(row(i), place))
            if batch.value:
                return te.cast(read, number)
            inside = te.greater(te.dim(batch), te.dim(0))
            return te.cast(te.if_then_else(inside, read, te.literal(0, read)), number)

        def counted(below: Any) -> te.Tensor:
            def element(i: Any) -> Any:
                return te.sum(te.cast(below(i), DType("int64")), k)

            return te.compute(out.dims[:1], element, "counted")  # type: ignore[index]

        def passed(i: Any) -> Any:
            u = te.cast(uniform_sample(i, te.dim(0)), number)
            return te.less_equal(total(i, k), u)

        totals = te.compute(out.dims[:1], lambda i: total(i, te.dim(size) - te.dim(1)), "total")

        def incomplete(i: Any) -> Any:
            return te.less(total(i, k), totals(i))

        first, last = counted(passed), counted(incomplete)
        return te.compute(
            out.dims, lambda i, _: te.cast(te.minimum(first(i), last(i)), self.dtype), "drawn"
        )

    def reference(
        self, prob: np.ndarray, uniform_sample: np.ndarray, sample_indices: np.ndarray
    ) -> np.ndarray:
        if len(prob) == 0:
            return np.zeros(uniform_sample.shape, self.dtype.numpy)
        wide = wide_dtype(DType(prob.dtype)).numpy
        number = DType(_number_dtype(str(prob.dtype), str(uniform_sample.dtype))).numpy
        sums = np.cumsum(prob.astype(wide), axis=1, dtype=wide).astype(number)
        rows = sums[np.clip(sample_indices[:, 0].astype(np.int64), 0, len(prob) - 1)]
        first = np.sum(rows <= uniform_sample.astype(number), axis=1)
        last = np.sum(rows < rows[:, -1:], axis=1)
        return np.minimum(first, last)[:, None].astype(self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        prob = np.array([[0.25, 0.25, 0.5], [0.5, 0.0, 0.5]], np.float32)
        u = np.array([[0.3], [0.5], [0.0], [0.25], [1.0]], np.float32)
        rows = np.array([[0], [1], [1], [0], [1]], np.int64)
        dims = "b v, n 1, n 1"
        yield sample(cls(), prob, u, rows, dims=dims)
        yield sample(cls(DType("int32")), prob, u, rows.astype(np.int32), dims="2 3, n 1, n 1")
        yield sample(cls(), prob.astype(np.float16), u, rows, dims=dims)
        yield sample(cls(), np.array([[0.5, 0.25, 0.0]]), u, rows - 9, dims=dims)
        yield sample(cls(), prob[:0], u, rows, dims=dims)
        yield sample(cls(), prob, u[:0], rows[:0], dims=dims)
        yield wrong(cls(), prob[0], u, rows, code="op-rank", match="prob")
        yield wrong(cls(), prob, u, rows[:4], code="shape-mismatch", match="5 and 4")
        yield wrong(cls(), prob, rand(5, 2), rows, code="shape-mismatch", match="one column")
        yield wrong(cls(), prob, u, u, code="op-dtype", match="integers")
        yield wrong(cls(), prob[:, :0], u, rows, code="shape-mismatch", match="at least one class")


def _number_dtype(prob: str, uniform: str) -> DType:
    """The dtype in which probabilities and samples are compared."""
    return DType("float64" if "float64" in (prob, uniform) else "float32")


@define_op
class RandomUniform(Op):
    """Random numbers, uniform in [0, 1): each is a function of its seed, stream and position alone (integers, int64 or
    narrower, all of one shape), by Philox4x32-10 with the seed as the key. Numbers of different seeds, streams or
    positions are independent of each other; equal ones give equal numbers, in any batch and on any device. float32
    numbers have 24 random bits, float64 ones 53."""

    name = "random_uniform"
    dtype: DType = DType("float32")
    """Dtype of the result: float32 or float64."""

    def deduce(
        self, d: Deduction, seeds: KnownTensor, streams: KnownTensor, positions: KnownTensor
    ) -> TensorType:
        d.require(
            self.dtype in ("float32", "float64"),
            f"random numbers are float32 or float64, got {self.dtype}", arg="dtype", code="op-dtype",
        )  # fmt: skip
        d.need_int(seeds, "seeds")
        for name, x in (("streams", streams), ("positions", positions)):
            d.need_int(x, name)
            d.require(
                x.ndim == seeds.ndim,
                f"{name} must have {seeds.ndim} dimensions as seeds, got {x.ndim}", arg=name,
                code="op-rank",
            )  # fmt: skip
            for size, other in zip(seeds.dims, x.dims, strict=True):
                d.same_dim(size, other, f"sizes of seeds and {name} differ", arg=name)
        return TensorType(seeds.dims, self.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        seeds = args[0]
        assert isinstance(seeds, TensorType)
        return TensorType(seeds.dims, self.dtype, seeds.ndim)

    def legalize(
        self, out: KnownTensor, seeds: te.Tensor, streams: te.Tensor, positions: te.Tensor
    ) -> te.Tensor:
        from relaxpy.tir.writer.random import random_uniform

        return random_uniform(seeds, streams, positions, out.dims, self.dtype)

    def reference(
        self, seeds: np.ndarray, streams: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        first, second, *_ = philox(
            [*_halves(positions), *_halves(streams)], _halves(seeds)
        )  # fmt: skip
        if self.dtype == "float64":
            return ((first >> 5) * np.uint64(1 << 26) + (second >> 6)).astype(np.float64) * 2.0**-53
        return (first >> 8).astype(np.float32) * np.float32(2.0**-24)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        seeds = np.array([0, 7, -1, 1 << 40, 7], np.int64)
        streams = np.array([0, 1, 2, -(1 << 63), 1], np.int64)
        positions = np.array([0, 5, 5, (1 << 63) - 1, 6], np.int64)
        exact = {"rtol": 0.0, "atol": 0.0}
        yield sample(cls(), seeds, streams, positions, dims="n, n, n", **exact)
        yield sample(cls(DType("float64")), seeds, streams, positions, dims="n, n, n", **exact)
        narrow = [x.astype(np.int32).reshape(5, 1) for x in (seeds, streams, positions)]
        yield sample(cls(), *narrow, dims="n m, n m, n m", **exact)
        yield sample(cls(), seeds[:0], streams[:0], positions[:0], dims="n, n, n")
        yield wrong(cls(), seeds, streams[1:], positions, code="shape-mismatch", match="streams")
        yield wrong(cls(), seeds, streams, positions[None], code="op-rank", match="positions")
        yield wrong(cls(), rand(5), streams, positions, code="op-dtype", match="seeds")
        half = cls(DType("float16"))
        yield wrong(half, seeds, streams, positions, code="op-dtype", match="float16")


def _halves(x: np.ndarray) -> list[np.ndarray]:
    """The low and the high words of integers, as uint64."""
    whole = x.astype(np.int64).view(np.uint64)
    return [whole & np.uint64(0xFFFFFFFF), whole >> np.uint64(32)]


def philox(counter: Sequence[np.ndarray], key: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Philox4x32-10 on arrays of words, as uint64: four random words for a counter of four and a key of two."""
    word, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (second >> shift) ^ b ^ k,
            second & word,
            (first >> shift) ^ d ^ m,
            first & word,
        )
        k, m = (k + np.uint64(0x9E3779B9)) & word, (m + np.uint64(0xBB67AE85)) & word
    return [a, b, c, d]
