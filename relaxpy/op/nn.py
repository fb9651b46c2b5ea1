"""Neural-network operators (`R.nn.…`): activations, softmax, normalisation. float16 and bfloat16
are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import product
from relaxpy.op import te
from relaxpy.op.base import Deduction, Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.unary import FloatUnary, IntOrFloatUnary, erf, sigmoid

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


@define_op
class Relu(IntOrFloatUnary):
    """x where it is positive, else 0."""

    name = "nn.relu"

    def scalar(self, x: Any) -> Any:
        return te.select(te.less(x, te.literal(0, x)), te.literal(0, x), te.element(x))

    def numpy(self, x: np.ndarray) -> Any:
        return np.where(x < 0, 0, x)


@define_op
class Gelu(FloatUnary):
    """x / 2 * (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel, 2016)."""

    name = "nn.gelu"

    def scalar(self, x: Any) -> Any:
        half, one = te.literal(0.5, x), te.literal(1, x)
        return x * half * (one + te.erf(x * te.literal(_SQRT_HALF, x)))

    def numpy(self, x: np.ndarray) -> Any:
        return x * 0.5 * (1 + erf(x * _SQRT_HALF))


@define_op
class GeluTanh(FloatUnary):
    """The approximation of `gelu` by tanh, as GPT-2 has it."""

    name = "nn.gelu_tanh"

    def scalar(self, x: Any) -> Any:
        x = te.element(x)
        inner = te.literal(_SQRT_2_OVER_PI, x) * (x + te.literal(0.044715, x) * x * x * x)
        return x * te.literal(0.5, x) * (te.literal(1, x) + te.tanh(inner))

    def numpy(self, x: np.ndarray) -> Any:
        wide = x.astype(np.float64)
        return wide * 0.5 * (1 + np.tanh(_SQRT_2_OVER_PI * (wide + 0.044715 * wide**3)))


@define_op
class Silu(FloatUnary):
    """x * sigmoid(x)."""

    name = "nn.silu"

    def scalar(self, x: Any) -> Any:
        return x * te.sigmoid(x)

    def numpy(self, x: np.ndarray) -> Any:
        return x * sigmoid(x)


@define_op
class Softmax(Op):
    """exp(x - max) / sum along `axis`."""

    name = "nn.softmax"
    axis: int = -1

    def deduce(self, d: Deduction, data: TensorType) -> TensorType:
        d.need_float(data, "data")
        d.axis(self.axis, data.ndim)
        return TensorType(data.shape, data.dtype)

    def legalize(self, out: TensorType, data: te.Tensor) -> te.Tensor:
        assert out.dims is not None
        axis = self.axis % out.ndim
        outer = out.dims[:axis] + out.dims[axis + 1 :]
        k, j = te.reduce_axis(out.dims[axis], "k"), te.reduce_axis(out.dims[axis], "j")

        def at(i: tuple[Any, ...], place: Any) -> tuple[Any, ...]:
            return (*i[:axis], place, *i[axis:])

        def without(i: tuple[Any, ...]) -> tuple[Any, ...]:
            return (*i[:axis], *i[axis + 1 :])

        largest = te.compute(outer, lambda *i: te.max(te.widen(data(*at(i, k))), k), "largest")
        power = te.compute(
            out.dims, lambda *i: te.exp(te.widen(data(*i)) - largest(*without(i))), "power"
        )
        total = te.compute(outer, lambda *i: te.sum(power(*at(i, j)), j), "total")
        return te.compute(
            out.dims, lambda *i: te.cast(power(*i) / total(*without(i)), out.dtype), "softmax"
        )

    def reference(self, data: np.ndarray) -> np.ndarray:
        x = widened(data)
        power = np.exp(x - np.max(x, self.axis, keepdims=True, initial=-np.inf))
        return narrowed(power / np.sum(power, self.axis, keepdims=True), data)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), dims="n m")
        yield sample(cls(axis=1), rand(2, 3, 4), dims="n m 4")
        yield sample(cls(axis=0), rand(4), dims="n")
        yield sample(cls(), rand(0, 4), dims="n 4")
        yield sample(cls(), rand(4, 0), dims="4 n")
        yield sample(cls(), rand(2, 1), dims="n m")
        yield sample(cls(), rand(3, 7, dtype="float16"), dims="n m", rtol=2e-3, atol=1e-3)
        yield sample(cls(), np.array([[1e30, 0, -np.inf], [np.nan, 1, 2]], np.float32), dims="n m")
        yield wrong(cls(axis=2), rand(3, 5), code="op-axis", match="2")
        yield wrong(cls(), rand(3, dtype="int32"), code="op-dtype", match="float")


@dataclass(frozen=True)
class Normalization(Op):
    """What layer and RMS normalisation share: statistics over `axes`, weights of their shape."""

    axes: tuple[int, ...] | int = (-1,)
    """Axes of the statistics."""
    epsilon: float = 1e-5
    """Added to the variance (mean square) under the root."""

    def axes_of(self, ndim: int) -> list[int]:
        """The axes from the front."""
        return sorted(a % ndim for a in ((self.axes,) if isinstance(self.axes, int) else self.axes))

    def check_weight(self, d: Deduction, data: TensorType, weight: TensorType, name: str) -> None:
        """A weight has the shape of data's `axes`."""
        assert data.dims is not None
        assert weight.dims is not None
        axes = d.axes(self.axes, data.ndim, "axes")
        d.require(
            weight.ndim == len(axes),
            f"{name} must have {len(axes)} dimensions, got {weight.ndim}", arg=name, code="op-rank",
        )  # fmt: skip
        for a, size in zip(axes, weight.dims, strict=True):
            d.same_dim(
                data.dims[a], size, f"sizes of axis {a} of data and of {name} differ", arg=name
            )

    def average(self, data: te.Tensor, value: Any, name: str) -> te.Tensor:
        """The mean of `value(index)` over the axes, in float32 for narrower floats; of the outer
        axes."""
        sizes = te.dims(data)
        axes = self.axes_of(len(sizes))
        loops = {a: te.reduce_axis(sizes[a], f"k{a}") for a in axes}
        count = product(tuple(sizes[a] for a in axes))
        outer = [size for a, size in enumerate(sizes) if a not in axes]

        def index(i: tuple[Any, ...]) -> tuple[Any, ...]:
            rest = iter(i)
            return tuple(loops[a] if a in axes else next(rest) for a in range(len(sizes)))

        total = te.compute(
            outer, lambda *i: te.sum(value(index(i)), list(loops.values())), f"{name}_sum"
        )

        return te.compute(outer, lambda *i: te.per_count(total(*i), count), name)

    def outer(self, i: tuple[Any, ...]) -> tuple[Any, ...]:
        """The part of an index that is not normalised over."""
        axes = self.axes_of(len(i))
        return tuple(v for a, v in enumerate(i) if a not in axes)

    def inner(self, i: tuple[Any, ...]) -> tuple[Any, ...]:
        """The part of an index that weights have."""
        return tuple(i[a] for a in self.axes_of(len(i)))

    def spread(self, weight: np.ndarray, ndim: int) -> np.ndarray:
        """A weight on numpy, with axes of size 1 where data has others."""
        sizes = iter(weight.shape)
        axes = self.axes_of(ndim)
        return weight.reshape([next(sizes) if a in axes else 1 for a in range(ndim)])

    def mean_of(self, x: np.ndarray) -> np.ndarray:
        """The mean over the axes on numpy; NaN of nothing."""
        axes = tuple(self.axes_of(x.ndim))
        count = math.prod(x.shape[a] for a in axes)
        total = np.sum(x, axes, keepdims=True, dtype=x.dtype)
        with np.errstate(all="ignore"):
            return total / x.dtype.type(count)


