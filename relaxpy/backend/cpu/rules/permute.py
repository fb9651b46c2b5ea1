"""Transpositions and other permutations of axes, read and written in whole vectors.

If a stage reads elements that are contiguous along an axis that is not the last of its result, a square of vectors is
read along that axis, transposed in registers, and written along the last axis. Squares are visited in blocks, so that
each cache line and each page is used up while it is cached. The rest of the stage's value (a bias, a conversion) is
computed on the transposed vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.backend.cpu.rules.nests import At, StageWriter, extent_of
from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.backend.cpu.rules.transpose import transposed
from relaxpy.backend.knobs import knob
from relaxpy.tir.forms import stages as s
from relaxpy.tir.forms.stages import Load, Stage, Var
from relaxpy.tir.tvm import tirx, tvm_ffi
from relaxpy.tir.writer.loops import (
    Buffer,
    Expr,
    both,
    ceildiv,
    clamped_int32,
    constant,
    first_lanes,
    int64,
    minimum,
    simplify,
)
from relaxpy.tir.writer.vectors import masked_store, masked_value, vector_value, vectorise

BLOCK = 128
"""Squares are visited in blocks of this many positions along both axes: some cache lines of each row, 64 KiB of
float32."""
_FEWEST = 4
"""With fewer positions along an axis, squares would be mostly empty."""


def crossed_axis(stage: Stage) -> Var | None:
    """The axis along which those reads are contiguous that are not contiguous along the last axis; None if there is
    none."""
    if stage.combiner is not None or len(stage.axes) < 2 or s.has_choice(stage.value):
        return None
    *others, last = stage.axes
    reads = _crossing(stage, last)
    for axis in others if reads else ():
        extents = (constant(extent_of(stage, a)) for a in (axis, last))
        if all(s.step(r.indices, r.source.shape, axis) == 1 for r in reads) and all(
            extent is None or extent >= _FEWEST for extent in extents
        ):
            return axis
    return None


def write_permuted(writer: StageWriter, stage: Stage, axis: Var) -> bool:
    """Write the stage in squares over `axis` and the last axis, with blocks in parallel. Returns False, and writes
    nothing, if the rest of its value cannot be vectorised."""
    squares = _Squares.of(writer, stage, axis)
    if squares is None:
        return False
    p, last = writer.program, stage.axes[-1]
    outer = [a for a in stage.axes[:-1] if a is not axis]
    extents = [extent_of(stage, a) for a in outer]
    lengths = [extent_of(stage, a) for a in (axis, last)]
    size = knob("block", BLOCK, (32, 64, 256))
    blocks = [ceildiv(length, size) for length in lengths]
    with p.loop("block", product([*extents, *blocks]), parallel=True) as block:
        *places, i, j = split_index(p, block, [*extents, *blocks])
        at = dict(zip(outer, places, strict=True))
        starts = [p.let("start", simplify(b * int64(size))) for b in (i, j)]
        counts = [
            ceildiv(minimum(size, length - start), squares.size)
            for length, start in zip(lengths, starts, strict=True)
        ]
        with p.loop("across", counts[0]) as across, p.loop("along", counts[1]) as along:
            down = p.let("down", simplify(starts[0] + across * int64(squares.size)))
            right = p.let("right", simplify(starts[1] + along * int64(squares.size)))
            squares.write(at, down, right)
    return True


@dataclass(frozen=True)
class _Squares:
    """Writes one square of a stage."""

    writer: StageWriter
    stage: Stage
    axis: Var
    size: int
    """Positions along both axes: the lanes of a vector."""
    reads: tuple[Load, ...]
    """The reads along `axis`."""

    @classmethod
    def of(cls, writer: StageWriter, stage: Stage, axis: Var) -> _Squares | None:
        # One vector per lane must stay in registers, with others beside them.
        size = min(writer.lanes(stage), writer.target.vector_registers // 2)
        reads: list[Load] = []
        for read in _crossing(stage, stage.axes[-1]):
            if not any(tvm_ffi.structural_equal(read, other) for other in reads):
                reads.append(read)
        squares = cls(writer, stage, axis, size, tuple(reads))
        if any(str(read.source.dtype) == "bool" for read in reads):
            return None  # TVM cannot store vectors of them in memory
        if not all(_is_vector(read, axis, size) for read in reads):
            return None  # contiguous, but indexed by several dimensions (a reshape in between)
        probe = [tirx.decl_buffer([int64(size)], str(r.source.dtype), layout=None) for r in reads]
        stored = squares._stored({}, probe, int64(0)) if size > 1 else None
        if stored is None or masked_store(stored, first_lanes(int64(1), size)) is None:
            return None
        return squares

    def write(self, at: At, down: Expr, right: Expr) -> None:
        """Write the square at position `down` of the axis and `right` of the last one."""
        p, (rows, columns) = self.writer.program, self._extents()
        is_whole = both(down + self.size <= rows, right + self.size <= columns)
        if all((constant(extent) or 1) % self.size == 0 for extent in (rows, columns)):
            self._write(at, down, right, is_whole=True)
            return
        with p.when(is_whole):
            self._write(at, down, right, is_whole=True)
        with p.otherwise(is_whole):
            self._write(at, down, right, is_whole=False)

    def _extents(self) -> tuple[Expr, Expr]:
        return extent_of(self.stage, self.axis), extent_of(self.stage, self.stage.axes[-1])

    def _write(self, at: At, down: Expr, right: Expr, *, is_whole: bool) -> None:
        p, (rows, columns) = self.writer.program, self._extents()
        held = first_lanes(clamped_int32(rows - down, self.size), self.size)
        kept = first_lanes(clamped_int32(columns - right, self.size), self.size)
        with p.scope():
            turned = [
                self._turned(read, at, down, right, None if is_whole else held)
                for read in self.reads
            ]
            for i in range(self.size):
                store = self._stored(
                    {**at, self.axis: down + i}, [tiles[i] for tiles in turned], right
                )
                assert store is not None, "what vectorises at 0 does so everywhere"
                if is_whole:
                    p.add(store)
                    continue
                masked = masked_store(store, kept)
                assert masked is not None, "what can be masked at 0 can be so everywhere"
                with p.when(down + i < rows):
                    p.add(masked)

    def _turned(
        self, read: Load, at: At, down: Expr, right: Expr, mask: Expr | None
    ) -> list[Buffer]:
        """The transposed vectors of a read, along the last axis: one for each position of the axis."""
        p, last = self.writer.program, self.stage.axes[-1]
        columns = extent_of(self.stage, last)
        vectors: list[Expr] = []
        for j in range(self.size):
            # Past the end, repeat the last one.
            place = right + j if mask is None else minimum(right + j, columns - 1)
            vector = vector_value(
                lambda lane, place=place: s.substitute(
                    read, {**at, self.axis: down + lane, last: place}
                ),
                self.size,
            )
            value = vector if mask is None or vector is None else masked_value(vector, mask)
            assert value is not None, "reads along the axis are of neighbours"
            vectors.append(value)
        turned: list[Buffer] = []
        for vector in transposed(p, vectors):
            turned.append(p.allocate("turned", self.size, str(read.source.dtype)))
            p.store(turned[-1], 0, vector, self.size)
        return turned

    def _stored(self, at: At, turned: Sequence[Buffer], start: Expr) -> tirx.BufferStore | None:
        """The store of a vector along the last axis, given its transposed reads from position `start` on."""
        last = self.stage.axes[-1]

        def body(lane: Expr) -> tirx.BufferStore:
            def element(node: Load) -> Expr:
                for read, tile in zip(self.reads, turned, strict=True):
                    if tvm_ffi.structural_equal(node, read):
                        return tirx.BufferLoad(tile, [lane])
                return node

            places = {**at, last: start + lane}
            value = s.substitute(s.map_loads(self.stage.value, element), places)
            index = [s.substitute(i, places) for i in self.stage.index]
            return tirx.BufferStore(self.stage.buffer, value, index)

        return vectorise(body, self.size)


def _crossing(stage: Stage, last: Var) -> list[Load]:
    """The reads that are not contiguous along the last axis."""
    return [r for r in stage.loads if s.step(r.indices, r.source.shape, last) not in (0, 1)]


def _is_vector(read: Load, axis: Var, size: int) -> bool:
    """Can the read of `size` positions along the axis be vectorised, masked and unmasked?"""
    if size == 1:
        return True
    vector = vector_value(lambda lane: s.substitute(read, {axis: lane}), size)
    return vector is not None and masked_value(vector, first_lanes(int64(1), size)) is not None
