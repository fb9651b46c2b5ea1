"""Neural-network operators that only move elements: `R.nn.batch_flatten`, `R.nn.pixel_shuffle`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import dim_op, product
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.row_major import reindexed
from relaxpy.op.rule import Cotangent, Rule


@define_op
class BatchFlatten(Op):
    """Flatten all axes except the first, in row-major order."""

    name = "nn.batch_flatten"
    mixed = "follow"

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        d.require(
            data.ndim >= 2,
            f"data must have at least 2 dimensions, got {data.ndim}", arg="data", code="op-rank",
        )  # fmt: skip
        return TensorType((data.dims[0], product(data.dims[1:])), data.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (data,) = args
        data = expect(TensorType, data)
        return TensorType(None, data.dtype, 2)

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        return reindexed(out, data, "batch_flatten")

    def reference(self, data: np.ndarray) -> np.ndarray:
        return data.reshape(len(data), int(np.prod(data.shape[1:])))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.reshape(ct, b.dims(args[0]))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(2, 3, 4), dims="n 3 4")
        yield sample(cls(), rand(2, 3, 4, 2), dims="n c h 2")
        yield sample(cls(), rand(3, 5, dtype="int32"), dims="n m")
        yield sample(cls(), rand(0, 3, 2, dtype="bool"), dims="n m 2")
        yield wrong(cls(), rand(4), code="op-rank", match="2 dimensions")


@define_op
class PixelShuffle(Op):
    """Pixel shuffle: rearrange (…, C * r * r, H, W) to (…, C, H * r, W * r). Channel c * r * r + i * r + j holds the
    pixels at row i and column j of each r × r square (Shi et al., 2016)."""

    name = "nn.pixel_shuffle"
    mixed = "follow"
    upscale_factor: int
    """The factor r: the side of a square."""

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        d.require(
            data.ndim >= 3,
            f"data must have at least 3 dimensions, got {data.ndim}", arg="data", code="op-rank",
        )  # fmt: skip
        r = self.upscale_factor
        d.require(r > 0, f"upscale_factor must be positive, got {r}", arg="upscale_factor")
        *outer, channels, height, width = data.dims
        d.ensure(
            dim_op("eq", channels % (r * r), 0),
            f"{channels} channels cannot be divided into squares of {r} * {r} pixels",
            arg="data",
        )
        return TensorType((*outer, channels // (r * r), height * r, width * r), data.dtype)

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        r = self.upscale_factor

        def element(*i: Any) -> Any:
            *outer, channel, y, x = i
            source = channel * (r * r) + y % r * r + x % r
            return te.element(data(*outer, source, y // r, x // r))

        return te.compute(out.dims, element, "pixel_shuffle")

    def reference(self, data: np.ndarray) -> np.ndarray:
        r = self.upscale_factor
        *outer, channels, height, width = data.shape
        squares = data.reshape(*outer, channels // (r * r), r, r, height, width)
        pixels = np.moveaxis(squares, (-4, -3), (-3, -1))  # (…, H, r, W, r)
        return pixels.reshape(*outer, channels // (r * r), height * r, width * r)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        (data,) = args
        r, (*batch, channels, height, width) = self.upscale_factor, b.dims(data)
        n = len(batch)
        parts = b.reshape(ct, (*batch, channels // (r * r), height, r, width, r))
        moved = b.permute_dims(parts, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
        return [b.reshape(moved, b.dims(data))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(2), rand(1, 8, 2, 3), dims="n 8 h w")
        yield sample(cls(2), rand(2, 4, 1, 3, dtype="int8"), dims="n c 1 w")
        yield sample(cls(3), rand(9, 2, 2), dims="9 h w")
        yield sample(cls(1), rand(2, 3, 2, 2), dims="n 3 h 2")
        yield wrong(cls(2), rand(1, 6, 2, 2), code="shape-mismatch", match="6 channels")
        yield wrong(cls(2), rand(4, 2), code="op-rank", match="3 dimensions")
        yield wrong(cls(0), rand(1, 4, 2, 2), code="op-arguments", match="upscale_factor")
