"""Loss functions. Sums of float16 and bfloat16 are accumulated in float32 and rounded once."""

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
from relaxpy.op.binary import Divide
from relaxpy.op.deduction import Deduction
from relaxpy.op.linear_algebra import wide_dtype
from relaxpy.op.precision import narrowed, sum_dtype, widened
from relaxpy.op.reduce import Sum, rounded
from relaxpy.op.rule import Cotangent, NoRule, Rule


@define_op
class CrossEntropyWithLogits(Op):
    """The sum of -predictions * labels, a 0-d tensor. With several axes it is divided by the size of the first (the
    batch); an empty batch gives NaN. Integers are divided as by `divide`: rounded toward zero, 0 for an empty batch."""

    name = "nn.cross_entropy_with_logits"

    def deduce(self, d: Deduction, predictions: KnownTensor, labels: KnownTensor) -> TensorType:
        for name, x in (("predictions", predictions), ("labels", labels)):
            d.require(
                not x.dtype.is_bool, f"{name} must be numbers, got bool", arg=name, code="op-dtype"
            )
        dtype = d.same_dtype(predictions, labels)
        d.require(
            predictions.ndim == labels.ndim,
            f"labels must have {predictions.ndim} dimensions, as predictions, got {labels.ndim}",
            arg="labels",
            code="shape-mismatch",
        )
        for a, b in zip(predictions.dims, labels.dims, strict=True):
            d.same_dim(a, b, "sizes of predictions and labels differ", arg="labels")
        return TensorType((), dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType((), next((a.dtype for a in args if isinstance(a, TensorType)), None))

    def legalize(self, out: KnownTensor, predictions: te.Tensor, labels: te.Tensor) -> te.Tensor:
        sizes = te.dims(predictions)
        product = te.compute(
            sizes,
            lambda *i: te.negative(te.widen(predictions(*i))) * te.widen(labels(*i)),
            "product",
        )
        total = Sum().reduced(out, product, te.sum, name="total")
        if len(sizes) < 2:
            return rounded(out, total)
        wide = DType(str(total.dtype))
        count = sum_dtype(wide) if wide.is_int else wide  # one that holds the size
        mean = lambda: te.per_count(te.cast(total(), count), sizes[0])  # noqa: E731
        return te.compute((), lambda: te.cast(mean(), out.dtype), "mean")

    def reference(self, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
        total = np.sum(-widened(predictions) * widened(labels), dtype=widened(predictions).dtype)
        if predictions.ndim > 1 and total.dtype.kind in "iu":
            wide = sum_dtype(DType(total.dtype)).numpy
            total = Divide().numpy(total.astype(wide), np.asarray(predictions.shape[0], wide))
        elif predictions.ndim > 1:
            total = np.divide(total, total.dtype.type(predictions.shape[0]))
        return narrowed(total, predictions)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        predictions, labels = args
        sizes = b.dims(predictions)
        share = b.divide(ct, sizes[0]) if len(sizes) > 1 else ct
        share = b.negative(share)
        return [b.multiply(labels, share), b.multiply(predictions, share)]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), rand(3, 5), rand(3, 5), dims="n m, n m")
        yield sample(cls(), rand(7), rand(7), dims="n, n")
        yield sample(cls(), rand(2, 3, 4), rand(2, 3, 4), dims="n m 4, n m 4")
        yield sample(cls(), rand(0, 4), rand(0, 4), dims="n 4, n 4")
        whole = np.arange(-7, 8, dtype=np.int8).reshape(3, 5)
        yield sample(cls(), whole, whole, dims="n m, n m")
        half = rand(3, 5, dtype="float16")
        yield sample(cls(), half, half, dims="n m, n m", rtol=2e-3, atol=2e-3)
        yield sample(cls(), rand(), rand())
        yield wrong(cls(), rand(3, 5), rand(3, 4), code="shape-mismatch", match="5 and 4")
        yield wrong(cls(), rand(3, 5), rand(5), code="shape-mismatch", match="2 dimensions")
        yield wrong(cls(), half, rand(3, 5), code="op-dtype", match="float16")


