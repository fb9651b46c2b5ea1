"""Convolutions over one, two and three spatial axes (`R.nn.conv2d`, …), in any layout. Sums are accumulated in float32
for narrower floats, and in the dtype of the result for integers. Transposed convolutions are in `conv_transpose.py`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum, product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.data_layout import (
    Layout,
    arranged,
    check_packed_layout,
    check_padding,
    check_per_axis,
    inside,
    padded_sizes,
    padding_pairs,
    per_axis,
    rearranged,
)
from relaxpy.op.deduction import Deduction
from relaxpy.op.pair import Pair
from relaxpy.op.rule import Cotangent, NoRule, Rule, same_dims


class ConvolutionLike(Op):
    """The common part of convolutions and transposed convolutions: layouts, groups and dtypes."""

    mixed = "always"

    spatial: ClassVar[str]
    """Letters of the spatial axes."""
    strides: tuple[int, ...] | int
    padding: tuple[int, ...] | int
    dilation: tuple[int, ...] | int
    groups: int
    data_layout: str
    kernel_layout: str
    out_layout: str | None
    out_dtype: DType | None

    def layouts(self) -> tuple[Layout, Layout, Layout]:
        """The layouts of data, weight and result."""
        result = self.data_layout if self.out_layout is None else self.out_layout
        return Layout.of(self.data_layout), Layout.of(self.kernel_layout), Layout.of(result)

    def check(self, d: Deduction, data: KnownTensor, weight: KnownTensor) -> None:
        """Refuse wrong attributes and ranks."""
        count = len(self.spatial)
        check_packed_layout(d, self.data_layout, f"NC{self.spatial}", "data_layout", data)
        check_packed_layout(d, self.kernel_layout, f"OI{self.spatial}", "kernel_layout", weight)
        if self.out_layout is not None:
            check_packed_layout(d, self.out_layout, f"NC{self.spatial}", "out_layout", None)
        check_per_axis(d, self.strides, count, "strides")
        check_per_axis(d, self.dilation, count, "dilation")
        check_padding(d, self.padding, count)
        d.require(self.groups > 0, f"groups must be positive, got {self.groups}", arg="groups")

    def check_divides(self, d: Deduction, channels: Dim, what: str) -> None:
        """Require the number of channels to be divisible by the number of groups."""
        d.ensure(
            dim_op("eq", channels % self.groups, 0),
            f"{what} cannot be divided into {self.groups} groups: {channels}",
            arg="groups",
        )

    def result_dtype(self, d: Deduction, data: KnownTensor, weight: KnownTensor) -> DType:
        """The dtype of the result: `out_dtype`, or the common dtype of the arguments. Integer dtypes may differ if
        `out_dtype` is given."""
        for name, x in (("data", data), ("weight", weight)):
            d.require(
                x.dtype != "bool", f"{name} must be numbers, got bool", arg=name, code="op-dtype"
            )
        if self.out_dtype is None or data.dtype.is_float or weight.dtype.is_float:
            d.same_dtype(data, weight)
        dtype = self.out_dtype or data.dtype
        d.require(
            dtype.is_float or (dtype.is_int and not dtype.is_bool and data.dtype.is_int),
            f"the result dtype for {data.dtype} cannot be {dtype}", arg="out_dtype", code="op-dtype",
        )  # fmt: skip
        return dtype

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        known = (a.dtype for a in args if isinstance(a, TensorType))
        return TensorType(None, self.out_dtype or next(known), len(self.layouts()[2].letters))

    def placed(self, d: Deduction, sizes: dict[str, Dim]) -> tuple[Dim, ...]:
        """Sizes by letter, in the order of the result's layout."""
        return arranged(d, sizes, self.layouts()[2], "channels of the result", "weight")

    def summed(self, out: KnownTensor, sums: te.Tensor) -> te.Tensor:
        """Accumulated sums converted to the dtype of the result."""
        if str(sums.dtype) == out.dtype:
            return sums
        return te.compute(out.dims, lambda *i: te.cast(sums(*i), out.dtype), "narrowed")


