"""Normalisation (`R.nn.…`): to mean 0 and variance 1 over some axes, then scaled and shifted by weights. float16 and
bfloat16 are computed in float32. The variance is the mean square of the centred values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import Dim, dim_op, maximum, product
from relaxpy.ir.expr import Expr
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.rule import Cotangent, Rule

# Statistics of a tensor, or of a view of one: `read(index)` is an element, in wide precision


def average(
    sizes: Sequence[Dim], axes: Sequence[int], read: Callable[[tuple[Any, ...]], Any], name: str
) -> te.Tensor:
    """The mean of `read(index)` over `axes` of an index space of these sizes, as a tensor of the other axes. NaN over
    no elements."""
    loops = {a: te.reduce_axis(sizes[a], f"k{a}") for a in axes}
    count = product(tuple(sizes[a] for a in axes))
    outer = [size for a, size in enumerate(sizes) if a not in axes]

    def index(i: tuple[Any, ...]) -> tuple[Any, ...]:
        rest = iter(i)
        return tuple(loops[a] if a in axes else next(rest) for a in range(len(sizes)))

    total = te.compute(
        outer, lambda *i: te.sum(read(index(i)), list(loops.values())), f"{name}_sum"
    )
    return te.compute(outer, lambda *i: te.per_count(total(*i), count), name)


def moments(
    sizes: Sequence[Dim], axes: Sequence[int], read: Callable[[tuple[Any, ...]], Any]
) -> tuple[te.Tensor, te.Tensor]:
    """The mean and the variance of `read(index)` over `axes`."""
    mean = average(sizes, axes, read, "mean")

    def square(i: tuple[Any, ...]) -> Any:
        centred = read(i) - mean(*outside(axes, i))
        return centred * centred

    return mean, average(sizes, axes, square, "variance")


def outside(axes: Sequence[int], i: tuple[Any, ...]) -> tuple[Any, ...]:
    """The part of an index outside of `axes`."""
    return tuple(v for a, v in enumerate(i) if a not in axes)


def mean_of(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The mean over `axes` on numpy, with the axes kept as size 1; NaN over no elements."""
    count = math.prod(x.shape[a] for a in axes)
    with np.errstate(all="ignore"):
        return np.sum(x, axes, keepdims=True, dtype=x.dtype) / x.dtype.type(count)


