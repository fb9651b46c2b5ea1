"""Transposed convolutions over one, two and three spatial axes (`R.nn.conv2d_transpose`, …): the gradient of a
convolution with respect to its input, and the upsampling layer of decoders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import dim_op, maximum
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Sample, define_op, rand, sample, wrong
from relaxpy.op.conv import PLAIN, ConvolutionLike, sum_dtype
from relaxpy.op.data_layout import check_per_axis, inside, padding_pairs, per_axis
from relaxpy.op.deduction import Deduction


@dataclass(frozen=True)
class TransposedConvolution(ConvolutionLike):
    """Transposed convolution: element i of data, multiplied by weight[k], is added to element i * stride + k * dilation
    - padding of the result, for each k of the kernel."""

    strides: tuple[int, ...] | int = 1
    """Stride: one number, or one for each spatial axis."""
    padding: tuple[int, ...] | int = 0
    """Elements cropped at the ends: one number, one for each spatial axis, or all before and then all after."""
    output_padding: tuple[int, ...] | int = 0
    """Additional elements at the end of each axis of the result; less than the stride or the dilation."""
    dilation: tuple[int, ...] | int = 1
    """Distance of the kernel's elements: one number, or one for each spatial axis."""
    groups: int = 1
    """Number of channel groups; a group's outputs depend only on the inputs of that group."""
    data_layout: str = ""
    kernel_layout: str = ""
    out_layout: str | None = None
    """Layout of the result; None: the layout of data."""
    out_dtype: DType | None = None
    """Dtype of the result; None: the dtype of data."""

    def deduce(self, d: Deduction, data: KnownTensor, weight: KnownTensor) -> TensorType:
        self.check(d, data, weight)
        dtype = self.result_dtype(d, data, weight)
        x, w, _ = self.layouts()
        sizes, kernel = x.sizes(data.dims), w.sizes(weight.dims)
        d.same_dim(sizes["C"], kernel["I"], "channels of data and of weight differ", arg="weight")
        self.check_divides(d, kernel["I"], "channels of data")
        check_per_axis(d, self.output_padding, len(self.spatial), "output_padding", least=0)
        result = {"N": sizes["N"], "C": kernel["O"] * self.groups}
        for s, stride, dilation, (before, after), extra in self.per_letter():
            d.require(
                extra < max(stride, dilation),
                f"output_padding must be less than the stride or the dilation, got {extra} along {s}",
                arg="output_padding",
            )
            added = (kernel[s] - 1) * dilation + 1 + extra - before - after
            result[s] = (sizes[s] - 1) * stride + added
            d.ensure(
                dim_op("and", dim_op("le", 1, kernel[s]), dim_op("le", 0, result[s])),
                f"the padding leaves an empty result along {s}: size {result[s]}",
                arg="data",
            )
        return TensorType(self.placed(d, result), dtype)

    def per_letter(self) -> list[tuple[str, int, int, tuple[int, int], int]]:
        """Letter, stride, dilation, padding and output padding of each spatial axis."""
        count = len(self.spatial)
        numbers = (self.strides, self.dilation, self.output_padding)
        strides, dilation, extra = (per_axis(value, count) for value in numbers)
        pairs = padding_pairs(self.padding, count)
        return list(zip(self.spatial, strides, dilation, pairs, extra, strict=True))

    def legalize(self, out: KnownTensor, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        x, w, o = self.layouts()
        sizes, kernel = x.sizes(te.dims(data)), w.sizes(te.dims(weight))
        wide = sum_dtype(str(data.dtype), str(out.dtype))
        in_group = kernel["I"] // self.groups
        k = {s: te.reduce_axis(kernel[s], f"k{s}") for s in self.spatial}
        ci = te.reduce_axis(in_group, "kI")
        group_size = te.dim(maximum(kernel["O"], 1))

        def element(*i: Any) -> Any:
            at, group = o.named(i), te.dim(0)
            channel = o.place("C", at, PLAIN, "C")["C"]
            if self.groups > 1:
                group, channel = channel // group_size, channel % group_size
            come_from = group * te.dim(in_group) + ci
            place, even = {"N": at["N"], **x.split("C", come_from)}, []
            for s, stride, dilation, (before, _), _ in self.per_letter():
                reached = at[s] + before - k[s] * dilation
                place[s] = reached // stride
                even.append((reached % stride, 1))  # data has an element at this distance
            there = inside([*even, *((place[s], sizes[s]) for s in self.spatial)])
            value = te.cast(data(*x.order(place)), wide)
            factor = te.cast(
                weight(*w.order({**k, **w.split("I", come_from), **w.split("O", channel)})), wide
            )
            nothing = te.const(0, wide)
            return te.sum(te.if_then_else(there, value * factor, nothing), [ci, *k.values()])

        return self.summed(out, te.compute(out.dims, element, "transposed_convolution"))

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        layout, kernel_layout, out_layout = self.layouts()
        dtype = self.out_dtype or DType(data.dtype)
        wide = sum_dtype(str(DType(data.dtype)), dtype).numpy
        x = layout.merged(data, f"NC{self.spatial}").astype(wide)
        w = kernel_layout.merged(weight, f"IO{self.spatial}").astype(wide)
        axes = list(zip(x.shape[2:], w.shape[2:], self.per_letter(), strict=True))
        sizes = [
            (size - 1) * stride + (k - 1) * dilation + 1 + extra
            for size, k, (_, stride, dilation, _, extra) in axes
        ]
        result = np.zeros((len(x), w.shape[1] * self.groups, *(max(s, 0) for s in sizes)), wide)
        for k in np.ndindex(*w.shape[2:]):
            places = [
                np.arange(size) * stride + at * dilation
                for at, (size, _, (_, stride, dilation, _, _)) in zip(k, axes, strict=True)
            ]
            for group in range(self.groups):
                ours = slice(group * len(w) // self.groups, (group + 1) * len(w) // self.groups)
                theirs = np.arange(group * w.shape[1], (group + 1) * w.shape[1])
                result[np.ix_(np.arange(len(x)), theirs, *places)] += np.einsum(
                    "nc...,co->no...", x[:, ours], w[(ours, slice(None), *k)]
                )
        cut = [
            slice(before, size - after)
            for size, (_, _, (_, _, _, (before, after), _)) in zip(sizes, axes, strict=True)
        ]
        kept = result[(slice(None), slice(None), *cut)]
        return out_layout.divided(kept, f"NC{self.spatial}").astype(dtype.numpy)


@define_op
class Conv1dTranspose(TransposedConvolution):
    """1-D transposed convolution: each element of data times the weight is added to a window of the result. `strides`
    is the distance of windows, `dilation` that of the elements of a window; `padding` elements are cropped at the
    ends."""

    name = "nn.conv1d_transpose"
    spatial = "W"
    data_layout: str = "NCW"
    kernel_layout: str = "IOW"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, w = rand(2, 3, 4), rand(3, 2, 3)
        yield sample(cls(), x, w, dims="n 3 w, 3 2 3", atol=1e-5)
        yield sample(cls(2, 1, 1), x, w, dims="n c w, c o k", atol=1e-5)
        yield sample(cls(3, (0, 2), dilation=2), x, w, dims="n 3 w, 3 2 3", atol=1e-5)
        yield sample(cls(2, groups=2), rand(1, 4, 3), rand(4, 2, 2), dims="n 4 w, 4 2 2", atol=1e-5)
        last = cls(2, data_layout="NWC", kernel_layout="WOI")
        yield sample(last, rand(1, 3, 2), rand(3, 4, 2), dims="n w c, 3 4 c", atol=1e-5)
        yield sample(cls(), rand(1, 2, 0), rand(2, 2, 3), dims="n 2 w, 2 2 3")
        yield wrong(cls(), x, rand(2, 3, 3), code="shape-mismatch", match="3 and 2")
        yield wrong(cls(padding=5), x, w, code="shape-mismatch", match="leaves an empty result")
        yield wrong(cls(2, output_padding=2), x, w, code="op-arguments", match="output_padding")


@define_op
class Conv2dTranspose(TransposedConvolution):
    """2-D transposed convolution: each element of data times the weight is added to a window of the result. `strides`
    is the distance of windows, `dilation` that of the elements of a window; `padding` elements are cropped at the
    ends."""

    name = "nn.conv2d_transpose"
    spatial = "HW"
    data_layout: str = "NCHW"
    kernel_layout: str = "IOHW"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, w = rand(1, 2, 3, 4), rand(2, 3, 3, 2)
        yield sample(cls(), x, w, dims="n 2 h w, 2 3 3 2", atol=1e-5)
        yield sample(cls(2, 1, 1), x, w, dims="n c h w, c o i j", atol=1e-5)
        yield sample(cls((1, 2), (0, 1, 1, 0), (0, 1)), x, w, dims="n 2 h w, 2 3 3 2", atol=1e-5)
        yield sample(cls(groups=2, strides=2), x, w, dims="n 2 h w, 2 o 3 2", atol=1e-5)
        nhwc = cls(2, data_layout="NHWC", kernel_layout="HWOI", out_layout="NCHW")
        yield sample(nhwc, rand(1, 2, 3, 2), rand(2, 2, 3, 2), dims="n h w 2, 2 2 3 2", atol=1e-5)
        x8, w8 = rand(1, 2, 2, 2, dtype="int8", low=-99, high=99), rand(2, 2, 2, 2, dtype="int8")
        yield sample(cls(2, out_dtype=DType("int32")), x8, w8, dims="n 2 h w, 2 2 2 2")
        h = x.astype(np.float16), w.astype(np.float16)
        yield sample(cls(2), *h, dims="n 2 h w, 2 3 3 2", rtol=2e-3, atol=1e-2)
        packed = cls(2, 1, 1, data_layout="NCHW2c", kernel_layout="IOHW2i3o", out_layout="NHWC3c")
        x5, w6 = rand(2, 3, 3, 4, 2), rand(3, 1, 3, 2, 2, 3)
        yield sample(packed, x5, w6, dims="n 3 h w 2, 3 1 3 2 2 3", atol=1e-5)
        yield sample(packed, x5, w6, dims="n c h w 2, c o 3 2 2 3", atol=1e-5)
        last = cls(3, groups=2, data_layout="NCHW2c", out_layout="NCHW")
        yield sample(last, x5[:, :2], rand(4, 3, 2, 2), dims="n 2 h w 2, 4 o 2 2", atol=1e-5)
        first = cls(groups=2, kernel_layout="IOHW2i", out_layout="NCHW4c")
        x4, w5 = rand(1, 4, 3, 2), rand(2, 2, 2, 2, 2)
        yield sample(first, x4, w5, dims="n 4 h w, 2 2 2 2 2", atol=1e-5)
        yield wrong(cls(out_layout="NCHW2c"), x, w, code="shape-mismatch", match="blocks of 2: 3")
        yield wrong(cls(data_layout="NCHW4c"), x, w, code="op-rank", match="data must have 5")
        yield wrong(cls(), x, rand(3, 2, 3, 2), code="shape-mismatch", match="channels")
        yield wrong(cls(groups=3), x, w, code="shape-mismatch", match="3 groups")
        yield wrong(cls(), x, rand(2, 3, 3), code="op-rank", match="weight")
        yield wrong(cls(data_layout="NCWW"), x, w, code="op-arguments", match="data_layout")
        yield wrong(cls(), x, h[1], code="op-dtype", match="float16")


@define_op
class Conv3dTranspose(TransposedConvolution):
    """3-D transposed convolution: each element of data times the weight is added to a window of the result. `strides`
    is the distance of windows, `dilation` that of the elements of a window; `padding` elements are cropped at the
    ends."""

    name = "nn.conv3d_transpose"
    spatial = "DHW"
    data_layout: str = "NCDHW"
    kernel_layout: str = "IODHW"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, w = rand(1, 2, 2, 3, 2), rand(2, 2, 2, 1, 3)
        yield sample(cls(), x, w, dims="n 2 d h w, 2 2 2 1 3", atol=1e-5)
        yield sample(cls(2, (0, 0, 1), (1, 0, 1)), x, w, dims="n c 2 h w, c o 2 1 3", atol=1e-5)
        yield wrong(cls(), x, rand(3, 2, 2, 1, 3), code="shape-mismatch", match="channels")
        yield wrong(cls(strides=(1, 2)), x, w, code="op-arguments", match="strides")
