"""Where the maximum of each window is (`R.nn.max_pool2d_indices`, …): the second result of torch's and ONNX's max
pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Sample, define_op, rand, sample, wrong
from relaxpy.op.data_layout import inside
from relaxpy.op.deduction import Deduction
from relaxpy.op.pool import MaxPooling
from relaxpy.op.precision import widened
from relaxpy.op.rule import INTEGERS

_NONE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class MaxPoolingIndices(MaxPooling):
    """The index in its plane, in row-major order over the spatial axes, of the maximum of each window, int64: the first
    of equal elements, or the first NaN. The greatest int64 for a window outside of data."""

    no_vjp = INTEGERS

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        return TensorType(super().deduce(d, data).shape, "int64")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        found = expect(TensorType, super().deduce_unranked(d, args))
        return TensorType(None, "int64", found.ndim)

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        lowest = te.const(DType(str(data.dtype)).limits[0], str(data.dtype))
        sizes = self.layouts()[0].named(te.dims(data))
        first, second = self.loops(), self.loops()

        def largest(*i: Any) -> Any:
            value = te.widen(self.read(data, lowest, i, first))
            return te.reduce_max(value, list(first.values()))

        best = te.compute(out.dims, largest, "best")

        def place(*i: Any) -> Any:
            value, target = te.widen(self.read(data, lowest, i, second)), best(*i)
            hit = te.equal(value, target)
            if te.dtype_of(value).is_float:
                hit = te.logical_or(hit, te.logical_and(te.isnan(value), te.isnan(target)))
            at, offset, limits = self.placed(i), te.dim(0), []
            for w in self.windows():
                position = w.place(at[w.letter], second[w.letter])
                limits.append((position, sizes[w.letter]))
                offset = offset * te.dim(sizes[w.letter]) + position
            hit = te.logical_and(inside(limits), hit)
            chosen = te.select(hit, offset, te.const(_NONE, "int64"))
            return te.reduce_min(chosen, list(second.values()))

        return te.compute(out.dims, place, "max_pool_indices")

    def reference(self, data: np.ndarray) -> np.ndarray:
        x = widened(self.plain(data))
        source = x if x.size else np.zeros([max(n, 1) for n in x.shape], x.dtype)
        best: Any = None
        found: Any = None
        for index, within, _ in self.places(x.shape):
            value = np.broadcast_to(source[index], (*x.shape[:2], *within.shape))
            flat = np.zeros((1, 1), np.int64)
            for places, size in zip(index[2:], x.shape[2:], strict=True):
                flat = flat * size + places
            flat = np.broadcast_to(flat, value.shape)
            if best is None:
                best, found = np.zeros_like(value), np.full(value.shape, _NONE)
            better = (value > best) | (np.isnan(value) & ~np.isnan(best)) | (found == _NONE)
            better &= within
            best, found = np.where(better, value, best), np.where(better, flat, found)
        return np.ascontiguousarray(self.result(found))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for s in super().samples():
            if s.op.layout == s.op.out_layout or s.op.out_layout is None:
                yield s
        few = rand(2, 2, *(6, 5, 4)[: len(cls.spatial)], dtype="int32", low=0, high=2)
        dims = " ".join(("n", "c", *cls.spatial.lower()))
        yield sample(cls(3, 2, 1), few, dims=dims)
        yield wrong(cls(), few.astype(bool), code="op-dtype", match="bool")


@define_op
class MaxPool1dIndices(MaxPoolingIndices):
    """Where the maximum of each window of `nn.max_pool1d` is: the first of equal elements, or the first NaN, int64."""

    name = "nn.max_pool1d_indices"
    spatial = "W"
    layout: str = "NCW"


@define_op
class MaxPool2dIndices(MaxPoolingIndices):
    """Where the maximum of each window of `nn.max_pool2d` is, in row-major order over its plane: the first of equal
    elements, or the first NaN, int64."""

    name = "nn.max_pool2d_indices"
    spatial = "HW"
    layout: str = "NCHW"


@define_op
class MaxPool3dIndices(MaxPoolingIndices):
    """Where the maximum of each window of `nn.max_pool3d` is, in row-major order over its volume: the first of equal
    elements, or the first NaN, int64."""

    name = "nn.max_pool3d_indices"
    spatial = "DHW"
    layout: str = "NCDHW"