def normalized(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    """(x - mean) / sqrt(variance + epsilon) over `axes`, on numpy."""
    centred = x - mean_of(x, axes)
    return centred / np.sqrt(mean_of(centred * centred, axes) + x.dtype.type(epsilon))


def spread(weight: np.ndarray, ndim: int, axes: Sequence[int]) -> np.ndarray:
    """A weight of the axes `axes`, in wide precision, reshaped to `ndim` axes for broadcasting."""
    sizes = iter(weight.shape)
    return widened(weight).reshape([next(sizes) if a in axes else 1 for a in range(ndim)])


@dataclass(frozen=True)
class Normalization(Op):
    """The common part of layer and RMS normalisation: statistics over `axes`, and weights of the shape of these
    axes."""

    axes: tuple[int, ...] | int = (-1,)
    """Axes over which the statistics are computed."""
    epsilon: float = 1e-5
    """Added to the variance (or mean square) under the root."""

    def axes_of(self, ndim: int) -> tuple[int, ...]:
        """The axes as non-negative numbers."""
        return _from_front(self.axes, ndim)

    def check_weight(self, d: Deduction, data: KnownTensor, weight: KnownTensor, name: str) -> None:
        """Require a weight of the shape of data's `axes`."""
        axes = d.axes(self.axes, data.ndim, "axes")
        d.require(
            weight.ndim == len(axes),
            f"{name} must have {len(axes)} dimensions, got {weight.ndim}", arg=name, code="op-rank",
        )  # fmt: skip
        for a, size in zip(axes, weight.dims, strict=True):
            d.same_dim(
                data.dims[a], size, f"sizes of axis {a} of data and of {name} differ", arg=name
            )

    def inner(self, i: tuple[Any, ...]) -> tuple[Any, ...]:
        """The part of an index along `axes`, which indexes the weights."""
        return tuple(i[a] for a in self.axes_of(len(i)))


def _from_front(axes: tuple[int, ...] | int, ndim: int) -> tuple[int, ...]:
    return tuple(sorted(a % ndim for a in ((axes,) if isinstance(axes, int) else axes)))


@define_op
class LayerNorm(Normalization):
    """Layer normalisation: (data - mean) / sqrt(variance + epsilon) * gamma + beta, over `axes` (Ba, Kiros and Hinton,
    2016)."""

    name = "nn.layer_norm"
    center: bool = True
    """Whether beta is added; otherwise it is ignored."""
    scale: bool = True
    """Whether to multiply by gamma; otherwise it is ignored."""

    def deduce(
        self, d: Deduction, data: KnownTensor, gamma: KnownTensor, beta: KnownTensor
    ) -> TensorType:
        d.need_float(data, "data")
        d.same_dtype(data, gamma, beta)
        self.check_weight(d, data, gamma, "gamma")
        self.check_weight(d, data, beta, "beta")
        return TensorType(data.shape, data.dtype)

    def legalize(
        self, out: KnownTensor, data: te.Tensor, gamma: te.Tensor, beta: te.Tensor
    ) -> te.Tensor:
        sizes, axes = te.dims(data), self.axes_of(len(data.shape))

        def read(i: tuple[Any, ...]) -> Any:
            return te.widen(data(*i))

        mean, variance = moments(sizes, axes, read)

        def element(*i: Any) -> Any:
            at = outside(axes, i)
            value = (read(i) - mean(*at)) * _inverse_root(variance(*at), self.epsilon)
            value = value * te.widen(gamma(*self.inner(i))) if self.scale else value
            value = value + te.widen(beta(*self.inner(i))) if self.center else value
            return te.cast(value, out.dtype)

        return te.compute(out.dims, element, "layer_norm")

    def reference(self, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        axes = self.axes_of(data.ndim)
        value = normalized(widened(data), axes, self.epsilon)
        value = value * spread(gamma, data.ndim, axes) if self.scale else value
        value = value + spread(beta, data.ndim, axes) if self.center else value
        return narrowed(value, data)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, gamma, beta = args
        axes = self.axes_of(b.rank(data))
        unit, scale = normalised(b, data, axes, self.epsilon)
        return weighted_cotangents(b, self, unit, scale, axes, axes, gamma, beta, ct)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 8), rand(8), rand(8), dims="n 8, 8, 8", atol=1e-5)
        yield sample(cls(), rand(2, 3, 5), rand(5), rand(5), dims="n m k, k, k", atol=1e-5)
        yield sample(
            cls(axes=(-2, -1)),
            rand(2, 3, 4),
            rand(3, 4),
            rand(3, 4),
            dims="n m 4, m 4, m 4",
            atol=1e-5,
        )
        yield sample(
            cls(axes=(0,), epsilon=1e-3), rand(6, 2), rand(6), rand(6), dims="k n, k, k", atol=1e-5
        )
        yield sample(cls(), rand(0, 4), rand(4), rand(4), dims="n 4, 4, 4")
        yield sample(cls(), rand(3, 0), rand(0), rand(0), dims="n 0, 0, 0")
        yield sample(cls(), rand(3, 1), rand(1), rand(1), dims="n k, k, k")
        yield sample(
            cls(axes=-1, center=False), rand(3, 5), rand(5), rand(5), dims="n k, k, k", atol=1e-5
        )
        yield sample(
            cls(axes=0, scale=False), rand(3, 5), rand(3), rand(3), dims="n 5, n, n", atol=1e-5
        )
        h = rand(3, 8, dtype="float16"), rand(8, dtype="float16"), rand(8, dtype="float16")
        yield sample(cls(), *h, dims="n 8, 8, 8", rtol=2e-3, atol=4e-3)
        yield wrong(cls(), rand(3, 8), rand(4), rand(8), code="shape-mismatch", match="gamma")
        yield wrong(cls(), rand(3, 8), rand(8), rand(3, 8), code="op-rank", match="beta")
        yield wrong(cls(axes=(2,)), rand(3, 8), rand(8), rand(8), code="op-axis", match="2")
        ints = rand(8, dtype="int32")
        yield wrong(cls(), ints, ints, ints, code="op-dtype", match="float")