def sum_dtype(dtype: str, out_dtype: str) -> DType:
    """The accumulation dtype of products of elements of `dtype`."""
    if not DType(out_dtype).is_float:
        return DType(out_dtype)
    return DType("float64" if "float64" in (dtype, out_dtype) else "float32")


PLAIN = Layout("C")
"""Channels that are not divided into blocks."""


@dataclass(frozen=True)
class Convolution(ConvolutionLike):
    """Convolution with zero padding: element o of the result is the sum of data[o * stride + k * dilation - padding] *
    weight[k] over k and over the input channels of its group."""

    strides: tuple[int, ...] | int = 1
    """Stride: one number, or one for each spatial axis."""
    padding: tuple[int, ...] | int = 0
    """Zero padding of data: one number, one for each spatial axis, or all before and then all after."""
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

    def pairs(self) -> Mapping[str, Pair]:
        channel = self.layouts()[1].letters.index("O")
        return {"data": Pair("uint8", static=True), "weight": Pair(axis=channel, weight=True)}

    def deduce(self, d: Deduction, data: KnownTensor, weight: KnownTensor) -> TensorType:
        self.check(d, data, weight)
        dtype = self.result_dtype(d, data, weight)
        x, w, _ = self.layouts()
        sizes, kernel = x.sizes(data.dims), w.sizes(weight.dims)
        d.same_dim(
            sizes["C"], kernel["I"] * self.groups, "channels of data and of weight * groups differ",
            arg="weight",
        )  # fmt: skip
        self.check_divides(d, kernel["O"], "channels of the result")
        result = {"N": sizes["N"], "C": kernel["O"]}
        padded = padded_sizes(sizes, self.spatial, padding_pairs(self.padding, len(self.spatial)))
        for s, stride, dilation in self.per_letter():
            window = (kernel[s] - 1) * dilation + 1
            d.ensure(
                dim_op("and", dim_op("le", 1, kernel[s]), dim_op("le", window, padded[s])),
                f"the kernel does not fit into the padded data along {s}: {window} and {padded[s]}",
                arg="weight",
            )
            result[s] = (padded[s] - window) // stride + 1
        return TensorType(self.placed(d, result), dtype)

    def per_letter(self) -> list[tuple[str, int, int]]:
        """Letter, stride and dilation of each spatial axis."""
        count = len(self.spatial)
        strides, dilation = per_axis(self.strides, count), per_axis(self.dilation, count)
        return list(zip(self.spatial, strides, dilation, strict=True))

    def legalize(self, out: KnownTensor, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        x, w, o = self.layouts()
        dims = w.named(te.dims(weight))
        kernel = w.sizes(te.dims(weight))
        padded = self.padded(data)
        wide = sum_dtype(str(data.dtype), str(out.dtype))
        # In the order of the kernel's axes, in which its elements are in memory.
        k = {x: te.reduce_axis(dims[x], f"k{x}") for x in w.letters if x.upper() != "O"}
        in_group = te.dim(maximum(kernel["O"] // self.groups, 1))

        def element(*i: Any) -> Any:
            at = o.named(i)
            place = {"N": at["N"], **self.channel(at, k, kernel, in_group)}
            for s, stride, dilation in self.per_letter():
                place[s] = at[s] * stride + k[s] * dilation
            value = te.cast(padded(*x.order(place)), wide)
            factor = te.cast(weight(*w.order({**k, **o.place("C", at, w, "O")})), wide)
            return te.sum(value * factor, list(k.values()))

        return self.summed(out, te.compute(out.dims, element, "convolution"))

    def channel(
        self, at: Mapping[str, Any], k: Mapping[str, Any], kernel: Mapping[str, Dim], in_group: Any
    ) -> dict[str, Any]:
        """The indices of the channel of data that the kernel's channel `k` meets for an element of the result."""
        x, w, o = self.layouts()
        if self.groups == 1:
            return w.place("I", k, x, "C")
        if kernel["I"] == kernel["O"] // self.groups == 1:  # depthwise: each channel by itself
            return o.place("C", at, x, "C")
        (out, inner) = o.place("C", at, PLAIN, "C")["C"], w.place("I", k, PLAIN, "C")["C"]
        return x.split("C", out // in_group * te.dim(kernel["I"]) + inner)

    def padded(self, data: te.Tensor) -> te.Tensor:
        """Data with zero padding."""
        x, pairs = self.layouts()[0], padding_pairs(self.padding, len(self.spatial))
        if not any(map(any, pairs)):
            return data
        sizes = x.named(te.dims(data))
        before = {s: pair[0] for s, pair in zip(self.spatial, pairs, strict=True) if any(pair)}

        def element(*i: Any) -> Any:
            place = {letter: at - before.get(letter, 0) for letter, at in x.named(i).items()}
            within = inside((place[s], sizes[s]) for s in before)
            zero = te.const(0, str(data.dtype))
            return te.if_then_else(within, te.element(data(*x.order(place))), zero)

        return te.compute(x.order(padded_sizes(sizes, self.spatial, pairs)), element, "padded")

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        layout, kernel_layout, out_layout = self.layouts()
        dtype = self.out_dtype or DType(data.dtype)
        wide = sum_dtype(str(DType(data.dtype)), dtype).numpy
        pairs = padding_pairs(self.padding, len(self.spatial))
        x = np.pad(layout.merged(data, f"NC{self.spatial}").astype(wide), [(0, 0), (0, 0), *pairs])
        w = kernel_layout.merged(weight, f"OI{self.spatial}").astype(wide)
        steps = [(stride, dilation) for _, stride, dilation in self.per_letter()]
        sizes = [
            (size - (k - 1) * dilation - 1) // stride + 1
            for size, k, (stride, dilation) in zip(x.shape[2:], w.shape[2:], steps, strict=True)
        ]
        result = np.zeros((len(x), len(w), *sizes), wide)
        for k in np.ndindex(*w.shape[2:]):
            places = [
                np.arange(size) * stride + at * dilation
                for size, at, (stride, dilation) in zip(sizes, k, steps, strict=True)
            ]
            seen = x[np.ix_(np.arange(x.shape[0]), np.arange(x.shape[1]), *places)]
            for group in range(self.groups):
                ours = slice(group * w.shape[1], (group + 1) * w.shape[1])
                theirs = slice(group * len(w) // self.groups, (group + 1) * len(w) // self.groups)
                result[:, theirs] += np.einsum(
                    "nc...,oc->no...", seen[:, ours], w[(theirs, slice(None), *k)]
                )
        found = out_layout.divided(result, f"NC{self.spatial}")
        return np.ascontiguousarray(found).astype(dtype.numpy)

    def data_cotangent(self, b: Rule, data: Expr, weight: Expr, ct: Expr) -> Expr:
        """The transposed convolution of the result's cotangent, in layout NC and the spatial axes."""
        count = len(self.spatial)
        strides, dilation = per_axis(self.strides, count), per_axis(self.dilation, count)
        pairs, layout = padding_pairs(self.padding, count), self.layouts()[1]
        kernel, sizes = layout.sizes(b.dims(weight)), b.dims(data)[2:]
        extra: list[int] = []
        for s, size, step, apart, pair in zip(
            self.spatial, sizes, strides, dilation, pairs, strict=True
        ):
            left = (size + sum(pair) - (kernel[s] - 1) * apart - 1) % step
            extra.append(left.value if left.value is not None else step - 1)
        swap = str.maketrans("OI", "IO")
        names = f"NC{self.spatial}"
        found = getattr(b.nn, self.name.removeprefix("nn.") + "_transpose")(
            ct,
            weight,
            strides=self.strides,
            padding=self.padding,
            output_padding=tuple(extra),
            dilation=self.dilation,
            groups=self.groups,
            data_layout=names,
            kernel_layout=layout.letters.translate(swap),
        )
        longer = [
            a for a in range(count) if not same_dims(b.dims(found)[a + 2 : a + 3], sizes[a : a + 1])
        ]
        if not longer:
            return found
        axes = tuple(a + 2 for a in longer)
        ends = tuple(sizes[a] for a in longer)
        return b.strided_slice(found, axes, (0,) * len(axes), ends, assume_inbound=True)

    def weight_cotangent(self, b: Rule, data: Expr, kernel: Sequence[Any], ct: Expr) -> Expr:
        """For each place in the kernel the product of the result's cotangent with the data seen there, in layout OI and
        the spatial axes."""
        count, groups = len(self.spatial), self.groups
        strides, dilation = per_axis(self.strides, count), per_axis(self.dilation, count)
        pairs = padding_pairs(self.padding, count)
        if any(map(any, pairs)):
            data = b.nn.pad(data, [0, 0, 0, 0, *itertools.chain(*pairs)])
        batch, outputs, *places = b.dims(ct)
        channels = b.dims(data)[1]
        rows = product((batch, *places))
        parts = b.reshape(ct, (batch, groups, outputs // groups, *places))
        axes = tuple(range(3, 3 + count))
        left = b.reshape(b.permute_dims(parts, (1, 2, 0, *axes)), (groups, outputs // groups, rows))
        taps: list[Expr] = []
        for tap in itertools.product(*map(range, kernel)):
            begin = tuple(at * apart for at, apart in zip(tap, dilation, strict=True))
            end = tuple(
                first + (size - 1) * step + 1
                for first, size, step in zip(begin, places, strides, strict=True)
            )
            seen = b.strided_slice(
                data, tuple(range(2, 2 + count)), begin, end, strides, assume_inbound=True
            )
            seen = b.reshape(seen, (batch, groups, channels // groups, *places))
            seen = b.permute_dims(seen, (1, 0, *axes, 2))
            taps.append(b.matmul(left, b.reshape(seen, (groups, rows, channels // groups))))
        whole = b.stack(taps, 3) if len(taps) > 1 else taps[0]
        return b.reshape(whole, (outputs, channels // groups, *kernel))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, weight = args
        layouts = self.layouts()
        x, w, o = (layout.letters for layout in layouts)
        plain, wide = f"NC{self.spatial}", b.dtype(ct)
        kernel = [layouts[1].sizes(b.dims(weight))[s].value for s in self.spatial]
        if any(layout.blocks for layout in layouts) or None in kernel:
            return [
                NoRule(
                    f"{self.name} has a rule for kernels of known size, without blocks of channels"
                )
            ] * 2
        found = rearranged(b, ct, o, plain)
        of_data = self.data_cotangent(
            b, rearranged(b, data, x, plain), b.astype(weight, wide), found
        )
        of_weight = self.weight_cotangent(
            b, b.astype(rearranged(b, data, x, plain), wide), kernel, found
        )
        return [
            b.astype(rearranged(b, of_data, plain, x), b.dtype(data)),
            b.astype(rearranged(b, of_weight, f"OI{self.spatial}", w), b.dtype(weight)),
        ]


@define_op
class Conv1d(Convolution):
    """1-D convolution: the sum of data * weight over input channels and the kernel's window. `padding` zeros surround
    data, `strides` is the distance of windows, `dilation` that of the elements of a window."""

    name = "nn.conv1d"
    spatial = "W"
    data_layout: str = "NCW"
    kernel_layout: str = "OIW"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, w = rand(2, 3, 7), rand(4, 3, 3)
        yield sample(cls(), x, w, dims="n 3 w, 4 3 3", atol=1e-5)
        yield sample(cls(2, 1), x, w, dims="n c w, o c k", atol=1e-5)
        yield sample(cls((3,), (2, 1), (2,)), x, w, dims="n 3 w, 4 3 3", atol=1e-5)
        yield sample(cls(groups=2), rand(1, 4, 5), rand(6, 2, 2), dims="n 4 w, 6 2 2", atol=1e-5)
        yield sample(cls(groups=2), rand(1, 4, 5), rand(6, 2, 2), dims="n c w, o 2 2", atol=1e-5)
        yield sample(
            cls(data_layout="NWC", kernel_layout="WIO", out_layout="NCW"), rand(2, 5, 3),
            rand(2, 3, 4), dims="n w 3, 2 3 4", atol=1e-5,
        )  # fmt: skip
        h = x.astype(np.float16), w.astype(np.float16)
        yield sample(cls(out_dtype=DType("float32")), *h, dims="n 3 w, 4 3 3", atol=1e-5)
        yield wrong(cls(), x, rand(4, 2, 3), code="shape-mismatch", match="channels")
        yield wrong(cls(), rand(2, 3, 2), w, code="shape-mismatch", match="along W: 3 and 2")
        yield wrong(cls(), x, rand(4, 3), code="op-rank", match="weight must have 3")
        yield wrong(cls(padding=(1, 2, 3)), x, w, code="op-arguments", match="padding")
        yield wrong(cls(strides=0), x, w, code="op-arguments", match="strides")


@define_op
class Conv2d(Convolution):
    """2-D convolution: the sum of data * weight over input channels and the kernel's window. `padding` zeros surround
    data, `strides` is the distance of windows, `dilation` that of the elements of a window."""

    name = "nn.conv2d"
    spatial = "HW"
    data_layout: str = "NCHW"
    kernel_layout: str = "OIHW"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, w = rand(2, 3, 5, 6), rand(4, 3, 3, 2)
        yield sample(cls(), x, w, dims="n 3 h w, 4 3 3 2", atol=1e-5)
        yield sample(cls(padding=1), x, w, dims="n c h w, o c i j", atol=1e-5)
        yield sample(cls((2, 1), (1, 0), (1, 2)), x, w, dims="n 3 h w, 4 3 3 2", atol=1e-5)
        yield sample(cls(2, (0, 1, 2, 3)), x, w, dims="n 3 5 w, 4 3 3 2", atol=1e-5)
        yield sample(cls(), x, rand(4, 3, 1, 1), dims="n 3 h w, 4 3 1 1", atol=1e-5)
        depthwise = rand(1, 4, 4, 3), rand(4, 1, 3, 3)
        yield sample(cls(padding=1, groups=4), *depthwise, dims="n 4 h w, 4 1 3 3", atol=1e-5)
        grouped = rand(1, 4, 4, 3), rand(6, 2, 2, 2)
        yield sample(cls(groups=2), *grouped, dims="n 4 h w, o 2 2 2", atol=1e-5)
        nhwc = cls(2, 1, data_layout="NHWC", kernel_layout="HWIO")
        yield sample(nhwc, rand(1, 4, 5, 3), rand(3, 3, 3, 2), dims="n h w 3, 3 3 3 2", atol=1e-5)
        mixed = cls(data_layout="NHWC", out_layout="CHWN")
        yield sample(mixed, rand(2, 4, 3, 3), rand(2, 3, 2, 2), dims="n h w 3, 2 3 2 2", atol=1e-5)
        x8, w8 = rand(1, 3, 4, 4, dtype="int8", low=-99, high=99), rand(2, 3, 3, 3, dtype="int8")
        yield sample(cls(padding=1, out_dtype=DType("int32")), x8, w8, dims="n 3 h w, 2 3 3 3")
        yield sample(cls(out_dtype=DType("int32")), x8.view(np.uint8), w8, dims="n 3 h w, 2 3 3 3")
        yield sample(cls(), x8, w8, dims="n 3 h w, 2 3 3 3")
        h = x.astype(np.float16), w.astype(np.float16)
        yield sample(cls(padding=1), *h, dims="n 3 h w, 4 3 3 2", rtol=2e-3, atol=1e-2)
        yield wrong(cls(), x, rand(4, 2, 3, 3), code="shape-mismatch", match="3 and 2")
        yield wrong(cls(groups=3), x, rand(4, 1, 2, 2), code="shape-mismatch", match="3 groups")
        yield wrong(cls(), x, rand(4, 3, 6, 2), code="shape-mismatch", match="along H: 6 and 5")
        yield wrong(cls(), x, rand(4, 3, 0, 2), code="shape-mismatch", match="along H")
        yield wrong(cls(), rand(3, 5, 6), w, code="op-rank", match="data must have 4 dimensions")
        packed = cls(padding=1, data_layout="NCHW2c", kernel_layout="OIHW2i4o", out_layout="NCHW4c")
        x5, w6 = rand(2, 3, 4, 5, 2), rand(2, 3, 3, 3, 2, 4)
        yield sample(packed, x5, w6, dims="n 3 h w 2, 2 3 3 3 2 4", atol=1e-5)
        yield sample(packed, x5, w6, dims="n c h w 2, o c 3 3 2 4", atol=1e-5)
        first = cls(2, (0, 1), kernel_layout="OIHW4o", out_layout="NCHW4c")
        yield sample(first, x, rand(2, 3, 3, 2, 4), dims="n 3 h w, 2 3 3 2 4", atol=1e-5)
        last = cls(data_layout="NCHW2c", out_layout="NCHW")
        yield sample(last, x5, rand(3, 6, 2, 2), dims="n 3 h w 2, o 6 2 2", atol=1e-5)
        grouped = cls(groups=3, data_layout="NCHW2c", kernel_layout="OIHW3o", out_layout="NCHW3c")
        yield sample(grouped, x5, rand(2, 2, 2, 2, 3), dims="n 3 h w 2, 2 2 2 2 3", atol=1e-5)
        apart = cls(
            padding=1, groups=6, data_layout="NCHW2c", kernel_layout="OIHW2o", out_layout="NCHW2c"
        )
        yield sample(apart, x5, rand(3, 1, 3, 3, 2), dims="n 3 h w 2, 3 1 3 3 2", atol=1e-5)
        yield wrong(cls(data_layout="NCHW4c"), x, w, code="op-rank", match="data must have 5")
        yield wrong(packed, x5[..., :1], w6, code="shape-mismatch", match="layout NCHW2c")
        yield wrong(cls(out_layout="NCHW3c"), x, w, code="shape-mismatch", match="blocks of 3: 4")
        yield wrong(cls(out_layout="NCHW4d"), x, w, code="op-arguments", match="is not a layout")
        yield wrong(cls(out_layout="NCHW1c"), x, w, code="op-arguments", match="is not a layout")
        yield wrong(cls(out_layout="NHW"), x, w, code="op-arguments", match="out_layout")
        yield wrong(cls(dilation=(1, 1, 1)), x, w, code="op-arguments", match="dilation")
        yield wrong(cls(padding=-1), x, w, code="op-arguments", match="negative")
        yield wrong(cls(groups=0), x, w, code="op-arguments", match="groups")
        yield wrong(cls(), x, h[1], code="op-dtype", match="float16")
        yield wrong(cls(out_dtype=DType("int32")), x, w, code="op-dtype", match="int32")


@define_op
class Conv3d(Convolution):
    """3-D convolution: the sum of data * weight over input channels and the kernel's window. `padding` zeros surround
    data, `strides` is the distance of windows, `dilation` that of the elements of a window."""

    name = "nn.conv3d"
    spatial = "DHW"
    data_layout: str = "NCDHW"
    kernel_layout: str = "OIDHW"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, w = rand(1, 2, 3, 4, 3), rand(2, 2, 2, 3, 2)
        yield sample(cls(), x, w, dims="n 2 d h w, 2 2 2 3 2", atol=1e-5)
        yield sample(cls(2, (1, 0, 1), (1, 1, 2)), x, w, dims="n c d h w, o c 2 3 2", atol=1e-5)
        last = cls(data_layout="NDHWC", kernel_layout="DHWIO", groups=2)
        yield sample(last, rand(1, 2, 2, 3, 4), rand(1, 2, 2, 2, 2), dims="n 2 2 w 4, 1 2 2 2 2")
        yield sample(cls(padding=(0, 1, 0, 1, 0, 0)), x, w, dims="n 2 d h w, 2 2 2 3 2", atol=1e-5)
        yield wrong(cls(), x, rand(2, 2, 4, 1, 1), code="shape-mismatch", match="along D: 4 and 3")
        yield wrong(cls(padding=(1, 1)), x, w, code="op-arguments", match="padding")
        yield wrong(cls(kernel_layout="OIDH"), x, w, code="op-arguments", match="kernel_layout")
