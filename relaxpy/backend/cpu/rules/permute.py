"""Transpositions and other permutations of axes, read and written in whole vectors.

If a stage reads elements that are contiguous along an axis that is not the last of its result, a tile of vectors is
read along that axis, transposed in registers, and written along the last axis. The rest of the stage's value (a bias, a
conversion) is computed on the transposed vectors.

Narrow elements are put together to words first, neighbours along the last axis in one word, so that the same
permutations move two or four of them: tiles are then wider than tall.

Tiles are visited in blocks of a few cache lines of each row that is read, so that each line and each page is used up
while it is cached. The lines that will be written next are fetched meanwhile: no processor foresees them, since each
is of another row. Results that are larger than the caches are written past them (`streaming`) if rows begin with cache
lines. Nothing is fetched for that, and blocks are longer, so that the processor sees the rows that are read as streams:
on an Emerald Rapids a transposition of 2048 x 2048 float32 takes three quarters of the time, of 3072 x 3072 two fifths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from relaxpy.backend.cpu.rules.nests import At, StageWriter, extent_of
from relaxpy.backend.cpu.rules.places import product, split_index
from relaxpy.backend.cpu.rules.streaming import Stream
from relaxpy.backend.cpu.rules.transpose import transposed
from relaxpy.backend.cpu.target import CACHE_LINE
from relaxpy.backend.knobs import knob
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
    both,
    broadcast,
    ceildiv,
    clamped_int32,
    constant,
    first_lanes,
    int64,
    minimum,
    select,
    simplify,
)
from relaxpy.tir.programs.vectors import masked_store, masked_value, vector_value, vectorise
from relaxpy.tir.recognise import stages as s
from relaxpy.tir.recognise.stages import Load, Stage, Var
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

BLOCK = 128
"""Positions of a block along the last axis: rows that are read."""
_LINES, _STREAMED_LINES = 4, 64
"""Cache lines of a block in each row that is read; if the result is written past the caches."""
_LARGE = 24 << 20
"""Bytes that are read and written from which on a result is written past the caches, even if they hold more: the lines
of its rows that are far apart displace each other."""
_AHEAD = 2
"""Tiles between the one that is written and the one whose lines are fetched."""
_FEWEST = 4
"""With fewer positions along an axis, tiles would be mostly empty."""


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
    """Write the stage in tiles over `axis` and the last axis, with blocks in parallel. Returns False, and writes
    nothing, if the rest of its value cannot be vectorised."""
    tiles = _Tiles.of(writer, stage, axis)
    if tiles is None:
        return False
    p, last = writer.program, stage.axes[-1]
    outer = [a for a in stage.axes[:-1] if a is not axis]
    extents = [extent_of(stage, a) for a in outer]
    lengths = [extent_of(stage, a) for a in (axis, last)]
    size: Expr = int64(tiles.lines(_LINES))
    if tiles.stream is not None:
        size = p.let(
            "size", select(tiles.stream.is_large, tiles.lines(_STREAMED_LINES), tiles.lines(_LINES))
        )
    sizes = (size, int64(knob("block", BLOCK, (32, 64, 256))))
    blocks = [ceildiv(length, size) for length, size in zip(lengths, sizes, strict=True)]
    with p.loop("block", product([*extents, *blocks]), parallel=True) as block:
        *places, i, j = split_index(p, block, [*extents, *blocks])
        at = dict(zip(outer, places, strict=True))
        starts = [p.let("start", simplify(b * size)) for b, size in zip((i, j), sizes, strict=True)]
        counts = [
            ceildiv(minimum(size, length - start), step)
            for size, length, start, step in zip(
                sizes, lengths, starts, (tiles.tall, tiles.wide), strict=True
            )
        ]
        with p.loop("along", counts[1]) as along, p.loop("across", counts[0]) as across:
            down = p.given("down", simplify(starts[0] + across * int64(tiles.tall)))
            right = p.given("right", simplify(starts[1] + along * int64(tiles.wide)))
            with p.when(True if tiles.stream is None else tirx.Not(tiles.stream.is_large)):
                tiles.fetch(at, down, right + _AHEAD * tiles.wide)
            tiles.write(at, down, right)
    return True


@dataclass(frozen=True)
class _Tiles:
    """Writes a stage tile by tile."""

    writer: StageWriter
    stage: Stage
    axis: Var
    tall: int
    """Positions of a tile along `axis`: the lanes of a vector."""
    reads: tuple[Load, ...]
    """The reads along `axis`."""
    stream: Stream | None = None
    """The result, if it may be large."""

    @classmethod
    def of(cls, writer: StageWriter, stage: Stage, axis: Var) -> _Tiles | None:
        # One vector per lane must stay in registers, with others beside them.
        tall = min(writer.lanes(stage), writer.target.vector_registers // 2)
        reads: list[Load] = []
        for read in _crossing(stage, stage.axes[-1]):
            if not any(tvm_ffi.structural_equal(read, other) for other in reads):
                reads.append(read)
        tiles = cls(writer, stage, axis, tall, tuple(reads))
        if any(str(read.source.dtype) == "bool" for read in reads):
            return None  # TVM cannot store vectors of them in memory
        if not all(_is_vector(read, axis, tall) for read in reads):
            return None  # contiguous, but indexed by several dimensions (a reshape in between)
        probe = [
            tirx.decl_buffer([int64(tiles.wide)], str(r.source.dtype), layout=None) for r in reads
        ]
        stored = tiles._stored({}, probe, int64(0)) if tall > 1 else None
        if stored is None or masked_store(stored, first_lanes(int64(1), tiles.wide)) is None:
            return None
        bits = tiles.wide * int(tvm.DataType(str(stage.buffer.dtype)).bits)
        if stage.buffer in writer.shared or bits % (CACHE_LINE * 8):
            return tiles
        return replace(tiles, stream=tiles._of_lines())

    def _of_lines(self) -> Stream | None:
        """The result as one that may be large, with the condition that all of its rows begin with cache lines."""
        p, stage = self.writer.program, self.stage
        stream = Stream.of(p, self.writer.target, stage, self.writer.params, _LARGE)
        if stream is None:
            return None
        rows = [
            stream.begins(self._element({a: int64(a is row) for a in stage.axes}))
            for row in stage.axes[:-1]
        ]
        return replace(stream, is_large=p.let("is_large", reduce(both, rows)))

    def _element(self, at: At) -> tirx.BufferStore:
        """The store of an element of the result, of any value."""
        buffer = self.stage.buffer
        index = [s.substitute(place, at) for place in self.stage.index]
        return tirx.BufferStore(buffer, tirx.const(0, str(buffer.dtype)), index)

    @property
    def wide(self) -> int:
        """Positions of a tile along the last axis."""
        return self.tall * max(map(_per_word, self.reads))

    def lines(self, count: int) -> int:
        """The positions along `axis`, in whole tiles, that fill so many cache lines of the narrowest read."""
        narrowest = min(_bits(read) for read in self.reads)
        return max(count * CACHE_LINE * 8 // narrowest // self.tall, 1) * self.tall

    def fetch(self, at: At, down: Expr, right: Expr) -> None:
        """Fetch the lines of the tile at this position, to be written; it need not exist."""
        p, last, buffer = self.writer.program, self.stage.axes[-1], self.stage.buffer
        flat = buffer if len(buffer.shape) == 1 else p.flat_view(buffer)
        step = CACHE_LINE * 8 // int(tvm.DataType(str(buffer.dtype)).bits)
        for i in range(self.tall):
            for j in range(0, self.wide, step):
                places = {**at, self.axis: down + i, last: right + j}
                index = [s.substitute(place, places) for place in self.stage.index]
                p.prefetch(flat, simplify(s.flat_index(index, buffer.shape)), writing=True)

    def write(self, at: At, down: Expr, right: Expr) -> None:
        """Write the tile at position `down` of the axis and `right` of the last one."""
        p, (rows, columns) = self.writer.program, self._extents()
        is_whole = both(down + self.tall <= rows, right + self.wide <= columns)
        sizes = ((rows, self.tall), (columns, self.wide))
        if all((constant(extent) or 1) % size == 0 for extent, size in sizes):
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
        held = first_lanes(clamped_int32(rows - down, self.tall), self.tall)
        kept = first_lanes(clamped_int32(columns - right, self.wide), self.wide)
        with p.scope():
            turned = [
                self._turned(read, at, down, right, None if is_whole else held)
                for read in self.reads
            ]
            stores: list[tirx.BufferStore] = []
            for i in range(self.tall):
                store = self._stored(
                    {**at, self.axis: down + i}, [tiles[i] for tiles in turned], right
                )
                assert store is not None, "what vectorises at 0 does so everywhere"
                stores.append(store)
            if is_whole:
                self._add(stores)
                return
            for i, store in enumerate(stores):
                masked = masked_store(store, kept)
                assert masked is not None, "what can be masked at 0 can be so everywhere"
                with p.when(down + i < rows):
                    p.add(masked)

    def _add(self, stores: Sequence[tirx.BufferStore]) -> None:
        """Write the stores of a whole tile."""
        p, stream = self.writer.program, self.stream
        if stream is None:
            for store in stores:
                p.add(store)
            return
        with p.when(stream.is_large):
            for store in stores:
                stream.add(store)
        with p.otherwise(stream.is_large):
            for store in stores:
                p.add(store)

    def _turned(
        self, read: Load, at: At, down: Expr, right: Expr, mask: Expr | None
    ) -> list[Buffer]:
        """The transposed vectors of a read, along the last axis: one for each position of the axis."""
        p, dtype, count = self.writer.program, str(read.source.dtype), _per_word(read)
        turned = [p.allocate("turned", self.wide, dtype) for _ in range(self.tall)]
        for first in range(0, self.wide, self.tall * count):
            rows = [
                self._words(read, at, down, right, first + place, mask)
                for place in range(0, self.tall * count, count)
            ]
            for tile, row in zip(turned, transposed(p, rows), strict=True):
                p.store(tile, first, _elements(row, dtype, self.tall * count), self.tall * count)
        return turned

    def _words(
        self, read: Load, at: At, down: Expr, right: Expr, place: int, mask: Expr | None
    ) -> Expr:
        """The vector along the axis of a read from `place` of the last axis on: words of as many neighbours as there is
        room for."""
        last, columns = self.stage.axes[-1], extent_of(self.stage, self.stage.axes[-1])
        bits, words = _bits(read), f"uint32x{self.tall}"
        joined: Expr | None = None
        for number in range(_per_word(read)):
            column = right + (place + number)
            # Past the end, repeat the last one.
            column = column if mask is None else minimum(column, columns - 1)
            vector = vector_value(
                lambda lane, column=column: s.substitute(
                    read, {**at, self.axis: down + lane, last: column}
                ),
                self.tall,
            )
            value = vector if mask is None or vector is None else masked_value(vector, mask)
            assert value is not None, "reads along the axis are of neighbours"
            if _per_word(read) == 1:
                return value
            narrow = tirx.reinterpret(f"uint{bits}x{self.tall}", value).astype(words)
            shift = broadcast(tirx.const(bits * number, "uint32"), self.tall)
            joined = narrow if joined is None else joined | (narrow << shift)
        assert joined is not None, "a word has elements"
        return joined

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

        return vectorise(body, self.wide)


def _bits(read: Load) -> int:
    return max(8, int(tvm.DataType(str(read.source.dtype)).bits))


def _per_word(read: Load) -> int:
    """The neighbours that a word of 32 bits holds; 1 of elements that are as large."""
    return max(1, 32 // _bits(read))


def _elements(words: Expr, dtype: str, count: int) -> Expr:
    """The elements in a vector of words."""
    vector = f"{dtype}x{count}"
    if str(words.ty.dtype) == vector:
        return words
    narrow = f"uint{int(tvm.DataType(dtype).bits)}x{count}"
    return tirx.reinterpret(vector, tirx.reinterpret(narrow, words))


def _crossing(stage: Stage, last: Var) -> list[Load]:
    """The reads that are not contiguous along the last axis."""
    return [r for r in stage.loads if s.step(r.indices, r.source.shape, last) not in (0, 1)]


def _is_vector(read: Load, axis: Var, size: int) -> bool:
    """Can the read of `size` positions along the axis be vectorised, masked and unmasked?"""
    if size == 1:
        return True
    vector = vector_value(lambda lane: s.substitute(read, {axis: lane}), size)
    return vector is not None and masked_value(vector, first_lanes(int64(1), size)) is not None