@define_op
class RmsNorm(Normalization):
    """RMS normalisation: data / sqrt(mean square + epsilon) * weight, over `axes` (Zhang and Sennrich, 2019)."""

    name = "nn.rms_norm"

    def deduce(self, d: Deduction, data: KnownTensor, weight: KnownTensor) -> TensorType:
        d.need_float(data, "data")
        d.same_dtype(data, weight)
        self.check_weight(d, data, weight, "weight")
        return TensorType(data.shape, data.dtype)

    def legalize(self, out: KnownTensor, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        sizes, axes = te.dims(data), self.axes_of(len(data.shape))

        def square(i: tuple[Any, ...]) -> Any:
            return te.widen(data(*i)) * te.widen(data(*i))

        mean = average(sizes, axes, square, "mean_square")

        def element(*i: Any) -> Any:
            scale = _inverse_root(mean(*outside(axes, i)), self.epsilon)
            return te.cast(te.widen(data(*i)) * scale * te.widen(weight(*self.inner(i))), out.dtype)

        return te.compute(out.dims, element, "rms_norm")

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        x, axes = widened(data), self.axes_of(data.ndim)
        scaled = x / np.sqrt(mean_of(x * x, axes) + x.dtype.type(self.epsilon))
        return narrowed(scaled * spread(weight, x.ndim, axes), data)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, weight = args
        axes = self.axes_of(b.rank(data))
        x, ct = wide(b, data), wide(b, ct)
        scale = b.rsqrt(b.add(b.mean(b.square(x), axes, keepdims=True), self.epsilon))
        unit = b.multiply(x, scale)
        inner = b.multiply(ct, across(b, wide(b, weight), b.rank(data), axes))
        mean = b.mean(b.multiply(inner, unit), axes, keepdims=True)
        of_data = b.multiply(scale, b.subtract(inner, b.multiply(unit, mean)))
        return [b.astype(of_data, b.dtype(data)), to_weight(b, b.multiply(ct, unit), weight, axes)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 8), rand(8), dims="n 8, 8")
        yield sample(cls(epsilon=1e-3), rand(2, 3, 5), rand(5), dims="n m k, k")
        yield sample(cls(), rand(0, 4), rand(4), dims="n 4, 4")
        yield sample(cls(axes=(0, 2)), rand(2, 3, 4), rand(2, 4), dims="n 3 m, n m")
        yield sample(
            cls(),
            rand(3, 8, dtype="float16"),
            rand(8, dtype="float16"),
            dims="n 8, 8",
            rtol=2e-3,
            atol=2e-3,
        )
        yield wrong(cls(), rand(3, 8), rand(4), code="shape-mismatch", match="weight")
        yield wrong(cls(), rand(3, 8), rand(8, dtype="float16"), code="op-dtype", match="float16")


