"""The tensor program of `R.vision.non_max_suppression`: batches in parallel, and within each the boxes best first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relaxpy.ir.dim import Dim
from relaxpy.op import te

if TYPE_CHECKING:
    from relaxpy.op.nms import NonMaxSuppression


def suppression(op: NonMaxSuppression, data: te.Tensor) -> Callable[..., None]:
    """The function that writes the program. It computes the results from the boxes `data`, the order of their scores,
    the number of valid boxes, and their indices."""
    batch, count, numbers = te.dims(data)

    def fill(p: Any, *buffers: Any) -> None:
        *results, source, order, valid, indices = buffers
        with te.rows(p, [batch]) as (b,):
            some = te.maximum(
                te.minimum(te.cast(p.read(valid, b), "int64"), te.dim(count)), te.dim(0)
            )
            if op.top_k > 0:
                some = te.minimum(some, te.dim(op.top_k))
            row = _Row(op, p, source, b, count, numbers, te.known(p, "some", some))
            row.start(order)
            if op.soft:
                row.softly()
            else:
                row.hard()
            *boxes, places, kept = results if op.return_indices else (*results, None, None)
            if boxes:
                row.write_boxes(boxes[0])
            if op.return_indices:
                row.write_places(places, kept, indices)

    return fill


@dataclass
class _Row:
    """The boxes of a batch."""

    op: NonMaxSuppression
    p: Any
    source: Any
    batch: Any
    count: Dim
    numbers: Dim
    some: Any
    """Number of boxes that are considered."""
    wide: str = ""
    place: Any = None
    """The box at each position of the order; -1 for none."""
    score: Any = None
    kept: Any = None
    """Number of boxes selected so far."""

    def start(self, order: Any) -> None:
        """Initialise the box at each position of the order (-1 if it is not considered) and its score."""
        p, wide = self.p, str(te.dtype_of(te.widen(self.p.read(self.source, 0, 0, 0))))
        self.wide = wide
        self.place = te.scratch(p, "place", self.count, "int64")
        self.score = te.scratch(p, "score", self.count, wide)
        self.kept = te.cell(p, "kept", te.dim(0))
        with p.loop("j", te.dim(self.count)) as j:
            at = te.known(p, "at", te.cast(p.read(order, self.batch, j), "int64"))
            p.write(self.score, j, value=self.number(at, self.op.score_index))
            p.write(self.place, j, value=te.select(j < self.some, at, te.dim(-1)))

    def number(self, place: Any, index: int) -> Any:
        """One of the numbers of a box: its class, score or a coordinate."""
        return te.widen(self.p.read(self.source, self.batch, place, index))

    def room(self) -> Any:
        """1 while another box may be selected."""
        if self.op.max_output_size < 1:
            return te.dim(1)
        return te.cast(self.kept.get() < te.dim(self.op.max_output_size), "int64")

    def hard(self) -> None:
        """Hard suppression: select each remaining box, and drop the later boxes that overlap it."""
        p, zero = self.p, te.const(0.0, self.wide)
        with p.loop("j", self.some, about=100) as j:
            alive = te.logical_and(
                p.read(self.place, j) >= te.dim(0), te.greater(p.read(self.score, j), zero)
            )
            stays = te.known(p, "stays", te.cast(alive, "int64") * self.room())
            with p.when(stays > 0):
                self.kept.set(self.kept.get() + 1)
                first = te.known(p, "first", p.read(self.place, j))
                with p.loop("k", self.some - (j + 1), about=50) as step:
                    k = te.known(p, "k", j + 1 + step)
                    with self.rival(first, k):
                        iou = self.overlap(first, k)
                        with p.when(
                            te.greater_equal(iou, te.const(self.op.iou_threshold, self.wide))
                        ):
                            p.write(self.place, k, value=te.dim(-1))
            with p.when(te.equal(stays, te.dim(0))):
                p.write(self.place, j, value=te.dim(-1))

    def softly(self) -> None:
        """Soft suppression: select the best remaining box, and lower the scores of the boxes that overlap it."""
        p, least = self.p, te.const(self.op.score_threshold, self.wide)
        width = te.const(-0.5 / self.op.soft_nms_sigma, self.wide)
        enough = te.const(self.op.iou_threshold, self.wide)
        with p.loop("round", self.some, about=100):
            best: Any
            record: Any
            best, record = te.cell(p, "best", te.dim(-1)), te.cell(p, "record", least)
            with p.loop("j", self.some, about=100) as j:
                left = te.logical_and(j >= self.kept.get(), p.read(self.place, j) >= te.dim(0))
                better = te.greater(p.read(self.score, j), record.get())
                with p.when(
                    te.known(p, "better", te.cast(te.logical_and(left, better), "int64")) > 0
                ):
                    best.set(j)
                    record.set(p.read(self.score, j))
            found = te.cast(best.get() >= te.dim(0), "int64") * self.room()
            with p.when(te.known(p, "found", found) > 0):
                now = te.known(p, "now", self.kept.get())
                for buffer, name in ((self.place, "place"), (self.score, "score")):
                    other = te.known(p, f"best_{name}", p.read(buffer, best.get()))
                    p.write(buffer, best.get(), value=p.read(buffer, now))
                    p.write(buffer, now, value=other)
                first = te.known(p, "first", p.read(self.place, now))
                with p.loop("k", self.some - (now + 1), about=50) as step:
                    k = te.known(p, "k", now + 1 + step)
                    with self.rival(first, k, least):
                        iou = self.overlap(first, k)
                        lowered = p.read(self.score, k) * te.exp(width * iou * iou)
                        lowered = te.known(p, "lowered", te.element(lowered))
                        with p.when(te.less(iou, enough)):
                            p.write(self.score, k, value=lowered)
                        gone = te.logical_and(te.less(iou, enough), te.less_equal(lowered, least))
                        with p.when(te.logical_or(te.greater_equal(iou, enough), gone)):
                            p.write(self.place, k, value=te.dim(-1))
                self.kept.set(now + 1)
        with p.loop("j", te.dim(self.count)) as j, p.when(j >= self.kept.get()):
            p.write(self.place, j, value=te.dim(-1))

    def rival(self, first: Any, k: Any, least: Any = None) -> Any:
        """A block that runs if the box at position k remains and has the class of box `first`."""
        from contextlib import ExitStack

        p, stack = self.p, ExitStack()
        alive = p.read(self.place, k) >= te.dim(0)
        if least is not None:
            alive = te.logical_and(alive, te.greater(p.read(self.score, k), least))
        stack.enter_context(p.when(alive))
        if self.op.id_index >= 0 and not self.op.force_suppress:
            kinds = (self.number(at, self.op.id_index) for at in (first, p.read(self.place, k)))
            stack.enter_context(p.when(te.equal(*kinds)))
        return stack

    def overlap(self, first: Any, k: Any) -> Any:
        """The IoU of two boxes: the area of their intersection divided by that of their union; 0 for boxes without
        area."""
        p, zero, start = self.p, te.const(0.0, self.wide), self.op.coord_start
        sides, areas = [], [te.const(1.0, self.wide), te.const(1.0, self.wide)]
        for axis in (0, 1):
            lows, highs = [], []
            for n, at in enumerate((first, p.read(self.place, k))):
                ends = [self.number(at, start + axis + corner) for corner in (0, 2)]
                lows.append(te.known(p, "low", te.minimum(*ends)))
                highs.append(te.known(p, "high", te.maximum(*ends)))
                areas[n] = areas[n] * (highs[n] - lows[n])
            sides.append(te.maximum(te.minimum(*highs) - te.maximum(*lows), zero))
        both = te.known(p, "both", sides[0] * sides[1])
        total = te.known(p, "total", areas[0] + areas[1] - both)
        return te.known(p, "iou", te.select(te.less_equal(total, zero), zero, both / total))

    def write_boxes(self, boxes: Any) -> None:
        """Write the selected boxes, and rows of -1 for the others; with `invalid_to_bottom` these come last."""
        p, dtype = self.p, str(boxes.dtype)
        first = self.op.invalid_to_bottom and not self.op.return_indices
        with p.loop("j", te.dim(self.count)) as j, p.loop("e", te.dim(self.numbers)) as e:
            p.write(boxes, self.batch, j, e, value=te.const(-1, dtype))
        found: Any = te.cell(p, "found", te.dim(0))
        with p.loop("j", te.dim(self.count)) as j:
            stays = p.read(self.place, j) >= te.dim(0)
            if first:
                score = p.read(self.score, j)
                stays = te.logical_and(stays, te.greater_equal(score, te.literal(0, score)))
            with p.when(stays):
                target = te.known(p, "target", found.get()) if first else j
                at = te.known(p, "at", p.read(self.place, j))
                with p.loop("e", te.dim(self.numbers)) as e:
                    p.write(
                        boxes, self.batch, target, e, value=p.read(self.source, self.batch, at, e)
                    )
                score = te.cast(p.read(self.score, j), dtype)
                p.write(boxes, self.batch, target, self.op.score_index, value=score)
                found.set(found.get() + 1)

    def write_places(self, places: Any, kept: Any, indices: Any) -> None:
        """Write the indices of the selected boxes, padded with -1, and their number."""
        p = self.p
        found: Any = te.cell(p, "next", te.dim(0))
        with p.loop("j", te.dim(self.count)) as j, p.when(p.read(self.place, j) >= te.dim(0)):
            index = p.read(indices, self.batch, p.read(self.place, j))
            p.write(places, self.batch, found.get(), value=te.cast(index, "int32"))
            found.set(found.get() + 1)
        with p.loop("j", te.dim(self.count)) as j, p.when(j >= found.get()):
            p.write(places, self.batch, j, value=te.const(-1, "int32"))
        p.write(kept, self.batch, 0, value=te.cast(found.get(), "int32"))
