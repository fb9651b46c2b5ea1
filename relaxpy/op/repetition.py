"""Repeating elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, maximum, product
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.row_major import reindexed
from relaxpy.op.rule import Cotangent, Rule


@define_op
class Repeat(Op):
    """Repeat each slice along `axis` `repeats` times in a row, as `numpy.repeat`; without `axis`, each element of the
    flattened tensor."""

    name = "repeat"
    mixed = "follow"
    repeats: int
    axis: int | None = None

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        self._check(d)
        if self.axis is None:
            return TensorType((product(data.dims) * self.repeats,), data.dtype)
        dims, axis = list(data.dims), d.axis(self.axis, data.ndim)
        dims[axis] = dims[axis] * self.repeats
        return TensorType(tuple(dims), data.dtype)

    def _check(self, d: Deduction) -> None:
        d.require(self.repeats >= 0, f"cannot repeat {self.repeats} times", arg="repeats")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        self._check(d)
        (data,) = args
        dtype = data.dtype if isinstance(data, TensorType) else None
        return TensorType(None, dtype, 1 if self.axis is None else -1)

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        axis = 0 if self.axis is None else self.axis % len(data.shape)
        if self.axis is None:
            flat = KnownTensor((product(te.dims(data)),), out.dtype)
            data = reindexed(flat, data, "flatten")
        times = te.dim(max(self.repeats, 1))  # a tensor that is repeated 0 times is not read
        return te.compute(
            out.dims, lambda *i: data(*i[:axis], i[axis] // times, *i[axis + 1 :]), "repeat"
        )

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.repeat(data, self.repeats, self.axis)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (data,) = args
        dims = b.dims(data) if self.axis is not None else (product(b.dims(data)),)
        axis = 0 if self.axis is None else self.axis % len(dims)
        parts = b.reshape(ct, (*dims[: axis + 1], self.repeats, *dims[axis + 1 :]))
        return [b.reshape(b.sum(parts, axis + 1), b.dims(data))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(2), rand(3, 2), dims="n m")
        yield sample(cls(3, axis=0), rand(2, 3), dims="n 3")
        yield sample(cls(2, axis=-1), rand(2, 3, 2, dtype="int32"), dims="n 3 m")
        yield sample(cls(0, axis=1), rand(2, 3), dims="n m")
        yield sample(cls(3), rand())
        yield sample(cls(1), rand(0, 2), dims="n 2")
        yield wrong(cls(-1), rand(3), code="op-arguments", match="-1 times")
        yield wrong(cls(2, axis=2), rand(3, 2), code="op-axis", match="2")


@define_op
class Tile(Op):
    """Repeat the whole tensor `repeats` times along each axis, as `numpy.tile`. Axes and repeats are aligned at the
    right; missing repeats are 1."""

    name = "tile"
    mixed = "follow"
    repeats: tuple[int, ...] | int

    def times(self, ndim: int) -> tuple[int, ...]:
        """The repeats of each axis of the result, for a tensor of `ndim` axes."""
        given = (self.repeats,) if isinstance(self.repeats, int) else self.repeats
        return (1,) * (ndim - len(given)) + given

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        times = self.times(data.ndim)
        d.require(min(times, default=1) >= 0, f"cannot repeat {min(times, default=1)} times",
                  arg="repeats")  # fmt: skip
        dims = (Dim.of(1),) * (len(times) - data.ndim) + data.dims
        return TensorType(tuple(s * r for s, r in zip(dims, times, strict=True)), data.dtype)

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        sizes, new = te.dims(data), out.ndim - len(data.shape)
        # An empty tensor is never read, but LLVM may hoist the division above the check.
        wraps = [te.dim(maximum(size, 1)) for size in sizes]
        once = [r == 1 for r in self.times(len(sizes))[new:]]

        def element(*i: Any) -> Any:
            places = zip(i[new:], wraps, once, strict=True)
            return data(*(v if same else v % size for v, size, same in places))

        return te.compute(out.dims, element, "tile")

    def reference(self, data: np.ndarray) -> np.ndarray:
        return np.tile(data, self.repeats)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (data,) = args
        dims = b.dims(data)
        times = self.times(len(dims))
        dims = (*(Dim.of(1),) * (len(times) - len(dims)), *dims)
        shape = [size for pair in zip(times, dims, strict=True) for size in pair]
        parts = b.reshape(ct, tuple(shape))
        return [b.reshape(b.sum(parts, tuple(range(0, len(shape), 2))), b.dims(data))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((2, 3)), rand(2, 3), dims="n m")
        yield sample(cls(2), rand(2, 3), dims="n m")
        yield sample(cls((2, 1, 2)), rand(3, dtype="int64"), dims="n")
        yield sample(cls((2,)), rand(0, 2), dims="n 2")
        yield sample(cls((0, 2)), rand(2, 3), dims="n m")
        yield sample(cls((2, 2)), rand())
        yield sample(cls(()), rand(2), dims="n")
        yield wrong(cls((2, -1)), rand(2, 3), code="op-arguments", match="-1 times")