class ChannelNormalization(Op):
    """The common part of group and instance normalisation: weights per channel, statistics over other axes."""

    channel_axis: int
    axes: tuple[int, ...] | int
    epsilon: float
    center: bool
    scale: bool

    def check_axes(self, d: Deduction, data: KnownTensor) -> int:
        """The channel axis as a non-negative number; the axes of the statistics must not include it."""
        channel = d.axis(self.channel_axis, data.ndim, "channel_axis")
        d.require(
            channel not in d.axes(self.axes, data.ndim, "axes"),
            f"axes must not name the channel axis {self.channel_axis}", arg="axes", code="op-axis",
        )  # fmt: skip
        return channel

    def weighted(self, value: Any, channel: Any, gamma: te.Tensor, beta: te.Tensor) -> Any:
        """A normalised element, scaled and shifted by the weights of its channel."""
        value = value * te.widen(gamma(channel)) if self.scale else value
        return value + te.widen(beta(channel)) if self.center else value

    def weighted_on_numpy(self, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        """The same as `weighted`, for a whole array."""
        channel = _from_front(self.channel_axis, x.ndim)
        x = x * spread(gamma, x.ndim, channel) if self.scale else x
        return x + spread(beta, x.ndim, channel) if self.center else x


@define_op
class InstanceNorm(ChannelNormalization):
    """Instance normalisation: (data - mean) / sqrt(variance + epsilon) over `axes`, then * gamma + beta of the channel
    (Ulyanov, Vedaldi and Lempitsky, 2016)."""

    name = "nn.instance_norm"
    channel_axis: int
    """The channel axis: gamma and beta are vectors along it."""
    axes: tuple[int, ...] | int
    """Axes over which the statistics are computed, without the channel axis."""
    epsilon: float = 1e-5
    """Added to the variance under the root."""
    center: bool = True
    """Whether beta is added; otherwise it is ignored."""
    scale: bool = True
    """Whether to multiply by gamma; otherwise it is ignored."""

    def deduce(
        self, d: Deduction, data: KnownTensor, gamma: KnownTensor, beta: KnownTensor
    ) -> TensorType:
        channel = self.check_axes(d, data)
        _check_channels(d, data, channel, gamma=gamma, beta=beta)
        return TensorType(data.shape, data.dtype)

    def legalize(
        self, out: KnownTensor, data: te.Tensor, gamma: te.Tensor, beta: te.Tensor
    ) -> te.Tensor:
        axes, channel = _from_front(self.axes, out.ndim), self.channel_axis % out.ndim

        def read(i: tuple[Any, ...]) -> Any:
            return te.widen(data(*i))

        mean, variance = moments(te.dims(data), axes, read)

        def element(*i: Any) -> Any:
            at = outside(axes, i)
            value = (read(i) - mean(*at)) * _inverse_root(variance(*at), self.epsilon)
            return te.cast(self.weighted(value, i[channel], gamma, beta), out.dtype)

        return te.compute(out.dims, element, "instance_norm")

    def reference(self, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        value = normalized(widened(data), _from_front(self.axes, data.ndim), self.epsilon)
        return narrowed(self.weighted_on_numpy(value, gamma, beta), data)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, gamma, beta = args
        axes, channel = (
            _from_front(self.axes, b.rank(data)),
            _from_front(self.channel_axis, b.rank(data)),
        )
        unit, scale = normalised(b, data, axes, self.epsilon)
        return weighted_cotangents(b, self, unit, scale, axes, channel, gamma, beta, ct)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, gamma, beta = rand(2, 3, 4, 2), rand(3), rand(3, low=0)
        yield sample(cls(1, (2, 3)), x, gamma, beta, dims="n c h w, c, c", atol=1e-5)
        yield sample(
            cls(-1, (1, 2)), rand(2, 3, 4, 3), gamma, beta, dims="n h 4 3, 3, 3", atol=1e-5
        )
        yield sample(cls(1, 2, 1e-3, center=False), x[..., 0], gamma, beta, dims="n c w, c, c")
        yield sample(cls(1, 2, scale=False), x[..., 0], gamma, beta, dims="n 3 w, 3, 3", atol=1e-5)
        yield wrong(cls(1, (1, 2)), x, gamma, beta, code="op-axis", match="channel")
        yield wrong(cls(1, (4,)), x, gamma, beta, code="op-axis", match="4")
        yield wrong(
            cls(0, (2, 3)), x, gamma, beta, code="shape-mismatch", match="gamma differ: 2 and 3"
        )
        yield wrong(cls(1, (2, 3)), x, gamma, rand(3, 1), code="op-rank", match="beta")


@define_op
class GroupNorm(ChannelNormalization):
    """Group normalisation: (data - mean) / sqrt(variance + epsilon) over `axes` and the channels of a group, then *
    gamma + beta of the channel (Wu and He, 2018). The channels are divided evenly into groups."""

    name = "nn.group_norm"
    num_groups: int
    """Number of groups that the channels are divided into."""
    channel_axis: int
    """The channel axis, which is divided into groups; gamma and beta are vectors along it."""
    axes: tuple[int, ...] | int
    """Axes over which the statistics are computed, without the channel axis."""
    epsilon: float = 1e-5
    """Added to the variance under the root."""
    center: bool = True
    """Whether beta is added; otherwise it is ignored."""
    scale: bool = True
    """Whether to multiply by gamma; otherwise it is ignored."""

    def deduce(
        self, d: Deduction, data: KnownTensor, gamma: KnownTensor, beta: KnownTensor
    ) -> TensorType:
        channel = self.check_axes(d, data)
        _check_channels(d, data, channel, gamma=gamma, beta=beta)
        d.require(
            self.num_groups > 0, f"num_groups must be positive, got {self.num_groups}",
            arg="num_groups",
        )  # fmt: skip
        d.ensure(
            dim_op("eq", data.dims[channel] % self.num_groups, 0),
            f"{data.dims[channel]} channels cannot be divided into {self.num_groups} groups",
            arg="num_groups",
        )
        return TensorType(data.shape, data.dtype)

    def legalize(
        self, out: KnownTensor, data: te.Tensor, gamma: te.Tensor, beta: te.Tensor
    ) -> te.Tensor:
        # The statistics are those of a view in which the channel axis is split in two: group, and channel in the group.
        channel, sizes = self.channel_axis % out.ndim, te.dims(data)
        in_group = sizes[channel] // self.num_groups
        view = (*sizes[:channel], Dim.of(self.num_groups), in_group, *sizes[channel + 1 :])
        axes = [a + (a > channel) for a in _from_front(self.axes, out.ndim)] + [channel + 1]

        def read(i: tuple[Any, ...]) -> Any:
            joined = i[channel] * te.dim(in_group) + i[channel + 1]
            return te.widen(data(*i[:channel], joined, *i[channel + 2 :]))

        mean, variance = moments(view, axes, read)
        divisor = te.dim(maximum(in_group, 1))  # with no channels there are no elements to divide

        def element(*i: Any) -> Any:
            at = outside(axes, (*i[:channel], i[channel] // divisor, None, *i[channel + 1 :]))
            value = te.widen(data(*i)) - mean(*at)
            value = value * _inverse_root(variance(*at), self.epsilon)
            return te.cast(self.weighted(value, i[channel], gamma, beta), out.dtype)

        return te.compute(out.dims, element, "group_norm")

    def reference(self, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        x, channel = widened(data), self.channel_axis % data.ndim
        in_group = x.shape[channel] // self.num_groups
        view = (*x.shape[:channel], self.num_groups, in_group, *x.shape[channel + 1 :])
        axes = [a + (a > channel) for a in _from_front(self.axes, x.ndim)] + [channel + 1]
        value = normalized(x.reshape(view), tuple(axes), self.epsilon).reshape(x.shape)
        return narrowed(self.weighted_on_numpy(value, gamma, beta), data)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, gamma, beta = args
        channel, sizes = self.channel_axis % b.rank(data), b.dims(data)
        view = (
            *sizes[:channel],
            self.num_groups,
            sizes[channel] // self.num_groups,
            *sizes[channel + 1 :],
        )
        axes = tuple(a + (a > channel) for a in _from_front(self.axes, b.rank(data)))
        axes = tuple(sorted((*axes, channel + 1)))
        gamma, beta = (b.reshape(x, view[channel : channel + 2]) for x in (gamma, beta))
        unit, scale = normalised(b, b.reshape(data, view), axes, self.epsilon)
        both = (channel, channel + 1)
        found = weighted_cotangents(
            b, self, unit, scale, axes, both, gamma, beta, b.reshape(ct, view)
        )
        return [
            None if x is None else b.reshape(x, b.dims(arg))
            for x, arg in zip(found, args, strict=True)
        ]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, gamma, beta = rand(2, 4, 3, 2), rand(4), rand(4, low=0)
        yield sample(cls(2, 1, (2, 3)), x, gamma, beta, dims="n 4 h w, 4, 4", atol=1e-5)
        yield sample(cls(2, 1, (2, 3)), x, gamma, beta, dims="n c h 2, c, c", atol=1e-5)
        yield sample(cls(1, 1, 2, 1e-3), x[..., 0], gamma, beta, dims="n c w, c, c", atol=1e-5)
        last = rand(2, 3, 4), gamma, beta
        yield sample(cls(4, -1, (1,), center=False), *last, dims="n m 4, 4, 4", atol=1e-5)
        yield sample(cls(2, -1, (0, 1), scale=False), *last, dims="n m 4, 4, 4", atol=1e-5)
        yield wrong(cls(3, 1, (2, 3)), x, gamma, beta, code="shape-mismatch", match="4 channels")
        yield wrong(cls(0, 1, (2, 3)), x, gamma, beta, code="op-arguments", match="num_groups")
        yield wrong(cls(2, 1, (1, 2)), x, gamma, beta, code="op-axis", match="channel")
        yield wrong(cls(2, 1, (2, 3)), x, rand(2), beta, code="shape-mismatch", match="gamma")


@define_op
class BatchNorm(Op):
    """Batch normalisation: (data - mean) / sqrt(variance + epsilon) * gamma + beta for each index of `axis` (Ioffe and
    Szegedy, 2015). The result is a tuple: the normalised data, moving_mean and moving_var. In training, mean and
    variance are those of the data, and the moving statistics are updated to (1 - momentum) * old + momentum * new.
    Otherwise the moving statistics are used, and returned unchanged."""

    name = "nn.batch_norm"
    axis: int
    """The channel axis."""
    epsilon: float = 1e-5
    """Added to the variance under the root."""
    center: bool = True
    """Whether beta is added; otherwise it is ignored."""
    scale: bool = True
    """Whether to multiply by gamma; otherwise it is ignored."""
    momentum: float = 0.1
    """Weight of the data's statistics in the update of the moving statistics."""
    training: bool = True
    """Whether to use the statistics of the data, not the moving ones."""

    def deduce(
        self, d: Deduction, data: KnownTensor, gamma: KnownTensor, beta: KnownTensor,
        moving_mean: KnownTensor, moving_var: KnownTensor,
    ) -> TupleType:  # fmt: skip
        axis = d.axis(self.axis, data.ndim)
        weights = {"gamma": gamma, "beta": beta}
        _check_channels(d, data, axis, **weights, moving_mean=moving_mean, moving_var=moving_var)
        return TupleType(TensorType(x.shape, data.dtype) for x in (data, moving_mean, moving_var))

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        data = expect(TensorType, args[0])
        moving = TensorType(None, data.dtype, 1)
        return TupleType((TensorType(None, data.dtype, data.ndim), moving, moving))

    def legalize(
        self, out: TupleType, data: te.Tensor, gamma: te.Tensor, beta: te.Tensor,
        moving_mean: te.Tensor, moving_var: te.Tensor,
    ) -> list[te.Tensor]:  # fmt: skip
        sizes, dtype = te.dims(data), str(data.dtype)
        axis = self.axis % len(sizes)

        def read(i: tuple[Any, ...]) -> Any:
            return te.widen(data(*i))

        mean, variance = moving_mean, moving_var
        if self.training:
            others = [a for a in range(len(sizes)) if a != axis]
            mean, variance = moments(sizes, others, read)

        def element(*i: Any) -> Any:
            c = i[axis]
            value = read(i) - te.widen(mean(c))
            value = value * _inverse_root(te.widen(variance(c)), self.epsilon)
            value = value * te.widen(gamma(c)) if self.scale else value
            value = value + te.widen(beta(c)) if self.center else value
            return te.cast(value, dtype)

        def moved(old: te.Tensor, new: te.Tensor, name: str) -> te.Tensor:
            def blend(c: Any) -> Any:
                kept = te.widen(old(c))
                value = te.times(kept, 1 - self.momentum)
                return te.cast(value + te.times(new(c), self.momentum), dtype)

            return te.compute(te.dims(old), blend, name) if self.training else old

        normal = te.compute(sizes, element, "batch_norm")
        return [
            normal,
            moved(moving_mean, mean, "moving_mean"),
            moved(moving_var, variance, "moving_var"),
        ]

    def reference(
        self, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray, moving_mean: np.ndarray,
        moving_var: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        x, axis = widened(data), (self.axis % data.ndim,)
        mean, variance = (spread(m, x.ndim, axis) for m in (moving_mean, moving_var))
        if self.training:
            others = tuple(a for a in range(x.ndim) if a not in axis)
            mean = mean_of(x, others)
            variance = mean_of((x - mean) ** 2, others)
        value = (x - mean) / np.sqrt(variance + x.dtype.type(self.epsilon))
        value = value * spread(gamma, x.ndim, axis) if self.scale else value
        value = value + spread(beta, x.ndim, axis) if self.center else value
        if not self.training:
            return narrowed(value, data), moving_mean, moving_var
        new, old = x.dtype.type(self.momentum), x.dtype.type(1 - self.momentum)
        return (
            narrowed(value, data),
            narrowed(widened(moving_mean) * old + mean.reshape(-1) * new, data),
            narrowed(widened(moving_var) * old + variance.reshape(-1) * new, data),
        )

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, gamma, beta, mean, variance = args
        rank, channel = b.rank(data), (self.axis % b.rank(data),)
        axes = tuple(a for a in range(rank) if a not in channel)
        of_result, of_mean, of_variance = ct
        of_result = b.zeros_like(data) if of_result is None else of_result
        if not self.training:
            spread = b.rsqrt(b.add(wide(b, variance), self.epsilon))
            scale = across(b, spread, rank, channel)
            unit = b.multiply(
                b.subtract(wide(b, data), across(b, wide(b, mean), rank, channel)), scale
            )
            whole = wide(b, of_result)
            inner = (
                b.multiply(whole, across(b, wide(b, gamma), rank, channel)) if self.scale else whole
            )
            moved = b.multiply(inner, scale)
            of_unit = to_weight(b, b.multiply(inner, unit), spread, channel)
            bend = b.multiply(b.multiply(of_unit, b.square(spread)), -0.5)
            return [
                b.astype(moved, b.dtype(data)),
                to_weight(b, b.multiply(whole, unit), gamma, channel) if self.scale else None,
                to_weight(b, whole, beta, channel) if self.center else None,
                plus(b, b.negative(to_weight(b, moved, mean, channel)), of_mean),
                plus(b, b.astype(bend, b.dtype(variance)), of_variance),
            ]
        unit, scale = normalised(b, data, axes, self.epsilon)
        found = weighted_cotangents(b, self, unit, scale, axes, channel, gamma, beta, of_result)
        count = product(tuple(b.dims(data)[a] for a in axes))
        for each, power in (
            (of_mean, b.ones_like(unit)),
            (of_variance, b.multiply(b.divide(unit, scale), 2.0)),
        ):
            if each is not None:  # the part of the data in the moving statistics
                share = across(b, b.multiply(wide(b, each), self.momentum), rank, channel)
                part = b.divide(b.multiply(power, share), count)
                found[0] = b.add(found[0], b.astype(part, b.dtype(data)))
        kept = (
            None if each is None else b.multiply(each, 1 - self.momentum)
            for each in (of_mean, of_variance)
        )
        return [*found, *kept]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        stats = rand(3), rand(3, low=0), rand(3), rand(3, low=0.5)
        x, each = rand(2, 3, 4, 2), ", c, c, c, c"
        yield sample(cls(1), x, *stats, dims="n c h w" + each, atol=1e-5)
        yield sample(cls(1, training=False), x, *stats, dims="n c h w" + each, atol=1e-5)
        yield sample(cls(-1, 1e-3, momentum=0.5), rand(4, 3), *stats, dims="n c" + each, atol=1e-5)
        yield sample(cls(0, center=False), x[0], *stats, dims="c h 2" + each, atol=1e-5)
        eval_unscaled = cls(1, scale=False, training=False)
        yield sample(eval_unscaled, x[0].swapaxes(0, 1), *stats, dims="n 3 m, 3, 3, 3, 3")
        yield wrong(cls(4), x, *stats, code="op-axis", match="4")
        yield wrong(cls(0), x, *stats, code="shape-mismatch", match="gamma differ: 2 and 3")
        yield wrong(cls(1), x, *stats[:3], rand(3, 1), code="op-rank", match="moving_var")
        yield wrong(
            cls(1), x, *stats[:3], rand(3, dtype="float16"), code="op-dtype", match="float16"
        )


@define_op
class Dropout(Op):
    """Dropout at inference: data unchanged, and a mask of ones of its shape and dtype. Nothing is dropped, whatever the
    rate."""

    name = "nn.dropout"
    mixed = "follow"
    rate: float = 0.5
    """Fraction of elements that training would drop."""

    def deduce(self, d: Deduction, data: KnownTensor) -> TupleType:
        d.require(0 <= self.rate < 1, f"rate must be in [0, 1), got {self.rate}", arg="rate")
        same = TensorType(data.shape, data.dtype, data.ndim)
        return TupleType((same, same))

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (data,) = args
        assert data is not None
        return TupleType((data, data))

    def legalize(self, out: TupleType, data: te.Tensor) -> list[te.Tensor]:
        sizes = te.dims(data)
        ones = te.compute(sizes, lambda *_: te.const(1, str(data.dtype)), "mask")
        return [te.compute(sizes, lambda *i: te.element(data(*i)), "dropout"), ones]

    def reference(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return data, np.ones_like(data)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [ct[0]]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), dims="n m")
        yield sample(cls(rate=0.1), rand(0, 4, dtype="float16"), dims="n 4")
        yield wrong(cls(rate=1.5), rand(3), code="op-arguments", match="1.5")
        yield sample(cls(), rand(3, dtype="int32"), dims="n")


def _inverse_root(variance: Any, epsilon: float) -> Any:
    """1 / sqrt(variance + epsilon)."""
    variance = te.element(variance)
    return te.rsqrt(variance + te.literal(epsilon, variance))


def _check_channels(d: Deduction, data: KnownTensor, axis: int, **weights: KnownTensor) -> None:
    """Require weights, given by name, that are vectors of the size of `axis` of data."""
    d.need_float(data, "data")
    d.same_dtype(data, *weights.values())
    for name, weight in weights.items():
        d.require(
            weight.ndim == 1,
            f"{name} must have 1 dimension, got {weight.ndim}", arg=name, code="op-rank",
        )  # fmt: skip
        d.same_dim(
            data.dims[axis], weight.dims[0], f"sizes of axis {axis} of data and of {name} differ",
            arg=name,
        )  # fmt: skip


# Rules of differentiation


def wide(b: Rule, x: Expr) -> Expr:
    """X in the dtype that it is computed in."""
    return b.astype(x, "float32") if b.dtype(x).is_narrow else x


def plus(b: Rule, x: Expr, y: Expr | None) -> Expr:
    """The sum, where y may be None."""
    return x if y is None else b.add(x, y)


def across(b: Rule, weight: Expr, rank: int, axes: Sequence[int]) -> Expr:
    """A weight of the axes `axes`, with size 1 along all others."""
    sizes = iter(b.dims(weight))
    return b.reshape(weight, tuple(next(sizes) if a in axes else Dim.of(1) for a in range(rank)))


def to_weight(b: Rule, ct: Expr, weight: Expr, axes: Sequence[int]) -> Expr:
    """The cotangent of a weight of the axes `axes`: the sum over all others."""
    others = tuple(a for a in range(b.rank(ct)) if a not in axes)
    return b.astype(b.sum(ct, others) if others else ct, b.dtype(weight))


def normalised(b: Rule, x: Expr, axes: tuple[int, ...], epsilon: float) -> tuple[Expr, Expr]:
    """(x - mean) / sqrt(variance + epsilon) over `axes`, and the factor."""
    x = wide(b, x)
    centred = b.subtract(x, b.mean(x, axes, keepdims=True))
    variance = b.mean(b.square(centred), axes, keepdims=True)
    scale = b.rsqrt(b.add(variance, epsilon))
    return b.multiply(centred, scale), scale


def weighted_cotangents(
    b: Rule,
    op: Any,
    unit: Expr,
    scale: Expr,
    axes: tuple[int, ...],
    weighted: Sequence[int],
    gamma: Expr,
    beta: Expr,
    ct: Expr,
) -> list[Any]:
    """The cotangents of data, gamma and beta: `unit` is normalised over `axes` with the factor `scale`, and the weights
    are of the axes `weighted`."""
    dtype, whole = b.dtype(ct), wide(b, ct)
    inner = (
        b.multiply(whole, across(b, wide(b, gamma), b.rank(ct), weighted)) if op.scale else whole
    )
    mean = b.mean(inner, axes, keepdims=True)
    slope = b.mean(b.multiply(inner, unit), axes, keepdims=True)
    of_data = b.multiply(scale, b.subtract(b.subtract(inner, mean), b.multiply(unit, slope)))
    of_gamma = to_weight(b, b.multiply(whole, unit), gamma, weighted) if op.scale else None
    of_beta = to_weight(b, whole, beta, weighted) if op.center else None
    return [b.astype(of_data, dtype), of_gamma, of_beta]
