"""Elementwise activation functions (`R.nn.…`). float16 and bfloat16 are computed in float32."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.expr import Expr
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.elementwise import FloatUnary, IntOrFloatUnary
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.rule import Cotangent, Rule
from relaxpy.op.unary import erf, sigmoid

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946
_EDGES = np.array([np.nan, np.inf, -np.inf, -1.5, -0.0, 0, 2], np.float32)


@define_op
class Relu(IntOrFloatUnary):
    """The rectified linear unit (ReLU): x where it is positive, else 0."""

    name = "nn.relu"

    def scalar(self, x: Any) -> Any:
        return te.select(te.less(x, te.literal(0, x)), te.literal(0, x), te.element(x))

    def numpy(self, x: np.ndarray) -> Any:
        return np.where(x < 0, 0, x)

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        return [b.where_not(b.less_equal(out, 0.0), ct)]  # 0 at 0


@define_op
class Gelu(FloatUnary):
    """The Gaussian error linear unit (GELU): x / 2 * (1 + erf(x / sqrt(2))) (Hendrycks and Gimpel, 2016)."""

    name = "nn.gelu"

    def scalar(self, x: Any) -> Any:
        half, one = te.literal(0.5, x), te.literal(1, x)
        return x * half * (one + te.erf(x * te.literal(_SQRT_HALF, x)))

    def numpy(self, x: np.ndarray) -> Any:
        return x * 0.5 * (1 + erf(x * _SQRT_HALF))

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        below = b.multiply(b.add(b.erf(b.multiply(x, _SQRT_HALF)), 1.0), 0.5)
        density = b.multiply(
            x, b.multiply(b.exp(b.multiply(b.square(x), -0.5)), 1 / math.sqrt(2 * math.pi))
        )
        return [b.multiply(ct, b.add(below, density))]


@define_op
class GeluTanh(FloatUnary):
    """The tanh approximation of `gelu`, as used by GPT-2."""

    name = "nn.gelu_tanh"

    def scalar(self, x: Any) -> Any:
        x = te.element(x)
        inner = te.literal(_SQRT_2_OVER_PI, x) * (x + te.literal(0.044715, x) * x * x * x)
        return x * te.literal(0.5, x) * (te.literal(1, x) + te.tanh(inner))

    def numpy(self, x: np.ndarray) -> Any:
        wide = x.astype(np.float64)
        return wide * 0.5 * (1 + np.tanh(_SQRT_2_OVER_PI * (wide + 0.044715 * wide**3)))

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        square = b.square(x)
        cube = b.multiply(b.multiply(square, x), 0.044715)
        curve = b.tanh(b.multiply(b.add(x, cube), _SQRT_2_OVER_PI))
        steep = b.add(b.multiply(square, 3 * 0.044715 * _SQRT_2_OVER_PI), _SQRT_2_OVER_PI)
        half = b.multiply(b.multiply(x, 0.5), steep)
        bend = b.multiply(half, b.subtract(1.0, b.square(curve)))
        return [b.multiply(ct, b.add(b.multiply(b.add(curve, 1.0), 0.5), bend))]


@define_op
class Silu(FloatUnary):
    """The sigmoid linear unit (SiLU, swish): x * sigmoid(x)."""

    name = "nn.silu"

    def scalar(self, x: Any) -> Any:
        return x * te.sigmoid(x)

    def numpy(self, x: np.ndarray) -> Any:
        return x * sigmoid(x)

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        gate = b.sigmoid(x)
        return [b.multiply(ct, b.multiply(gate, b.add(b.multiply(x, b.subtract(1.0, gate)), 1.0)))]


@define_op
class Relu6(IntOrFloatUnary):
    """ReLU6: x clamped to [0, 6]; NaN stays NaN."""

    name = "nn.relu6"

    def scalar(self, x: Any) -> Any:
        return te.minimum(te.maximum(x, te.literal(0, x)), te.literal(6, x))

    def numpy(self, x: np.ndarray) -> Any:
        return np.minimum(np.maximum(x, 0), 6)

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        flat = b.logical_or(b.less_equal(out, 0.0), b.greater_equal(out, 6.0))
        return [b.where_not(flat, ct)]  # 0 at 0 and 6


@define_op
class LeakyRelu(FloatUnary):
    """Leaky ReLU: x where it is positive, else `alpha` * x."""

    name = "nn.leakyrelu"
    alpha: float = 0.01
    """Slope on the negative side."""

    def scalar(self, x: Any) -> Any:
        x = te.element(x)
        return te.select(te.greater(x, te.literal(0, x)), x, te.times(x, self.alpha))

    def numpy(self, x: np.ndarray) -> Any:
        return np.where(x > 0, x, x * x.dtype.type(self.alpha))

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        return [b.where(b.greater(x, 0.0), ct, b.multiply(ct, self.alpha))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(alpha=0.3), rand(3, 5), dims="n m")
        yield sample(cls(alpha=-1.0), rand(4), dims="n")
        yield sample(cls(alpha=0.0), _EDGES, dims="n")


@define_op
class Selu(FloatUnary):
    """The scaled exponential linear unit (SELU): scale * x where x is positive, else scale * alpha * (exp(x) - 1), with
    the constants of Klambauer et al., 2017."""

    name = "nn.selu"

    def scalar(self, x: Any) -> Any:
        x = te.element(x)
        below = te.literal(_SELU_ALPHA, x) * (te.exp(x) - te.literal(1, x))
        chosen = te.select(te.greater_equal(x, te.literal(0, x)), x, below)  # -0.0 stays
        return te.literal(_SELU_SCALE, x) * chosen

    def numpy(self, x: np.ndarray) -> Any:
        return _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * np.expm1(x))

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        below = b.add(out, _SELU_SCALE * _SELU_ALPHA)
        slope = b.where(b.greater(out, 0.0), _SELU_SCALE, below)
        return [b.multiply(ct, slope)]


@define_op
class Softplus(FloatUnary):
    """Softplus, a smooth ReLU: log(1 + exp(beta * x)) / beta; x itself where beta * x is above `threshold`."""

    name = "nn.softplus"
    beta: float = 1.0
    """Steepness: the factor of x in the exponential."""
    threshold: float = 20.0
    """Where beta * x is above this, the result is x."""

    def scalar(self, x: Any) -> Any:
        x = te.element(x)
        scaled = te.times(x, self.beta)
        # The argument of exp is never positive, so exp is at most 1 and cannot overflow.
        positive = te.maximum(scaled, te.literal(0, x))
        rest = te.log1p(te.exp(te.negative(te.absolute(scaled))))
        # The sum is positive or NaN: divided by 0 it is the same as times infinity.
        by_zero = math.copysign(math.inf, self.beta)
        soft = positive + rest
        soft = soft / te.literal(self.beta, x) if self.beta else te.times(soft, by_zero)
        return te.select(te.greater(scaled, te.literal(self.threshold, x)), x, soft)

    def numpy(self, x: np.ndarray) -> Any:
        scaled = x * x.dtype.type(self.beta)
        soft = np.logaddexp(scaled, x.dtype.type(0)) / x.dtype.type(self.beta)
        return np.where(scaled > self.threshold, x, soft)

    def pull(self, b: Rule, args: Sequence[Any], out: Expr, ct: Expr) -> Sequence[Expr | None]:
        (x,) = args
        scaled = b.multiply(x, self.beta)
        return [b.where(b.greater(scaled, self.threshold), ct, b.multiply(ct, b.sigmoid(scaled)))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from super().samples()
        yield sample(cls(beta=2.0, threshold=1.0), rand(3, 5), dims="n m")
        yield sample(cls(), np.array([-200.0, -30, 19, 21, 200], np.float32), dims="n")
        yield sample(cls(beta=0.0), _EDGES, dims="n")


@define_op
class Prelu(Op):
    """x where it is positive, else x * alpha (He et al., 2015). `alpha` has one element for each index of `axis`, or
    one element in all."""

    name = "nn.prelu"
    mixed = "follow"
    of_data = True
    axis: int = 1
    """The channel axis: alpha is a vector along it."""

    def deduce(self, d: Deduction, data: KnownTensor, alpha: KnownTensor) -> TensorType:
        d.need_float(data, "data")
        d.same_dtype(data, alpha)
        axis = d.axis(self.axis, data.ndim)
        d.require(
            alpha.ndim == 1,
            f"alpha must have 1 dimension, got {alpha.ndim}", arg="alpha", code="op-rank",
        )  # fmt: skip
        (count,) = alpha.dims
        d.ensure(
            dim_op("or", dim_op("eq", count, 1), dim_op("eq", count, data.dims[axis])),
            f"alpha must have 1 element or one for each index of axis {self.axis}: "
            f"{count} and {data.dims[axis]}",
            arg="alpha",
        )
        return TensorType(data.shape, data.dtype)

    def legalize(self, out: KnownTensor, data: te.Tensor, alpha: te.Tensor) -> te.Tensor:
        axis = self.axis % out.ndim
        size = out.dims[axis]

        def element(*i: Any) -> Any:
            x = te.widen(data(*i))
            slope = te.widen(te.broadcast(alpha, (size,), (i[axis],)))
            return te.cast(te.select(te.greater(x, te.literal(0, x)), x, x * slope), out.dtype)

        return te.compute(out.dims, element, "prelu")

    def reference(self, data: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        x = widened(data)
        shape = [-1 if a == self.axis % x.ndim else 1 for a in range(x.ndim)]
        return narrowed(np.where(x > 0, x, x * widened(alpha).reshape(shape)), data)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        data, alpha = args
        shape = [Dim.of(1)] * b.rank(data)
        shape[self.axis % b.rank(data)] = b.dims(alpha)[0]
        slope, positive = b.reshape(alpha, tuple(shape)), b.greater(data, 0.0)
        below = b.where_not(positive, b.multiply(ct, data))
        return [
            b.where(positive, ct, b.multiply(ct, slope)),
            b.reshape(b.summed(below, shape), b.dims(alpha)),
        ]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(2, 3, 4), rand(3), dims="n c 4, c")
        yield sample(cls(), rand(2, 3, 4), rand(3), dims="n c 4, k")
        yield sample(cls(), rand(2, 3, 4), rand(1), dims="n 3 m, 1")
        yield sample(cls(axis=-1), rand(5), rand(5), dims="n, n")
        yield sample(cls(axis=0), rand(0, 4), rand(0), dims="n 4, n")
        h = rand(2, 3, dtype="float16"), rand(3, dtype="float16")
        yield sample(cls(), *h, dims="n 3, 3", rtol=2e-3, atol=1e-3)
        yield wrong(cls(), rand(2, 3), rand(2), code="shape-mismatch", match="2 and 3")
        yield wrong(cls(), rand(2, 3), rand(3, 1), code="op-rank", match="alpha")
        yield wrong(cls(axis=2), rand(2, 3), rand(3), code="op-axis", match="2")
        yield wrong(cls(), rand(2, 3, dtype="int32"), rand(3, dtype="int32"), code="op-dtype")
