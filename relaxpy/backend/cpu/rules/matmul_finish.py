"""The epilogue of a matrix product: a bias, an activation, a residual, applied to the finished sums.

It is applied to the vectors of a tile as they are stored, so the sums are not written to memory in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, Program
from relaxpy.tir.programs.vectors import ElementStmt, masked_store, vectorise
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.contraction import Epilogue, Operand
from relaxpy.tir.recognise.matmul import Dimension, place_of
from relaxpy.tir.tvm import tirx


@dataclass(frozen=True, eq=False)
class Total:
    """The location of finished sums; neighbouring columns are contiguous."""

    buffer: Buffer
    start: Expr


class Sums(Protocol):
    """The finished sums of a matrix product, or of a convolution."""

    @property
    def epilogue(self) -> Epilogue | None: ...
    @property
    def out(self) -> Operand: ...
    @property
    def row(self) -> Dimension: ...
    @property
    def column(self) -> Dimension: ...


class Finish:
    """Writes the epilogue of one product."""

    def __init__(self, program: Program, form: Sums, out: Buffer) -> None:
        assert form.epilogue is not None
        self.program, self.form, self.out = program, form, out
        self.value, self.total = form.epilogue.value, form.epilogue.total
        others = [r for r in s.loads_of(self.value) if not r.source.same_as(self.total)]
        # `finished` programs index flat buffers only.
        self.views = {r.source: program.flat_view(r.source) for r in others}
        self.aligned = {r.source for r in others if self._is_aligned(r)}

    def row_place(self, row: Expr) -> dict[Expr, Expr]:
        """The values of the rows' loop variables; only if the epilogue uses them."""
        return place_of(self.form.row, row) if self._uses(self.form.row) else {}

    def store(
        self,
        total: Total,
        place: Mapping[Expr, Expr],
        column: Expr,
        target: Expr,
        lanes: int,
        mask: Expr | None,
        window: tuple[Expr, ...] | None = None,
    ) -> None:
        """Store the finished sums of `lanes` columns from `column` on at `target`, masked to the columns that exist, or
        to those in the window (from, to; int32)."""
        stmt = self.vector(total, place, column, target, lanes)
        if stmt is not None and mask is not None:
            stmt = masked_store(stmt, mask)
        if stmt is not None:
            self.program.add(stmt)
            return
        first, end = (loops.int64(0), self.form.column.extent - column)
        if window is not None:
            first, end = map(loops.int64, window)
        left = loops.minimum(lanes, end) - first
        element = self._element(total, place, column, target)
        with self.program.loop("lane", left) as lane:  # all False if `left` is negative
            self.program.add(element(first + lane))

    def vector(
        self, total: Total, place: Mapping[Expr, Expr], column: Expr, target: Expr, lanes: int
    ) -> tirx.BufferStore | None:
        """The store of `lanes` columns as one vector; None if the epilogue is not written in vectors."""
        return vectorise(self._element(total, place, column, target), lanes)

    def _element(
        self, total: Total, place: Mapping[Expr, Expr], column: Expr, target: Expr
    ) -> ElementStmt:
        """The store of the element at offset `lane`."""

        def element(lane: Expr) -> tirx.BufferStore:
            values = {**place, **place_of(self.form.column, column + lane)}

            def load(node: s.Load) -> Expr:
                if node.source.same_as(self.total):
                    return tirx.BufferLoad(total.buffer, [loops.simplify(total.start + lane)])
                view = self.views[node.source]
                if node.source in self.aligned:
                    return tirx.BufferLoad(view, [target + lane])
                at = s.substitute(s.flat_index(node.indices, node.source.shape), values)
                return tirx.BufferLoad(view, [loops.simplify(at)])

            value = s.substitute(s.map_loads(self.value, load), values)
            return tirx.BufferStore(self.out, value, [target + lane])

        return element

    def _is_aligned(self, read: s.Load) -> bool:
        """Is a tensor of the output's shape read at exactly the place that is written?"""
        if not s.same_extents(read.source.shape, self.form.out.buffer.shape):
            return False
        assert self.form.epilogue is not None
        reads = [r for r in s.loads_of(self.value) if r.source.same_as(read.source)]
        return all(s.equal_indices(r.indices, self.form.epilogue.place) for r in reads)

    def _uses(self, dim: Dimension) -> bool:
        """Does the epilogue use the position along a dimension, other than to read where it writes?"""

        def gone(node: s.Load) -> Expr:
            known = node.source.same_as(self.total) or node.source in self.aligned
            return tirx.const(0, node.ty.dtype) if known else node

        rest = s.map_loads(self.value, gone)
        return any(s.uses(rest, axis.var) for axis in dim.axes)