@define_op
class LayerNorm(Normalization):
    """(data - mean) / sqrt(variance + epsilon) * gamma + beta, over `axes` (Ba, Kiros and Hinton,
    2016)."""

    name = "nn.layer_norm"

    def deduce(
        self, d: Deduction, data: TensorType, gamma: TensorType, beta: TensorType
    ) -> TensorType:
        d.need_float(data, "data")
        d.same_dtype(data, gamma, beta)
        self.check_weight(d, data, gamma, "gamma")
        self.check_weight(d, data, beta, "beta")
        return TensorType(data.shape, data.dtype)

    def legalize(
        self, out: TensorType, data: te.Tensor, gamma: te.Tensor, beta: te.Tensor
    ) -> te.Tensor:
        mean = self.average(data, lambda i: te.widen(data(*i)), "mean")

        def centred(i: tuple[Any, ...]) -> Any:
            return te.widen(data(*i)) - mean(*self.outer(i))

        variance = self.average(data, lambda i: centred(i) * centred(i), "variance")

        def element(*i: Any) -> Any:
            spread = te.element(variance(*self.outer(i)))
            scale = te.rsqrt(spread + te.literal(self.epsilon, spread))
            weight, shift = te.widen(gamma(*self.inner(i))), te.widen(beta(*self.inner(i)))
            return te.cast(centred(i) * scale * weight + shift, out.dtype)

        return te.compute(out.dims, element, "layer_norm")

    def reference(self, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        x = widened(data)
        centred = x - self.mean_of(x)
        scaled = centred / np.sqrt(self.mean_of(centred * centred) + x.dtype.type(self.epsilon))
        weight, shift = self.spread(widened(gamma), x.ndim), self.spread(widened(beta), x.ndim)
        return narrowed(scaled * weight + shift, data)

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
        h = rand(3, 8, dtype="float16"), rand(8, dtype="float16"), rand(8, dtype="float16")
        yield sample(cls(), *h, dims="n 8, 8, 8", rtol=2e-3, atol=4e-3)
        yield wrong(cls(), rand(3, 8), rand(4), rand(8), code="shape-mismatch", match="gamma")
        yield wrong(cls(), rand(3, 8), rand(8), rand(3, 8), code="op-rank", match="beta")
        yield wrong(cls(axes=(2,)), rand(3, 8), rand(8), rand(8), code="op-axis", match="2")
        ints = rand(8, dtype="int32")
        yield wrong(cls(), ints, ints, ints, code="op-dtype", match="float")


@define_op
class RmsNorm(Normalization):
    """data / sqrt(mean square + epsilon) * weight, over `axes` (Zhang and Sennrich, 2019)."""

    name = "nn.rms_norm"

    def deduce(self, d: Deduction, data: TensorType, weight: TensorType) -> TensorType:
        d.need_float(data, "data")
        d.same_dtype(data, weight)
        self.check_weight(d, data, weight, "weight")
        return TensorType(data.shape, data.dtype)

    def legalize(self, out: TensorType, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        def square(i: tuple[Any, ...]) -> Any:
            return te.widen(data(*i)) * te.widen(data(*i))

        mean = self.average(data, square, "mean_square")

        def element(*i: Any) -> Any:
            read = te.element(mean(*self.outer(i)))
            scale = te.rsqrt(read + te.literal(self.epsilon, read))
            return te.cast(te.widen(data(*i)) * scale * te.widen(weight(*self.inner(i))), out.dtype)

        return te.compute(out.dims, element, "rms_norm")

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        x = widened(data)
        scaled = x / np.sqrt(self.mean_of(x * x) + x.dtype.type(self.epsilon))
        return narrowed(scaled * self.spread(widened(weight), x.ndim), data)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 8), rand(8), dims="n 8, 8")
        yield sample(cls(epsilon=1e-3), rand(2, 3, 5), rand(5), dims="n m k, k")
        yield sample(cls(), rand(0, 4), rand(4), dims="n 4, 4")
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


relu = Relu.make
gelu = Gelu.make
gelu_tanh = GeluTanh.make
silu = Silu.make
softmax = Softmax.make
layer_norm = LayerNorm.make
rms_norm = RmsNorm.make
