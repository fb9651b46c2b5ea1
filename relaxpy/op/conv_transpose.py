"""Transposed convolutions over one, two and three spatial axes (`R.nn.conv2d_transpose`, …): the gradient of a
convolution with respect to its input, and the upsampling layer of decoders.

They are computed as convolutions. Along an axis with stride s, the elements of the result whose places are equal modulo
s, a *phase*, see every s-th element of the kernel only: each phase is a convolution of the data with those elements,
reversed (Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016, arXiv 1609.07009). If the
stride divides the kernel, phases are channels of one convolution, otherwise each has its own; the result interleaves
them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr, ShapeExpr, Tuple
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Sample, define_op, rand, sample, wrong
from relaxpy.op.conv import PLAIN, Conv1d, Conv2d, Conv3d, Convolution, ConvolutionLike, sum_dtype
from relaxpy.op.data_layout import check_per_axis, inside, padding_pairs, per_axis, rearranged
from relaxpy.op.deduce import known_tensor
from relaxpy.op.deduction import Deduction
from relaxpy.op.join import Stack
from relaxpy.op.manipulate import PermuteDims
from relaxpy.op.reverse import Flip
from relaxpy.op.row_major import Reshape
from relaxpy.op.rule import Cotangent, NoRule, Rule
from relaxpy.op.slice import StridedSlice

Emit = Callable[..., Any]
MOST_PHASES = 16
"""More than these have no convolutions of their own."""


@dataclass(frozen=True)
class Phases:
    """The phases along an axis."""

    stride: int
    taps: tuple[int, ...]
    """Elements of the kernel that each phase sees."""
    first: int
    """The multiple of the stride that the first place of the result belongs to."""
    after: int
    """Zeros after the data."""
    cut: tuple[int, int]
    """Places of the interleaved phases before and after the result."""

    @staticmethod
    def of(kernel: int, stride: int, before: int, after: int, extra: int) -> Phases | None:
        """Those of a transposed convolution; None where convolutions would crop the data, or a phase sees nothing."""
        taps = tuple(-(-(kernel - r) // stride) for r in range(stride))
        first, zeros = before // stride, (kernel - 1 + extra - after) // stride
        if taps[-1] < 1 or taps[-1] - 1 < first or zeros < 0:
            return None
        begin = before - first * stride
        tail = stride * (1 + zeros) - kernel - extra + after
        return Phases(stride, taps, first, zeros, (begin, tail))

    def padding(self, phase: int) -> tuple[int, int]:
        """Zeros before and after the data."""
        return self.taps[phase] - 1 - self.first, self.after


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
    convolution: ClassVar[type[Convolution]]
    """The convolution over the same axes."""
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
                dim_op("and", dim_op("le", 1, kernel[s]), dim_op("le", 1, result[s])),
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

    def decomposes(self, data: KnownTensor, weight: KnownTensor) -> bool:
        return self._phases(weight.dims) is not None

    def _phases(self, weight: tuple[Dim, ...]) -> list[Phases] | None:
        """The phases along each axis. None for blocks of channels, for sizes that are not known, and for what would be
        no ordinary convolutions."""
        kernel = self.layouts()[1].sizes(weight)
        if any(layout.blocks for layout in self.layouts()):
            return None
        if self.groups > 1 and kernel["I"].value is None:
            return None
        found: list[Phases] = []
        for s, stride, dilation, (before, after), extra in self.per_letter():
            size = kernel[s].value
            if size is None or (dilation > 1 and size > 1):
                return None
            phases = Phases.of(size, stride, before, after, extra)
            if phases is None:
                return None
            found.append(phases)
        uniform = all(len(set(each.taps)) == 1 for each in found)
        return found if uniform or prod(each.stride for each in found) <= MOST_PHASES else None

    def decompose(self, emit: Emit, data: Expr, weight: Expr) -> Expr:
        x, w, o = self.layouts()
        axes = self._phases(_dims(weight))
        assert axes is not None
        count = len(axes)
        data = _permuted(emit, data, x.letters, f"NC{self.spatial}")
        weight = _permuted(emit, weight, w.letters, f"IO{self.spatial}")
        sizes = _dims(weight)
        grouped = (Dim.of(self.groups), sizes[0] // self.groups, *sizes[1:])
        weight = emit(Reshape()(weight, ShapeExpr(grouped)), "grouped")
        order = (0, 2, 1, *range(3, 3 + count))
        weight = emit(PermuteDims(order)(weight), "grouped")  # group, output, input, kernel
        phases = list(itertools.product(*(range(each.stride) for each in axes)))
        weights = [self._seen(emit, weight, axes, phase) for phase in phases]
        sums: Any
        if len({tuple(_dims(each)) for each in weights}) == 1:
            if len(phases) > 1:
                weight = emit(Stack(2)(Tuple(tuple(weights))), "phases")
            sums = self._sums(
                emit, data, weight if len(phases) > 1 else weights[0], axes, phases[0]
            )
        else:
            each = [
                self._sums(emit, data, own, axes, phase)
                for own, phase in zip(weights, phases, strict=True)
            ]
            sums = emit(Stack(2)(Tuple(tuple(each))), "phases")
        n, places = _dims(sums)[0], _dims(sums)[-count:]
        strides = [Dim.of(each.stride) for each in axes]
        outputs = sizes[1] * self.groups
        if len(phases) > 1:
            sums = emit(Reshape()(sums, ShapeExpr((n, outputs, *strides, *places))), "phases")
            mixed = [a for axis in range(count) for a in (2 + count + axis, 2 + axis)]
            sums = emit(PermuteDims((0, 1, *mixed))(sums), "phases")
            whole = [size * stride for size, stride in zip(places, strides, strict=True)]
            sums = emit(Reshape()(sums, ShapeExpr((n, outputs, *whole))), "phases")
            sums = _cropped(emit, sums, [each.cut for each in axes])
        return _permuted(emit, sums, f"NC{self.spatial}", o.letters)

    def _seen(self, emit: Emit, weight: Any, axes: list[Phases], phase: tuple[int, ...]) -> Any:
        """The elements of the kernel that a phase sees, reversed."""
        for axis, (each, first) in enumerate(zip(axes, phase, strict=True), 3):
            if each.stride > 1:
                size = _dims(weight)[axis]
                ends = (ShapeExpr((each_end,)) for each_end in (axis, first, size, each.stride))
                weight = emit(StridedSlice()(weight, *ends), "seen")
            weight = emit(Flip(axis)(weight), "seen")
        return weight

    def _sums(
        self, emit: Emit, data: Expr, weight: Any, axes: list[Phases], phase: tuple[int, ...]
    ) -> Any:
        """The convolution of a phase, or of all."""
        count = len(axes)
        own = _dims(weight)
        outputs = own[0]
        for size in own[1 : len(own) - count - 1]:
            outputs = outputs * size
        shape = ShapeExpr((outputs, *own[-count - 1 :]))
        weight = emit(Reshape()(weight, shape), "weight")
        pairs = [each.padding(at) for each, at in zip(axes, phase, strict=True)]
        padding = (*(before for before, _ in pairs), *(after for _, after in pairs))
        convolution = self.convolution(
            padding=padding, groups=self.groups, out_dtype=self.out_dtype
        )
        return emit(convolution(data, weight), "sums")

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

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, weight = args
        layouts = self.layouts()
        x, w, o = (layout.letters for layout in layouts)
        plain, wide = f"NC{self.spatial}", b.dtype(ct)
        kernel = [layouts[1].sizes(b.dims(weight))[s].value for s in self.spatial]
        longer = any(extra >= stride for _, stride, _, _, extra in self.per_letter())
        if any(layout.blocks for layout in layouts) or None in kernel or longer:
            reason = "has a rule for kernels of known size, without blocks of channels and longer results"
            return [NoRule(f"{self.name} {reason}")] * 2
        # It is the transpose of a convolution, whose weight has inputs and outputs swapped.
        plainly = self.convolution(
            self.strides, self.padding, self.dilation, self.groups, plain, f"OI{self.spatial}"
        )
        given = b.astype(rearranged(b, data, x, plain), wide)
        found, seen = rearranged(b, ct, o, plain), rearranged(b, weight, w, f"IO{self.spatial}")
        of_data = b.emit(plainly(found, b.astype(seen, wide)))
        of_weight = plainly.weight_cotangent(b, found, kernel, given)
        return [
            b.astype(rearranged(b, of_data, plain, x), b.dtype(data)),
            b.astype(rearranged(b, of_weight, f"IO{self.spatial}", w), b.dtype(weight)),
        ]


def _dims(value: Expr) -> tuple[Dim, ...]:
    return known_tensor(value).dims


def _permuted(emit: Emit, value: Any, letters: str, wanted: str) -> Any:
    order = tuple(map(letters.index, wanted))
    return (
        value if order == tuple(range(len(order))) else emit(PermuteDims(order)(value), "permuted")
    )


def _cropped(emit: Emit, value: Any, cuts: list[tuple[int, int]]) -> Any:
    """Without so many places before and after each of the last axes."""
    dims = _dims(value)
    rank = len(dims)
    places = [(rank - len(cuts) + i, *cut) for i, cut in enumerate(cuts) if any(cut)]
    if not places:
        return value
    axes, begins, ends = zip(*((a, b, dims[a] - e) for a, b, e in places), strict=True)
    slice = StridedSlice(assume_inbound=True)
    return emit(slice(value, ShapeExpr(axes), ShapeExpr(begins), ShapeExpr(ends)), "cropped")


@define_op
class Conv1dTranspose(TransposedConvolution):
    """1-D transposed convolution: each element of data times the weight is added to a window of the result. `strides`
    is the distance of windows, `dilation` that of the elements of a window; `padding` elements are cropped at the
    ends."""

    name = "nn.conv1d_transpose"
    spatial = "W"
    convolution = Conv1d
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
        yield wrong(cls(2), rand(2, 3, 0), rand(3, 2, 2), code="shape-mismatch", match="W: size 0")
        yield wrong(cls(2, output_padding=2), x, w, code="op-arguments", match="output_padding")


@define_op
class Conv2dTranspose(TransposedConvolution):
    """2-D transposed convolution: each element of data times the weight is added to a window of the result. `strides`
    is the distance of windows, `dilation` that of the elements of a window; `padding` elements are cropped at the
    ends."""

    name = "nn.conv2d_transpose"
    spatial = "HW"
    convolution = Conv2d
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
    convolution = Conv3d
    data_layout: str = "NCDHW"
    kernel_layout: str = "IODHW"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, w = rand(1, 2, 2, 3, 2), rand(2, 2, 2, 1, 3)
        yield sample(cls(), x, w, dims="n 2 d h w, 2 2 2 1 3", atol=1e-5)
        yield sample(cls(2, (0, 0, 1), (1, 0, 1)), x, w, dims="n c 2 h w, c o 2 1 3", atol=1e-5)
        yield wrong(cls(), x, rand(3, 2, 2, 1, 3), code="shape-mismatch", match="channels")
        yield wrong(cls(strides=(1, 2)), x, w, code="op-arguments", match="strides")