@define_op
class NllLoss(Op):
    """Negative log-likelihood: -predictions[n, t, …] * weights[t] for each target t = targets[n, …]. predictions (n,
    classes, …) are log-probabilities; a vector of classes has one target. The reduction "sum" adds them up, "mean" also
    divides by the sum of the weights (NaN if there are none), and "none" keeps them. A target that is `ignore_index` or
    no valid class has weight 0."""

    name = "nn.nll_loss"
    reduction: str = "mean"
    """"mean", "sum" or "none"."""
    ignore_index: int = -100

    def deduce(
        self, d: Deduction, predictions: KnownTensor, targets: KnownTensor,
        weights: KnownTensor | None = None,
    ) -> TensorType:  # fmt: skip
        places = check_nll(d, self.reduction, predictions, targets, weights)
        return TensorType(places if self.reduction == "none" else (), predictions.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        predictions, targets, *_ = args
        predictions = expect(TensorType, predictions)
        targets = expect(TensorType, targets)
        if self.reduction != "none":
            return TensorType((), predictions.dtype)
        ndim = targets.ndim if predictions.ndim < 0 else predictions.ndim - 1
        return TensorType(targets.shape if ndim else (), predictions.dtype, ndim)

    def legalize(
        self, out: KnownTensor, predictions: te.Tensor, targets: te.Tensor,
        weights: te.Tensor | None = None,
    ) -> te.Tensor:  # fmt: skip
        shape = te.dims(targets)
        weight = class_weights(predictions, targets, weights, self.ignore_index)

        def loss(*i: Any) -> Any:
            known, target = is_class(predictions, targets, i, self.ignore_index)
            read = te.widen(predictions(*class_index(i, target, len(predictions.shape))))
            found = te.negative(read) * weight(*i)
            return te.if_then_else(known, found, te.literal(0, found))

        losses = te.compute(shape, loss, "loss")
        if self.reduction == "none":
            return rounded(out, losses)
        total = Sum().reduced(out, losses, te.sum, name="total")
        if self.reduction == "sum":
            return rounded(out, total)
        scale = Sum().reduced(out, weight, te.sum, name="scale")
        return te.compute((), lambda: te.cast(total() / scale(), out.dtype), "mean")

    def reference(
        self, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None
    ) -> np.ndarray:
        wide = widened(predictions)
        known, index, weight = reference_weights(wide, targets, weights, self.ignore_index)
        axis, zero = class_axis(wide.ndim), wide.dtype.type(0)
        if wide.shape[axis] == 0:
            losses = np.zeros(targets.shape, wide.dtype)
        else:
            picked = np.take_along_axis(wide, np.expand_dims(index, axis), axis).squeeze(axis)
            losses = np.where(known, -picked * weight, zero)
        if self.reduction != "none":
            losses = np.sum(losses, dtype=wide.dtype)
        if self.reduction == "mean":
            losses = np.divide(losses, np.sum(weight, dtype=wide.dtype))
        return narrowed(losses, predictions)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        predictions, targets, weights = args
        found = b.grad.nll_loss_backward(
            ct, predictions, targets, weights, self.reduction, self.ignore_index
        )
        return [found, None, NoRule("the weights of nll_loss are constants")]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        targets = np.array([2, 0, -100, 4, 1, 9], np.int64)
        yield sample(cls(), rand(6, 5), targets, rand(5, low=0.1), dims="n c, n, c")
        yield sample(cls(), rand(6, 5), targets, dims="n c, n")
        yield sample(cls("sum", 4), rand(6, 5), targets.astype(np.int32), dims="n 5, n")
        many = rand(2, 3, 4, dtype="int64", low=-1, high=5)
        yield sample(cls("none"), rand(2, 5, 3, 4), many, rand(5), dims="n c h 4, n h 4, c")
        yield sample(cls(), rand(2, 5, 3, 4), many, dims="n c h 4, n h 4")
        yield sample(cls(), rand(5), np.array(3, np.int64), rand(5, low=0.1), dims="c,, c")
        yield sample(cls("none"), rand(5), np.array(3, np.int64), dims="c,")
        yield sample(cls(), rand(0, 5), targets[:0], dims="n c, n")
        half = rand(6, 5, dtype="float16")
        yield sample(cls("sum"), half, targets, dims="n c, n", rtol=2e-3, atol=2e-3)
        yield wrong(cls(), rand(6, 5), targets[:4], code="shape-mismatch", match="6 and 4")
        yield wrong(cls(), rand(6, 5), targets, rand(4), code="shape-mismatch", match="5 and 4")
        yield wrong(cls(), rand(6, 5), rand(6), code="op-dtype", match="targets")
        yield wrong(cls("product"), rand(6, 5), targets, code="op-arguments", match="product")
        yield wrong(cls(), rand(6, 5), many, code="shape-mismatch", match="1 dimension")


# The common part of the loss and its gradient


def check_nll(
    d: Deduction,
    reduction: str,
    predictions: KnownTensor,
    targets: KnownTensor,
    weights: KnownTensor | None,
) -> tuple[Dim, ...]:
    """Refuse arguments of `nn.nll_loss` that do not fit each other. Return the dimensions of the targets."""
    d.need_float(predictions, "predictions")
    d.need_int(targets, "targets")
    d.require(
        reduction in ("mean", "sum", "none"),
        f'reduction must be "mean", "sum" or "none", got {reduction!r}',
        arg="reduction",
    )
    d.require(
        predictions.ndim > 0,
        "predictions must have an axis of classes",
        arg="predictions",
        code="op-rank",
    )
    rank = predictions.ndim - 1
    d.require(
        targets.ndim == rank,
        f"targets must have {rank} dimension{'' if rank == 1 else 's'}, got {targets.ndim}",
        arg="targets",
        code="shape-mismatch",
    )
    axis = class_axis(predictions.ndim)
    places = predictions.dims[:axis] + predictions.dims[axis + 1 :]
    message = "sizes of predictions and targets differ"
    found = tuple(
        d.same_dim(a, b, message, arg="targets") for a, b in zip(places, targets.dims, strict=True)
    )
    if weights is not None:
        d.same_dtype(predictions, weights)
        d.require(
            weights.ndim == 1, "weights must have one dimension", arg="weights", code="op-rank"
        )
        d.same_dim(
            predictions.dims[axis], weights.dims[0], "numbers of classes differ", arg="weights"
        )
    return found


def class_axis(rank: int) -> int:
    """The class axis of predictions of this rank."""
    return min(1, rank - 1)


def class_index(place: Sequence[Any], target: Any, rank: int) -> tuple[Any, ...]:
    """The index of the prediction for class `target` at an index of the targets."""
    axis = class_axis(rank)
    return (*place[:axis], target, *place[axis:])


def is_class(
    predictions: te.Tensor, targets: te.Tensor, place: Sequence[Any], ignore_index: int
) -> tuple[Any, Any]:
    """Whether the target at an index is a class that counts, and the class."""
    classes = te.dim(te.dims(predictions)[class_axis(len(predictions.shape))])
    target = te.cast(targets(*place), DType("int64"))
    inside = te.logical_and(te.greater_equal(target, te.dim(0)), te.less(target, classes))
    counts = te.not_equal(target, te.dim(ignore_index))
    return te.logical_and(inside, counts), target


def class_weights(
    predictions: te.Tensor, targets: te.Tensor, weights: te.Tensor | None, ignore_index: int
) -> te.Tensor:
    """The weight of each target, in the accumulation dtype; 0 for an ignored target."""
    wide = wide_dtype(DType(str(predictions.dtype)))

    def weight(*i: Any) -> Any:
        known, target = is_class(predictions, targets, i, ignore_index)
        one, zero = te.const(1, wide), te.const(0, wide)
        return te.if_then_else(known, one if weights is None else te.widen(weights(target)), zero)

    return te.compute(te.dims(targets), weight, "weight")


def reference_weights(
    wide: np.ndarray, targets: np.ndarray, weights: np.ndarray | None, ignore_index: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each target: whether it counts, its class (0 if it does not count), and its weight."""
    classes = wide.shape[class_axis(wide.ndim)]
    targets = targets.astype(np.int64)
    known = (targets >= 0) & (targets < classes) & (targets != ignore_index)
    index = np.where(known, targets, 0)
    each = np.ones(classes, wide.dtype) if weights is None else widened(weights)
    weight = np.where(known, each[index] if classes else 0, 0).astype(wide.dtype)
    return known, index, weight
