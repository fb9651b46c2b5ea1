"""Softmax and log-softmax. float16 and bfloat16 are computed in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.rule import Cotangent, Rule


@dataclass(frozen=True)
class SoftmaxLike(Op):
    """The common part of softmax and log-softmax: the exponentials of the difference to the maximum along an axis, and
    their sum. The difference is never positive, so nothing overflows."""

    axis: int = -1
    """Axis along which the probabilities sum to 1."""

    def deduce(self, d: Deduction, data: KnownTensor) -> TensorType:
        d.need_float(data, "data")
        d.axis(self.axis, data.ndim)
        return TensorType(data.shape, data.dtype)

    def without_axis(self, i: tuple[Any, ...]) -> tuple[Any, ...]:
        """An index, or shape, without the axis."""
        axis = self.axis % len(i)
        return (*i[:axis], *i[axis + 1 :])

    def reduced(self, out: KnownTensor, reduce: Any, value: Any, name: str) -> te.Tensor:
        """Apply `reduce` to `value(index)` along the axis; the result has the other axes."""
        axis = self.axis % out.ndim
        k = te.reduce_axis(out.dims[axis], "k")
        return te.compute(
            self.without_axis(out.dims),
            lambda *i: reduce(te.element(value((*i[:axis], k, *i[axis:]))), k),
            name,
        )

    def largest(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        """The maximum along the axis."""
        return self.reduced(out, te.max, lambda i: te.widen(data(*i)), "largest")

    def distance(self, x: np.ndarray) -> np.ndarray:
        """The difference of each value to the maximum, on numpy."""
        return x - np.max(x, self.axis, keepdims=True, initial=-np.inf)

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


@define_op
class Softmax(SoftmaxLike):
    """Softmax: exp(x - max) / sum(exp(x - max)) along `axis`."""

    name = "nn.softmax"

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        largest = self.largest(out, data)
        power = te.compute(
            out.dims,
            lambda *i: te.exp(te.widen(data(*i)) - largest(*self.without_axis(i))),
            "power",
        )
        total = self.reduced(out, te.sum, lambda i: power(*i), "total")
        # One division per row: a multiplication takes a tenth of the time, and differs in the last bit only.
        inverse = te.compute(
            self.without_axis(out.dims),
            lambda *i: te.literal(1.0, te.element(total(*i))) / total(*i),
            "inverse",
        )
        return te.compute(
            out.dims,
            lambda *i: te.cast(power(*i) * inverse(*self.without_axis(i)), out.dtype),
            "softmax",
        )

    def reference(self, data: np.ndarray) -> np.ndarray:
        power = np.exp(self.distance(widened(data)))
        return narrowed(power / np.sum(power, self.axis, keepdims=True), data)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        weighted = b.multiply(ct, out)
        return [b.subtract(weighted, b.multiply(out, b.sum(weighted, self.axis, keepdims=True)))]


@define_op
class LogSoftmax(SoftmaxLike):
    """Log-softmax: x - max - log(sum(exp(x - max))) along `axis`. It does not underflow as the logarithm of softmax
    would."""

    name = "nn.log_softmax"

    def legalize(self, out: KnownTensor, data: te.Tensor) -> te.Tensor:
        largest = self.largest(out, data)

        def distance(i: tuple[Any, ...]) -> Any:
            return te.widen(data(*i)) - largest(*self.without_axis(i))

        total = self.reduced(out, te.sum, lambda i: te.exp(distance(i)), "total")

        def element(*i: Any) -> Any:
            return te.cast(distance(i) - te.log(total(*self.without_axis(i))), out.dtype)

        return te.compute(out.dims, element, "log_softmax")

    def reference(self, data: np.ndarray) -> np.ndarray:
        distance = self.distance(widened(data))
        total = np.sum(np.exp(distance), self.axis, keepdims=True)
        return narrowed(distance - np.log(total), data)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        total = b.sum(ct, self.axis, keepdims=True)
        return [b.subtract(ct, b.multiply(b.exp(out), total))]
