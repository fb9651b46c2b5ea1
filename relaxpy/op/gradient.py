"""Gradients of operators with respect to an argument (`R.grad.…`), and marks that control how a program is
differentiated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.device import Mark
from relaxpy.op.gather import Take, nearest, position, position_numpy
from relaxpy.op.linear_algebra import wide_dtype
from relaxpy.op.loss import (
    check_nll,
    class_axis,
    class_weights,
    is_class,
    reference_weights,
)
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.reduce import Sum
from relaxpy.op.rule import Cotangent, NoRule, Rule
from relaxpy.op.scatter import Updates, scattered


def check_shape(d: Deduction, x: KnownTensor, wanted: Sequence[Dim], what: str, arg: str) -> None:
    """Require `x` to have the shape `wanted`, which is the shape of `what`."""
    d.require(
        x.ndim == len(wanted),
        f"{arg} must have {len(wanted)} dimensions, as {what}, got {x.ndim}",
        arg=arg,
        code="shape-mismatch",
    )
    for a, b in zip(x.dims, wanted, strict=True):
        d.same_dim(a, b, f"{arg} must have the shape of {what}", arg=arg)


class Gradient(Op):
    """A gradient with respect to an argument of known shape and dtype."""

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return self.like(args)

    def like(self, args: Sequence[Annotation | None]) -> TensorType:
        """The annotation of the gradient, which is that of the differentiated argument, as far as it is known."""
        x = expect(TensorType, args[1])
        return TensorType(x.shape, x.dtype, x.ndim)


@define_op
class NllLossBackward(Gradient):
    """The gradient of `nn.nll_loss` with respect to predictions, given the gradient `output_grad` of its result. At the
    class t of each target it is -weights[t] * output_grad, divided by the sum of the weights for "mean". It is 0
    elsewhere, and for ignored targets."""

    name = "grad.nll_loss_backward"
    of_data = True
    reduction: str = "mean"
    """"mean", "sum" or "none": the reduction of the loss."""
    ignore_index: int = -100

    def deduce(
        self, d: Deduction, output_grad: KnownTensor, predictions: KnownTensor, targets: KnownTensor,
        weights: KnownTensor | None = None,
    ) -> TensorType:  # fmt: skip
        check_nll(d, self.reduction, predictions, targets, weights)
        d.same_dtype(output_grad, predictions)
        wanted = targets.dims if self.reduction == "none" else ()
        check_shape(d, output_grad, wanted, "the loss", "output_grad")
        return TensorType(predictions.dims, predictions.dtype)

    def legalize(
        self, out: KnownTensor, output_grad: te.Tensor, predictions: te.Tensor, targets: te.Tensor,
        weights: te.Tensor | None = None,
    ) -> te.Tensor:  # fmt: skip
        weight = class_weights(predictions, targets, weights, self.ignore_index)
        total = Sum().reduced(out_of_number(weight), weight, te.sum, name="scale")
        axis = class_axis(len(predictions.shape))

        def share(*i: Any) -> Any:
            """The gradient at the class of a target."""
            whole = te.widen(output_grad(*(i if self.reduction == "none" else ())))
            found = te.negative(weight(*i)) * whole
            return found / total() if self.reduction == "mean" else found

        shares = te.compute(te.dims(targets), share, "share")

        def element(*i: Any) -> Any:
            place = (*i[:axis], *i[axis + 1 :])
            known, target = is_class(predictions, targets, place, self.ignore_index)
            here = te.logical_and(known, te.equal(target, i[axis]))
            value = te.element(shares(*place))
            return te.cast(te.select(here, value, te.literal(0, value)), out.dtype)

        return te.compute(out.dims, element, "nll_loss_backward")

    def reference(
        self, output_grad: np.ndarray, predictions: np.ndarray, targets: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        wide, axis = widened(predictions), class_axis(predictions.ndim)
        known, index, weight = reference_weights(wide, targets, weights, self.ignore_index)
        share = -weight * widened(output_grad)
        if self.reduction == "mean":
            share = np.divide(share, np.sum(weight, dtype=wide.dtype))
        classes = np.arange(wide.shape[axis]).reshape(-1, *(1,) * (predictions.ndim - 1 - axis))
        here = np.expand_dims(known, axis) & (np.expand_dims(index, axis) == classes)
        return narrowed(np.where(here, np.expand_dims(share, axis), 0), predictions)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        _, _, targets, weights = args
        found = b.nn.nll_loss(ct, targets, weights, self.reduction, self.ignore_index)
        return [found, None, None, NoRule("the weights of nll_loss are constants")]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        targets = np.array([2, 0, -100, 4, 1, 9], np.int64)
        one, x, w = rand(), rand(6, 5), rand(5, low=0.1)
        yield sample(cls(), one, x, targets, w, dims=", n c, n, c")
        yield sample(cls("sum", 4), one, x, targets.astype(np.int32), dims=", n 5, n")
        many = rand(2, 3, 4, dtype="int64", low=-1, high=5)
        each = rand(2, 3, 4)
        yield sample(cls("none"), each, rand(2, 5, 3, 4), many, w, dims="n h 4, n c h 4, n h 4, c")
        yield sample(cls(), one, rand(5), np.array(3, np.int64), w, dims=", c,, c")
        yield sample(cls("none"), one, rand(5), np.array(3, np.int64), dims=", c,")
        yield sample(cls(), one, x[:0], targets[:0], dims=", n c, n")
        half = (one.astype(np.float16), x.astype(np.float16), targets)
        yield sample(cls(), *half, dims=", n c, n", rtol=2e-3, atol=2e-3)
        yield wrong(cls(), rand(6), x, targets, code="shape-mismatch", match="0 dimensions")
        yield wrong(cls("none"), rand(5), x, targets, code="shape-mismatch", match="5 and 6")
        yield wrong(cls(), one, x, targets[:4], code="shape-mismatch", match="6 and 4")
        yield wrong(cls(), one.astype(np.float16), x, targets, code="op-dtype", match="float16")


def out_of_number(x: te.Tensor) -> KnownTensor:
    """The annotation of a 0-d tensor of the dtype of `x`."""
    return KnownTensor((), str(x.dtype))


@define_op
class TakeBackward(Gradient):
    """The gradient of `take` (mode "fast") with respect to x: each slice of `output_grad` is added to a tensor of zeros
    at its index, clamped if out of range."""

    name = "grad.take_backward"
    of_data = True
    axis: int | None = None
    """Axis of x that was indexed; None is allowed if x has one axis."""
    mode: str = "fast"
    """The mode of `take`: "fast", "clip", or "" (TVM's spelling of no mode)."""

    def deduce(
        self, d: Deduction, output_grad: KnownTensor, x: KnownTensor, indices: KnownTensor
    ) -> TensorType:
        d.need_float(x, "x")
        known = ("fast", "clip", "")
        d.require(self.mode in known, f"mode {self.mode!r} is none of fast, clip", arg="mode")
        d.same_dtype(output_grad, x)
        taken = Take(self.axis).deduce(d, x, indices)
        check_shape(d, output_grad, taken.dims or (), "the result of take", "output_grad")
        return TensorType(x.dims, x.dtype)

    def legalize(
        self, out: KnownTensor, output_grad: te.Tensor, x: te.Tensor, indices: te.Tensor
    ) -> te.Tensor:
        axis, count = (self.axis or 0) % len(x.shape), len(indices.shape)
        size, wide = te.dims(x)[axis], wide_dtype(DType(str(x.dtype)))
        zeros = te.compute(te.dims(x), lambda *_: te.const(0, wide), "zeros")

        def read(p: Any, buffers: Any, index: Any) -> tuple[list[Any], Any]:
            grad, places = buffers
            at = nearest(position(p.read(places, *index[axis : axis + count])), size)
            return [*index[:axis], at, *index[axis + count :]], p.read(grad, *index)

        updates = Updates(te.dims(output_grad), [output_grad, indices], read)
        return scattered(out, zeros, updates, "add", "take_backward")

    def reference(self, output_grad: np.ndarray, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        axis = (self.axis or 0) % x.ndim
        found = np.zeros_like(widened(x))
        if x.shape[axis] > 0:
            places = np.clip(position_numpy(indices), 0, x.shape[axis] - 1)
            where: Any = (*(slice(None),) * axis, places)
            np.add.at(found, where, widened(output_grad))
        return narrowed(found, x)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [b.take(ct, args[2], self.axis, self.mode or "fast")]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ids = np.array([0, 3, 3, -5, 99], np.int64)
        yield sample(cls(0), rand(5, 3), rand(4, 3), ids, dims="m 3, n 3, m")
        yield sample(
            cls(1), rand(2, 5, 3), rand(2, 4, 3), ids.astype(np.int32), dims="n m 3, n 4 3, m"
        )
        yield sample(cls(), rand(5), rand(4), ids, dims="m, n, m")
        pairs = ids[:4].reshape(2, 2)
        half = [a.astype(np.float16) for a in (rand(3, 2, 2), rand(3, 4))]
        yield sample(cls(-1), *half, pairs, dims="n m 2, n 4, m 2", rtol=2e-3, atol=2e-3)
        yield sample(cls(0), rand(5, 3), rand(0, 3), ids, dims="m 3, n 3, m")
        yield wrong(cls(0), rand(4, 3), rand(4, 3), ids, code="shape-mismatch", match="4 and 5")
        yield wrong(cls(0), rand(5), rand(4, 3), ids, code="shape-mismatch", match="2 dimensions")
        yield wrong(cls(), rand(5, 3), rand(4, 3), ids, code="op-axis", match="axis")
        wrapped = cls(0, "wrap"), rand(5, 3), rand(4, 3), ids
        yield wrong(*wrapped, code="op-arguments", match="wrap")


class GradientMark(Mark):
    """A mark for differentiation passes; its value is its argument."""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4), dims="n 4")
        yield sample(cls(), rand(0, dtype="int32"), dims="n")
        yield wrong(cls(), (3, 4), code="op-arguments", match="must be a tensor")


