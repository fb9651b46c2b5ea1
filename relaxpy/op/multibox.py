"""Decoding of a detector's offsets from anchors into boxes and scores (`R.vision.multibox_transform_loc`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import Dim
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import widened
from relaxpy.op.rule import LATER

Floats = tuple[float, ...]


@define_op
class MultiboxTransformLoc(Op):
    """Decode anchor boxes. The result is a tuple: boxes (ymin, xmin, ymax, xmax), (B, N, 4), decoded from offsets (x,
    y, w, h) to anchors (left, top, right, bottom); and scores, (B, C, N), the softmax of the class predictions over the
    classes, 0 below `threshold`."""

    name = "vision.multibox_transform_loc"
    no_vjp = LATER
    of_data = True
    clip: bool = False
    """Whether boxes are clipped to [0, 1]."""
    threshold: float = 0.0
    variances: Floats = (1.0, 1.0, 1.0, 1.0)
    """Factors of the offsets x, y, w, h."""
    keep_background: bool = True
    """Whether class 0 keeps its scores; otherwise they are 0."""
    apply_softmax: bool = True
    """Whether predictions are logits; otherwise they are scores already."""

    def deduce(
        self, d: Deduction, cls_pred: KnownTensor, loc_pred: KnownTensor, anchor: KnownTensor
    ) -> TupleType:
        d.need_float(cls_pred, "cls_pred")
        dtype = d.same_dtype(cls_pred, loc_pred, anchor)
        ranks = {"cls_pred": (cls_pred, 3), "loc_pred": (loc_pred, 2), "anchor": (anchor, 3)}
        for name, (x, ndim) in ranks.items():
            d.require(
                x.ndim == ndim,
                f"{name} must have {ndim} dimensions, got {x.ndim}", arg=name, code="op-rank",
            )  # fmt: skip
        numbers = len(self.variances)
        d.require(numbers == 4, f"variances must be 4 numbers, got {numbers}", arg="variances")
        batch, classes, count = cls_pred.dims
        d.same_dim(batch, loc_pred.dims[0], "batches differ", arg="loc_pred")
        d.same_dim(loc_pred.dims[1], count * 4, "an anchor has 4 offsets", arg="loc_pred")
        for size, wanted, what in (
            (anchor.dims[0], Dim.of(1), "anchors are shared by all images"),
            (anchor.dims[1], count, "the numbers of anchors differ"),
            (anchor.dims[2], Dim.of(4), "an anchor has 4 numbers"),
        ):
            d.same_dim(size, wanted, what, arg="anchor")
        return TupleType(
            (TensorType((batch, count, 4), dtype), TensorType((batch, classes, count), dtype))
        )

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        dtype = next((a.dtype for a in args if isinstance(a, TensorType)), None)
        return TupleType((TensorType(None, dtype, 3), TensorType(None, dtype, 3)))

    def legalize(
        self, out: TupleType, cls_pred: te.Tensor, loc_pred: te.Tensor, anchor: te.Tensor
    ) -> list[te.Tensor]:
        boxes, scores = out.fields
        boxes = expect(KnownTensor, boxes)
        scores = expect(KnownTensor, scores)
        dtype, (batch, classes, count) = str(boxes.dtype), scores.dims
        wide = str(te.dtype_of(te.widen(te.const(0, dtype))))

        def read(b: Any, n: Any, k: Any, number: int) -> tuple[Any, Any, Any]:
            """For axis k (0: y, 1: x): an offset times its variance, and the two ends of the anchor."""
            y, x = (te.const(self.variances[number - a], wide) for a in (0, 1))
            offset = te.widen(loc_pred(b, n * 4 + (te.dim(number) - k)))
            ends = (te.widen(anchor(0, n, te.dim(edge) - k)) for edge in (1, 3))
            return (offset * te.select(te.equal(k, te.dim(0)), y, x), *ends)

        def centre(b: Any, n: Any, k: Any) -> Any:
            offset, low, high = read(b, n, k, 1)
            return offset * (high - low) + (low + high) * te.const(0.5, wide)

        def reach(b: Any, n: Any, k: Any) -> Any:
            offset, low, high = read(b, n, k, 3)
            return te.exp(offset) * (high - low) * te.const(0.5, wide)

        middles = te.compute((batch, count, 2), centre, "centres")
        reaches = te.compute((batch, count, 2), reach, "reaches")

        def corner(b: Any, n: Any, k: Any) -> Any:
            middle, far = (te.element(x(b, n, k % 2)) for x in (middles, reaches))
            value = te.select(te.less(k, te.dim(2)), middle - far, middle + far)
            if self.clip:
                zero, one = te.literal(0, value), te.literal(1, value)
                value = te.maximum(te.minimum(value, one), zero)
            return te.cast(value, dtype)

        power: Any = lambda b, c, n: te.widen(cls_pred(b, c, n))  # noqa: E731
        if self.apply_softmax:
            k, m = te.reduce_axis(classes, "k"), te.reduce_axis(classes, "m")
            largest = te.compute(
                (batch, count), lambda b, n: te.max(te.widen(cls_pred(b, k, n)), k), "largest"
            )
            raised = lambda b, c, n: te.exp(te.widen(cls_pred(b, c, n)) - largest(b, n))  # noqa: E731
            total = te.compute((batch, count), lambda b, n: te.sum(raised(b, m, n), m), "total")
            power = te.compute(
                (batch, classes, count), lambda b, c, n: raised(b, c, n) / total(b, n), "softmax"
            )

        def score(b: Any, c: Any, n: Any) -> Any:
            value = te.element(power(b, c, n))
            zero = te.literal(0, value)
            enough = te.greater_equal(value, te.literal(self.threshold, value))
            value = te.select(te.logical_or(enough, te.isnan(value)), value, zero)
            if not self.keep_background:
                value = te.select(te.equal(c, te.dim(0)), zero, value)
            return te.cast(value, dtype)

        return [
            te.compute((batch, count, 4), corner, "boxes"),
            te.compute((batch, classes, count), score, "scores"),
        ]

    def reference(
        self, cls_pred: np.ndarray, loc_pred: np.ndarray, anchor: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        value, loc, edges = map(widened, (cls_pred, loc_pred, anchor))
        batch, _, count = value.shape
        offsets = loc.reshape(batch, count, 4) * np.array(self.variances, loc.dtype)
        x, y, w, h = np.moveaxis(offsets, -1, 0)
        left, top, right, bottom = np.moveaxis(edges, -1, 0)
        half = edges.dtype.type(0.5)
        height, width = bottom - top, right - left
        with np.errstate(all="ignore"):
            middle_y, middle_x = (
                y * height + (top + bottom) * half,
                x * width + (left + right) * half,
            )
            reach_y, reach_x = np.exp(h) * height * half, np.exp(w) * width * half
            corners = middle_y - reach_y, middle_x - reach_x, middle_y + reach_y, middle_x + reach_x
            boxes = np.stack(corners, -1)
            if self.clip:
                boxes = np.clip(boxes, 0, 1)
            if self.apply_softmax:
                raised = np.exp(value - np.max(value, 1, keepdims=True, initial=-np.inf))
                value = raised / raised.sum(1, keepdims=True)
        value = np.where(value < value.dtype.type(self.threshold), 0, value)
        if not self.keep_background:
            value[:, :1] = 0
        return boxes.astype(cls_pred.dtype), value.astype(cls_pred.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        edges = np.sort(rand(1, 5, 4, low=0, high=1).reshape(1, 5, 2, 2), axis=2).reshape(1, 5, 4)
        inputs = rand(2, 3, 5), rand(2, 20), edges
        dims = "b c n, b n*4, 1 n 4"
        yield sample(cls(), *inputs, dims=dims)
        yield sample(cls(clip=True, threshold=0.3), *inputs, dims=dims)
        variances = (0.1, 0.1, 0.2, 0.2)
        yield sample(cls(variances=variances, keep_background=False), *inputs, dims=dims)
        yield sample(cls(apply_softmax=False, threshold=0.5), *inputs, dims=dims)
        half = [x.astype(np.float16) for x in inputs]
        yield sample(cls(), *half, dims=dims, rtol=2e-3, atol=2e-3)
        scores, offsets, anchor = inputs
        yield wrong(cls(variances=(1.0,)), *inputs, code="op-arguments", match="variances")
        yield wrong(
            cls(), scores, offsets[:, :19], anchor, code="shape-mismatch", match="4 offsets"
        )
        yield wrong(cls(), scores[:1], offsets, anchor, code="shape-mismatch", match="batches")
        yield wrong(cls(), scores, offsets, anchor[:, :4], code="shape-mismatch", match="anchors")
        yield wrong(cls(), scores[0], offsets, anchor, code="op-rank", match="cls_pred")
        double = scores.astype(np.float64)
        yield wrong(cls(), double, offsets, anchor, code="op-dtype", match="float32")
