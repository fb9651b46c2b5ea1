"""Non-maximum suppression: of overlapping boxes, keep the one with the best score (`R.vision.non_max_suppression`,
`R.vision.all_class_non_max_suppression`). `R.vision.get_valid_counts` drops low scores first.

A box is two opposite corners, in any order. Boxes of equal scores keep their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import widened
from relaxpy.op.sorting import order_of, sorted_along


@define_op
class GetValidCounts(Op):
    """The valid boxes of each batch of boxes (B, N, E): those with a score above `score_threshold` and a class that is
    not negative. The result is a tuple: their number, int32; the boxes in their order, padded with rows of -1; and
    their indices, int32, padded with -1."""

    name = "vision.get_valid_counts"
    no_vjp = "it selects boxes"
    score_threshold: float = 0.0
    id_index: int = 0
    """Position of the class in a box; negative: none."""
    score_index: int = 1
    """Position of the score in a box."""

    def deduce(self, d: Deduction, data: KnownTensor) -> TupleType:
        _check_boxes(d, data, score_index=self.score_index, id_index=self.id_index)
        batch, count, _ = data.dims
        return TupleType(
            (
                TensorType((batch,), "int32"),
                TensorType(data.dims, data.dtype),
                TensorType((batch, count), "int32"),
            )
        )

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        kinds = ((1, "int32"), (3, _dtype(args)), (2, "int32"))
        return TupleType(TensorType(None, dtype, ndim) for ndim, dtype in kinds)

    def legalize(self, out: TupleType, data: te.Tensor) -> list[te.Tensor]:
        batch, count, numbers = te.dims(data)
        dtype = str(data.dtype)

        def fill(p: Any, counts: Any, boxes: Any, places: Any, source: Any) -> None:
            with te.rows(p, [batch]) as (b,):
                found: Any = te.cell(p, "found", te.dim(0))
                with p.loop("n", te.dim(count)) as n:
                    score = te.widen(p.read(source, b, n, self.score_index))
                    valid = te.greater(score, te.widen(te.const(self.score_threshold, dtype)))
                    if self.id_index >= 0:
                        kind = te.widen(p.read(source, b, n, self.id_index))
                        valid = te.logical_and(valid, te.greater_equal(kind, te.literal(0, kind)))
                    with p.when(te.known(p, "valid", te.cast(valid, "int64")) > 0):
                        with p.loop("e", te.dim(numbers)) as e:
                            p.write(boxes, b, found.get(), e, value=p.read(source, b, n, e))
                        p.write(places, b, found.get(), value=te.cast(n, "int32"))
                        found.set(found.get() + 1)
                p.write(counts, b, value=te.cast(found.get(), "int32"))
                with p.loop("n", te.dim(count)) as n, p.when(n >= found.get()):
                    with p.loop("e", te.dim(numbers)) as e:
                        p.write(boxes, b, n, e, value=te.const(-1, dtype))
                    p.write(places, b, n, value=te.const(-1, "int32"))

        outs = [((batch,), "int32"), ((batch, count, numbers), dtype), ((batch, count), "int32")]
        return te.serial(outs, [data], fill, "valid_counts")

    def reference(self, data: np.ndarray) -> tuple[np.ndarray, ...]:
        valid = data[:, :, self.score_index] > data.dtype.type(self.score_threshold)
        if self.id_index >= 0:
            valid &= data[:, :, self.id_index] >= 0
        boxes, places = np.full_like(data, -1), np.full(data.shape[:2], -1, np.int32)
        for b, row in enumerate(valid):
            (kept,) = np.nonzero(row)
            boxes[b, : len(kept)], places[b, : len(kept)] = data[b, kept], kept
        return valid.sum(1, dtype=np.int32), boxes, places

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        data = _boxes(2, 7)
        yield sample(cls(0.3), data, dims="b n e")
        yield sample(cls(0.0, -1, 1), data, dims="b n 6")
        yield sample(cls(0.5), data.astype(np.float16), dims="b n e")
        yield sample(cls(), data[:, :0], dims="b n e")
        yield wrong(cls(score_index=6), data, code="shape-mismatch", match="score_index")
        yield wrong(cls(score_index=-1), data, code="op-arguments", match="score_index")
        yield wrong(cls(), data[0], code="op-rank", match="data")
        yield wrong(cls(), data.astype(np.int32), code="op-dtype", match="float")


@define_op
class NonMaxSuppression(Op):
    """Non-maximum suppression. It selects, of the first `valid_count` boxes of each batch, in descending order of
    scores, those whose IoU with every selected box of their class is below `iou_threshold`. The result is a tuple of
    their `indices` (B, N), padded with -1, and their number, (B, 1). Without `return_indices` it is the boxes, with
    rows of -1 for suppressed ones. With a positive `soft_nms_sigma` scores are lowered instead (soft NMS), and the
    tuple begins with the boxes."""

    name = "vision.non_max_suppression"
    no_vjp = "it selects boxes"
    max_output_size: int = -1
    """Maximum number of boxes selected in a batch; below 1: no limit."""
    iou_threshold: float = 0.5
    force_suppress: bool = False
    """Whether boxes of different classes suppress each other."""
    top_k: int = -1
    """Number of boxes of a batch that are considered, best first; below 1: all."""
    coord_start: int = 2
    """Position of the first of the four coordinates in a box."""
    score_index: int = 1
    """Position of the score in a box."""
    id_index: int = 0
    """Position of the class in a box; negative: none."""
    return_indices: bool = True
    invalid_to_bottom: bool = False
    """Without `return_indices`: whether the selected boxes come first."""
    soft_nms_sigma: float = 0.0
    """Sigma of the Gaussian by which overlapping boxes lose score; 0: they are dropped."""
    score_threshold: float = 0.0
    """With `soft_nms_sigma`: boxes whose score falls below this are dropped."""

    def deduce(
        self, d: Deduction, data: KnownTensor, valid_count: KnownTensor, indices: KnownTensor
    ) -> Annotation:
        _check_boxes(
            d, data, score_index=self.score_index, id_index=self.id_index,
            coord_start=self.coord_start,
        )  # fmt: skip
        for name, x, ndim in (("valid_count", valid_count, 1), ("indices", indices, 2)):
            d.need_int(x, name)
            d.require(
                x.ndim == ndim,
                f"{name} must have {ndim} dimensions, got {x.ndim}", arg=name, code="op-rank",
            )  # fmt: skip
        batch, count, _ = data.dims
        d.same_dim(valid_count.dims[0], batch, "batches differ", arg="valid_count")
        d.same_dim(indices.dims[0], batch, "batches differ", arg="indices")
        d.same_dim(indices.dims[1], count, "numbers of boxes differ", arg="indices")
        boxes = TensorType(data.dims, data.dtype)
        places, kept = TensorType((batch, count), "int32"), TensorType((batch, 1), "int32")
        return self._results(boxes, places, kept)

    def _results(self, boxes: Any, places: Any, kept: Any, several: Any = TupleType) -> Any:
        if not self.return_indices:
            return boxes
        return several((boxes, places, kept) if self.soft else (places, kept))

    @property
    def soft(self) -> bool:
        """Whether scores are lowered (soft NMS)."""
        return self.soft_nms_sigma > 0

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        data = args[0] if isinstance(args[0], TensorType) else TensorType()
        boxes = TensorType(data.shape if data.ndim == 3 else None, data.dtype, 3)
        places = TensorType(None, "int32", 2)
        return self._results(boxes, places, places)

    def legalize(
        self, out: Annotation, data: te.Tensor, valid_count: te.Tensor, indices: te.Tensor
    ) -> Any:
        from relaxpy.op.nms_program import suppression

        batch, count, numbers = te.dims(data)
        dtype = str(data.dtype)

        def key(b: Any, n: Any) -> Any:
            score = te.widen(data(b, n, self.score_index))
            valid = te.less(n, te.cast(valid_count(b), "int64"))
            return te.select(valid, score, te.literal(-math.inf, score))

        keys = te.compute((batch, count), key, "keys")
        (order,) = sorted_along(keys, 1, True, values=False, order=_INT32)
        boxes = ((batch, count, numbers), dtype)
        places = [((batch, count), "int32"), ((batch, 1), "int32")]
        wanted = [boxes] if not self.return_indices else [boxes, *places] if self.soft else places
        made = te.serial(
            wanted, [data, order, valid_count, indices], suppression(self, data), "suppressed"
        )
        return made[0] if len(wanted) == 1 else made

    def reference(self, data: np.ndarray, valid_count: np.ndarray, indices: np.ndarray) -> Any:
        boxes, places = np.full_like(data, -1), np.full(data.shape[:2], -1, np.int32)
        kept = np.zeros((len(data), 1), np.int32)
        for b, row in enumerate(widened(data)):
            order = self._order(row, int(valid_count[b].astype(np.int64)))
            score = row[:, self.score_index].copy()
            best = self._softly(row, order, score) if self.soft else self._hard(row, order, score)
            found = data[b].copy()
            found[:, self.score_index] = score
            if self.return_indices or self.soft or self.invalid_to_bottom:
                best = [n for n in best if n >= 0]
            if self.invalid_to_bottom and not self.return_indices:
                best = [n for n in best if found[n, self.score_index] >= 0]
            for j, n in enumerate(best):
                if n >= 0:
                    boxes[b, j], places[b, j] = found[n], indices[b, n].astype(np.int32)
            kept[b] = len(best)
        return self._results(boxes, places, kept, tuple)

    def _order(self, row: np.ndarray, valid: int) -> list[int]:
        """The boxes that are considered, best first."""
        valid = min(max(valid, 0), len(row))
        order = order_of(row[:valid, self.score_index], 0, True).tolist()
        return order[: self.top_k] if self.top_k > 0 else order

    def _rivals(self, row: np.ndarray, a: int, b: int) -> bool:
        same = self.id_index < 0 or row[a, self.id_index] == row[b, self.id_index]
        return self.force_suppress or bool(same)

    def _room(self, kept: int) -> bool:
        return self.max_output_size < 1 or kept < self.max_output_size

    def _overlap(self, row: np.ndarray, a: int, b: int) -> Any:
        corners = slice(self.coord_start, self.coord_start + 4)
        return overlap(row[a, corners], row[b, corners])

    def _hard(self, row: np.ndarray, order: list[int], score: np.ndarray) -> list[int]:
        """The selected boxes at their positions in the order; -1 for suppressed ones."""
        alive = dict.fromkeys(order, True)
        found: list[int] = []
        for j, a in enumerate(order):
            stays = alive[a] and score[a] > 0 and self._room(sum(n >= 0 for n in found))
            found.append(a if stays else -1)
            for b in order[j + 1 :] if stays else ():
                if self._rivals(row, a, b) and self._overlap(row, a, b) >= row.dtype.type(
                    self.iou_threshold
                ):
                    alive[b] = False
        return found

    def _softly(self, row: np.ndarray, order: list[int], score: np.ndarray) -> list[int]:
        """The selected boxes, best first; lowers their scores."""
        kind = row.dtype.type
        least, enough = kind(self.score_threshold), kind(self.iou_threshold)
        place, kept = list(order), 0
        while self._room(kept):
            left = [j for j in range(kept, len(place)) if place[j] >= 0]
            best = max(left, key=lambda j: (score[place[j]], -j), default=None)
            if best is None or not score[place[best]] > least:
                break
            place[kept], place[best] = place[best], place[kept]
            for j in range(kept + 1, len(place)):
                b = place[j]
                if b < 0 or not score[b] > least or not self._rivals(row, place[kept], b):
                    continue
                iou = self._overlap(row, place[kept], b)
                if iou < enough:
                    score[b] = score[b] * np.exp(kind(-0.5 / self.soft_nms_sigma) * iou * iou)
                if iou >= enough or (iou < enough and score[b] <= least):
                    place[j] = -1
            kept += 1
        return place[:kept]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        data, counts = _boxes(2, 9), np.array([9, 6], np.int32)
        places = np.tile(np.arange(9, dtype=np.int32) * 3, (2, 1))
        inputs, dims = (data, counts, places), "b n e, b, b n"
        for op in (
            cls(), cls(return_indices=False), cls(return_indices=False, invalid_to_bottom=True),
            cls(iou_threshold=0.1, force_suppress=True), cls(top_k=4, max_output_size=2),
            cls(id_index=-1, iou_threshold=0.2), cls(soft_nms_sigma=0.5, id_index=-1),
            cls(soft_nms_sigma=0.3, score_threshold=0.4, iou_threshold=0.6, max_output_size=3),
            cls(soft_nms_sigma=0.5, return_indices=False, force_suppress=True),
            cls(soft_nms_sigma=0.5, return_indices=False, invalid_to_bottom=True),
        ):  # fmt: skip
            yield sample(op, *inputs, dims=dims)
        double = data.astype(np.float64), counts.astype(np.int64), places.astype(np.int64)
        yield sample(cls(iou_threshold=0.2), *double, dims=dims)
        yield sample(cls(), data[:, :0], counts, places[:, :0], dims=dims)
        yield wrong(cls(coord_start=3), *inputs, code="shape-mismatch", match="coord_start")
        yield wrong(cls(), data, counts[:1], places, code="shape-mismatch", match="batches")
        yield wrong(cls(), data, counts, places[:, 1:], code="shape-mismatch", match="boxes")
        yield wrong(
            cls(), data, counts.astype(np.float32), places, code="op-dtype", match="integers"
        )
        yield wrong(cls(), data, counts[None], places, code="op-rank", match="valid_count")
        yield wrong(cls(), data[0], counts, places, code="op-rank", match="data")


@define_op
class AllClassNonMaxSuppression(Op):
    """Non-maximum suppression per class of boxes (B, N, 4) with scores (B, C, N). It selects at most
    `max_output_boxes_per_class` boxes of each class, with a score above `score_threshold` and an IoU below
    `iou_threshold` with every selected box of a higher score. With `output_format` "onnx" the result is a tuple of rows
    (batch, class, box), int64, in descending order of scores within a class, and their number, (1,). With "tensorflow"
    it is a tuple of rows (class, box), (B, C * N, 2), their scores, and their number in each batch; unused rows are
    zeros."""

    name = "vision.all_class_non_max_suppression"
    no_vjp = "it selects boxes"
    of_data = True
    output_format: str = "onnx"
    legalize = None
    packed: ClassVar[str] = "relaxpy.all_class_non_max_suppression"
    """The runtime function."""

    def deduce(
        self,
        d: Deduction,
        boxes: KnownTensor,
        scores: KnownTensor,
        max_output_boxes_per_class: KnownTensor,
        iou_threshold: KnownTensor,
        score_threshold: KnownTensor,
    ) -> TupleType:
        known = ("onnx", "tensorflow")
        d.require(
            self.output_format in known,
            f"output_format {self.output_format!r} is none of {', '.join(known)}",
            arg="output_format",
        )
        d.need_float(boxes, "boxes")
        d.same_dtype(boxes, scores)
        for name, x in (("boxes", boxes), ("scores", scores)):
            d.require(
                x.ndim == 3,
                f"{name} must have 3 dimensions, got {x.ndim}", arg=name, code="op-rank",
            )  # fmt: skip
        d.need_int(max_output_boxes_per_class, "max_output_boxes_per_class")
        d.need_float(iou_threshold, "iou_threshold")
        d.need_float(score_threshold, "score_threshold")
        for name, x in (
            ("max_output_boxes_per_class", max_output_boxes_per_class),
            ("iou_threshold", iou_threshold),
            ("score_threshold", score_threshold),
        ):
            one = f"{name} must be one number"
            d.require(x.ndim <= 1, f"{one}, got {x.ndim} dimensions", arg=name, code="op-rank")
            for size in x.dims:
                d.same_dim(size, Dim.of(1), one, arg=name)
        batch, classes, count = scores.dims
        d.same_dim(boxes.dims[0], batch, "batches differ", arg="scores")
        d.same_dim(boxes.dims[1], count, "numbers of boxes differ", arg="scores")
        d.same_dim(boxes.dims[2], Dim.of(4), "a box has 4 numbers", arg="boxes")
        if self.output_format == "onnx":
            return TupleType((TensorType(None, "int64", 2), TensorType((1,), "int64")))
        rows = classes * count
        return TupleType(
            (
                TensorType((batch, rows, 2), "int64"),
                TensorType((batch, rows), "float32"),
                TensorType((batch,), "int64"),
            )
        )

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        if self.output_format == "onnx":
            return TupleType((TensorType(None, "int64", 2), TensorType((1,), "int64")))
        kinds = ((3, "int64"), (2, "float32"), (1, "int64"))
        return TupleType(TensorType(None, dtype, ndim) for ndim, dtype in kinds)

    def reference(
        self,
        boxes: np.ndarray,
        scores: np.ndarray,
        most: np.ndarray,
        iou: np.ndarray,
        least: np.ndarray,
    ) -> tuple[np.ndarray, ...]:
        boxes, scores = widened(boxes), widened(scores)
        batch, classes, count = scores.shape
        limit, enough, above = int(most.reshape(-1)[0]), iou.reshape(-1)[0], least.reshape(-1)[0]
        found: list[list[tuple[int, int]]] = [[] for _ in range(batch)]
        for b, c in np.ndindex(batch, classes):
            kept: list[int] = []
            for n in order_of(scores[b, c], 0, True).tolist():
                overlaps = (overlap(boxes[b, n], boxes[b, k]) >= enough for k in kept)
                if scores[b, c, n] > above and len(kept) < limit and not any(overlaps):
                    kept.append(n)
            found[b] += [(c, n) for n in kept]
        if self.output_format == "onnx":
            rows = [(b, *place) for b, places in enumerate(found) for place in places]
            return np.array(rows, np.int64).reshape(-1, 3), np.array([len(rows)], np.int64)
        places = np.zeros((batch, classes * count, 2), np.int64)
        values = np.zeros((batch, classes * count), np.float32)
        for b, row in enumerate(found):
            for j, (c, n) in enumerate(row):
                places[b, j], values[b, j] = (c, n), scores[b, c, n]
        return places, values, np.array([len(row) for row in found], np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        boxes, scores = _boxes(2, 8)[:, :, 2:], rand(2, 3, 8, low=0, high=1)
        limits = np.array(3), np.array([0.3], np.float32), np.array([0.2], np.float32)
        dims = "b n 4, b c n,, 1, 1"
        for form in ("onnx", "tensorflow"):
            yield sample(cls(form), boxes, scores, *limits, dims=dims)
            yield sample(cls(form), boxes[:, :0], scores[:, :, :0], *limits, dims=dims)
            yield sample(cls(form), boxes, scores[:, :0], *limits, dims=dims)
            none = np.array(0), *limits[1:]
            yield sample(cls(form), boxes, scores, *none, dims=dims)
        ties = np.full((1, 1, 8), 0.5, np.float32)
        yield sample(cls(), boxes[:1], ties, *limits, dims=dims)
        yield wrong(cls("coco"), boxes, scores, *limits, code="op-arguments", match="coco")
        yield wrong(cls(), boxes[:1], scores, *limits, code="shape-mismatch", match="batches")
        yield wrong(cls(), boxes[:, :7], scores, *limits, code="shape-mismatch", match="boxes")
        yield wrong(cls(), boxes[0], scores, *limits, code="op-rank", match="boxes")
        two = np.array([0.1, 0.2], np.float32)
        yield wrong(cls(), boxes, scores, limits[0], two, two, code="shape-mismatch", match="one")
        yield wrong(cls(), boxes, scores, two, *limits[1:], code="op-dtype", match="integers")


_INT32 = DType("int32")


def overlap(a: np.ndarray, b: np.ndarray) -> Any:
    """The IoU of two boxes: the area of their intersection divided by that of their union; 0 for boxes without area."""
    zero = a.dtype.type(0)
    low, high = np.minimum(a[:2], a[2:]), np.maximum(a[:2], a[2:])
    other_low, other_high = np.minimum(b[:2], b[2:]), np.maximum(b[:2], b[2:])
    sides = np.maximum(np.minimum(high, other_high) - np.maximum(low, other_low), zero)
    both = sides[0] * sides[1]
    extents, others = high - low, other_high - other_low
    total = extents[0] * extents[1] + others[0] * others[1] - both
    return zero if total <= zero else both / total


def _check_boxes(d: Deduction, data: KnownTensor, **indices: int) -> None:
    """Require three-dimensional floats, and indices that are positions in a box."""
    d.need_float(data, "data")
    d.require(
        data.ndim == 3, f"data must have 3 dimensions, got {data.ndim}", arg="data", code="op-rank"
    )
    for name, index in indices.items():
        needed = index + (4 if name == "coord_start" else 1)
        d.require(
            index >= 0 or name == "id_index", f"{name} must be at least 0, got {index}", arg=name
        )
        enough = dim_op("le", needed, data.dims[2])
        message = f"{name} is {index}, and a box has {data.dims[2]} numbers"
        if index >= 0:
            d.ensure(enough, message, arg="data")


def _dtype(args: Sequence[Annotation | None]) -> Any:
    (data, *_) = args
    return data.dtype if isinstance(data, TensorType) else None


def _boxes(batch: int, count: int) -> np.ndarray:
    """Boxes for samples: class (-1 is none), score, two corners."""
    corners = rand(batch, count, 4, low=0, high=4)
    classes = rand(batch, count, 1, dtype="int32", low=-1, high=2).astype(np.float32)
    return np.concatenate([classes, rand(batch, count, 1, low=0, high=1), corners], -1)