@define_op
class NoGrad(GradientMark):
    """x, treated as a constant by differentiation."""

    name = "grad.no_grad"

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [None]


@define_op
class StartCheckpoint(GradientMark):
    """x, as an input of a gradient checkpointing stage: values inside the stage, which are those that depend on it and
    on no output of the stage, are recomputed for the gradient instead of being kept."""

    name = "grad.start_checkpoint"


@define_op
class EndCheckpoint(GradientMark):
    """x, as an output of a gradient checkpointing stage: values inside the stage are recomputed for the gradient
    instead of being kept."""

    name = "grad.end_checkpoint"


@define_op
class Barrier(Mark):
    """x, but not before the value `after` is there. What is computed from it is no other computation's equal: so what a
    backward pass recomputes is computed then, and not kept."""

    name = "grad.barrier"
    of_data = True

    def deduce(self, d: Deduction, x: KnownTensor, after: KnownTensor) -> TensorType:
        return self.marked(x)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return super().deduce_unranked(d, args[:1])

    def reference(self, x: np.ndarray, after: np.ndarray) -> np.ndarray:
        return x

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        return [ct, None]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 4), rand(2), dims="n 4, m")
        yield sample(cls(), rand(0, dtype="int32"), rand(), dims="n,")
        yield wrong(cls(), (3, 4), rand(), code="op-arguments", match="must be a tensor")
