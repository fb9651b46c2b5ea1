"""Tiles of products of activations in int8 with weights of 4 bits, on bytes (W4A8), for products of matrices and
linear maps of experts.

The weight is in tiles of columns (`relaxpy.backend.cpu.row_tiles`): a vector of words has eight neighbours along the
depth of each of its columns. The low nibbles of its four bytes are the codes at even places, the high ones those at odd
places, so two instructions of `relaxpy.backend.cpu.dots` multiply them with two words of activations. A first loop
brings the bytes of the activations into that order, and sums them by chunks.

The rows of a panel are in tiles of some rows. The rows of one tile read a word once, where they multiply it. For more
rows the depth is cut into blocks, whose unpacked codes and numbers the L1 cache holds: a block is unpacked into memory,
and each tile adds the block's sums to those that it has. Memory is read ahead by one block.

Every `CHUNK` places of the depth the sums of integers become floats, are scaled, and are added to those of the row in
order. So a row's result does not depend on other rows, nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from relaxpy.backend.cpu.dots import Dots, total_of
from relaxpy.backend.cpu.rules.matmul_finish import Total
from relaxpy.backend.cpu.rules.matmul_formula import Formula, OfColumns
from relaxpy.backend.cpu.target import CACHE_LINE, CpuTarget
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, Index, Program
from relaxpy.tir.recognise.quantized_matmul import Nibbles, Scaled
from relaxpy.tir.tvm import tirx

CHUNK = 32
"""Places of the depth whose products are summed as integers: `relaxpy.backend.cpu.dots.MOST` words of even places and
of odd ones."""
VECTORS = 2
"""Vectors across a panel."""
AHEAD = 4
"""Chunks between a word that is read from memory and those that are prefetched, for one tile of rows."""
BLOCK = 16
"""Chunks whose codes and numbers are unpacked at a time, for more rows."""
TILES = 32
"""Tiles of rows that share what was unpacked, at most: so many have their sums in the caches."""
_WORDS = CHUNK // 4
_LINE = CACHE_LINE // 4
"""Words of a cache line."""
_PLACES = [8 * byte + at for byte in range(4) for at in (0, 2, 4, 6, 1, 3, 5, 7)]
"""The order of the bytes of a chunk: of each eight, those at even places, then those at odd places."""


def height_of(target: CpuTarget) -> int:
    """Rows of a tile such that their sums fit into registers."""
    return 4 if target.vector_registers < 32 else 6


@dataclass(frozen=True, eq=False)
class Activations:
    """Rows of codes, their scales, and the numbers of the weight that multiplies them."""

    codes: Buffer
    """A flat view: int8, rows one after the other."""
    scales: Buffer
    """A flat view: float32."""
    rows: Index
    group: int
    """Neighbours along the depth that share a scale: a multiple of `CHUNK`."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows that a panel multiplies."""

    count: Expr
    line: Callable[[Expr], Expr]
    """The number of one of them among those of the activations."""
    store: Callable[[Expr, Expr, Total], None]
    """Write the finished sums of one of them, in the panel from a column on."""


def _small_integer(value: Expr | None) -> int | None:
    """The value of a constant that sums of integers may begin with (`Dots.start`)."""
    number = float(value.value) if isinstance(value, tirx.FloatImm) else 1.0
    return int(number) if -15 <= number <= 0 and number == int(number) else None


@dataclass(frozen=True, eq=False)
class _Source:
    """Where a tile reads the weight of its panel."""

    codes: Callable[[Expr, int], tuple[list[Expr], list[Expr]]]
    """The codes at even and at odd places of the word of this number in a chunk, by vector. Chunks are counted from the
    first one of the source."""
    number: Callable[[Formula, Expr, int], Expr]
    """The vector of this number that a formula has for a chunk."""


@dataclass(frozen=True, eq=False)
class _Block:
    """The memory of a task for blocks of rows and of the depth."""

    totals: Buffer
    """The sums of each tile."""
    codes: Buffer
    """The unpacked codes of a block of the depth."""
    numbers: list[Buffer]
    """Its numbers, by formula."""

    @classmethod
    def allocated(cls, writer: ByteTiles) -> _Block:
        allocate, width = writer.program.allocate, writer.width
        totals = allocate("totals", TILES * writer.height * width, "float32")
        codes = allocate("unpacked", BLOCK * _WORDS * width, "int32")
        numbers = [allocate("by", BLOCK * width, "float32") for _ in writer.numbers]
        return cls(totals, codes, numbers)


class ByteTiles:
    """Writes the products of rows of activations with panels of a weight."""

    def __init__(
        self,
        program: Program,
        dots: Dots,
        height: int,
        over: OfColumns,
        weight: Scaled,
        nibbles: Nibbles,
        activations: Activations,
    ) -> None:
        self.program, self.dots, self.height = program, dots, height
        depth = loops.constant(over.depth.extent)
        assert depth is not None, "checked by the rules"
        self.chunks = depth // CHUNK
        self.lanes, self.width = dots.lanes, VECTORS * dots.lanes
        self.activations = activations
        self.chunks_per_scale = activations.group // CHUNK
        self.added = _small_integer(weight.shift)
        """The shift of the codes, if sums of integers begin with it."""
        self.word = Formula(program, over, self.lanes, nibbles.word)
        shift = None if self.added is not None else weight.shift
        self.slope, self.shift, self.offset = (
            None if value is None else Formula(program, over, self.lanes, value)
            for value in (weight.slope, shift, weight.offset)
        )
        self.numbers = [n for n in (self.slope, self.shift, self.offset) if n is not None]
        self.ordered = self._memory("ordered", 4, "int32")
        self.starts = self._memory("starts", CHUNK, "int32") if self.added is not None else None
        needs_sums = self.shift is not None or self.offset is not None
        self.sums = self._memory("sums", CHUNK, "float32") if needs_sums else None

    def _memory(self, name: str, every: int, dtype: str) -> Buffer:
        """Memory for an element of each `every` places of the activations."""
        return self.program.allocate(
            name, self.activations.rows * (self.chunks * CHUNK // every), dtype
        )

    def place(self, values: Mapping[Expr, Expr]) -> None:
        """Read the weight at these values of the variables beside column and depth."""
        for formula in (self.word, *self.numbers):
            formula.place = values

    def order(self) -> None:
        """Bring all activations into order, and sum them: before any panel."""
        p, rows = self.program, self.activations.rows
        with p.loop("row", rows, parallel=True) as row, p.loop("chunk", self.chunks) as chunk:
            self._order(row * self.chunks + chunk)

    def _order(self, chunk: Expr) -> None:
        """Bring the activations of a chunk, by its number among those of all rows, into order, and sum them."""
        p = self.program
        codes = p.let("codes", loops.load(self.activations.codes, chunk * CHUNK, CHUNK))
        words = tirx.reinterpret(f"int32x{_WORDS}", _shuffled(codes, _PLACES))
        p.store(self.ordered, chunk * _WORDS, words, _WORDS)
        if self.starts is None and self.sums is None:
            return
        # The first four of each eight bytes are at places 0 and 1 of the two words, the others at places 2 and 3.
        value = codes.astype(f"int16x{CHUNK}")
        for halves in ((range(16), range(16, 32)), (range(8), range(8, 16)),
                       ((0, 1, 4, 5), (2, 3, 6, 7)), ((0, 2), (1, 3))):  # fmt: skip
            first, second = (_shuffled(value, list(half)) for half in halves)
            value = p.let("pairs", first + second)
        if self.starts is not None and self.added is not None:
            p.store(self.starts, chunk, self.dots.start(value, self.added))
        if self.sums is not None:
            p.store(self.sums, chunk, total_of(value).astype("float32"))

    def panel(self, start: Expr, rows: Rows) -> None:
        """Multiply rows with the panel from column `start` on."""
        p = self.program
        for height in range(1, self.height + 1):
            with p.when(loops.equals(rows.count, height)):
                self._one_tile(height, start, rows)
        blocks = loops.ceildiv(rows.count, TILES * self.height)
        with p.when(rows.count > loops.int64(self.height)):
            memory = _Block.allocated(self)
            with p.loop("block", blocks) as block:
                self._block(block * (TILES * self.height), start, rows, memory)

    def _one_tile(self, height: int, start: Expr, rows: Rows) -> None:
        """All rows of a panel in one tile, which reads the weight from its memory."""
        source = self._packed(start, loops.int64(0), AHEAD)
        memory = [self.program.allocate(f"sums{r}", self.width, "float32") for r in range(height)]
        sums = [Total(own, loops.int64(0)) for own in memory]
        for own in memory:
            for at in range(0, self.width, self.lanes):
                self.program.store(own, at, loops.zero("float32", self.lanes), self.lanes)
        lines = [rows.line(loops.int64(row)) for row in range(height)]
        self._tile(lines, sums, loops.int64(0), self.chunks, source)
        for row, own in enumerate(sums):
            rows.store(loops.int64(row), start, own)

    def _block(self, first: Expr, start: Expr, rows: Rows, memory: _Block) -> None:
        """The rows of a panel from `first` on, at most `TILES` tiles, which share the unpacked weight. The last tile
        may begin in the one before it, whose rows it does not store again."""
        p, size = self.program, self.height * self.width
        needed = loops.ceildiv(rows.count - first, self.height)
        tiles = p.let("tiles", loops.minimum(needed, TILES))
        totals = memory.totals
        with p.loop("vector", tiles * (size // self.lanes)) as n:
            p.store(totals, n * self.lanes, loops.zero("float32", self.lanes), self.lanes)

        def row_of(tile: Expr) -> tuple[Expr, Expr]:
            new = p.let("new", first + tile * self.height)
            return new, p.let("row", loops.minimum(new, rows.count - self.height))

        with p.loop("piece", -(-self.chunks // BLOCK)) as piece:
            begin = p.let("begin", piece * BLOCK)
            count = loops.int64(BLOCK)
            if self.chunks % BLOCK:
                count = p.let("count", loops.minimum(self.chunks - begin, BLOCK))
            source = self._unpacked(start, begin, count, memory)
            with p.loop("tile", tiles) as tile:
                _, row = row_of(tile)
                place = p.let("place", tile * size)
                sums = [Total(totals, place + r * self.width) for r in range(self.height)]
                lines = [rows.line(row + r) for r in range(self.height)]
                self._tile(lines, sums, begin, count, source)
        with p.loop("tile", tiles) as tile:
            new, row = row_of(tile)
            for r in range(self.height):
                with p.when(row + r >= new):
                    rows.store(row + r, start, Total(totals, tile * size + r * self.width))

    def _unpacked(self, start: Expr, begin: Expr, count: Expr, memory: _Block) -> _Source:
        """The weight of the panel from column `start` on, unpacked for `count` chunks from `begin` on."""
        p, width = self.program, self.width
        codes, numbers = memory.codes, memory.numbers
        packed = self._packed(start, begin, BLOCK)
        across = [n * self.lanes for n in range(VECTORS)]
        with p.loop("chunk", count) as chunk:
            for word in range(_WORDS // 2):
                halves = packed.codes(chunk, word)
                for half, vectors in enumerate(halves):
                    place = chunk * (_WORDS * width) + (2 * word + half) * width
                    for at, vector in zip(across, vectors, strict=True):
                        p.store(codes, place + at, vector, self.lanes)
            for formula, kept in zip(self.numbers, numbers, strict=True):
                for n, at in enumerate(across):
                    value = packed.number(formula, chunk, n)
                    p.store(kept, chunk * width + at, value, self.lanes)

        def load(buffer: Buffer, place: Expr) -> list[Expr]:
            return [p.let("codes", loops.load(buffer, place + at, self.lanes)) for at in across]

        def unpacked(chunk: Expr, word: int) -> tuple[list[Expr], list[Expr]]:
            place = chunk * (_WORDS * width) + 2 * word * width
            return load(codes, place), load(codes, place + width)

        def number(formula: Formula, chunk: Expr, n: int) -> Expr:
            kept = numbers[self.numbers.index(formula)]
            return loops.load(kept, chunk * width + n * self.lanes, self.lanes)

        return _Source(unpacked, number)

    def _packed(self, start: Expr, begin: Expr, ahead: int) -> _Source:
        """The weight of the panel from column `start` and chunk `begin` on, in its memory. Words are prefetched `ahead`
        chunks before they are read."""
        p, lanes, width = self.program, self.lanes, self.width
        low = loops.broadcast(tirx.const(0x0F0F0F0F, "int32"), lanes)
        four = loops.broadcast(tirx.const(4, "uint32"), lanes)
        words = f"int32x{lanes}"

        def codes(chunk: Expr, word: int) -> tuple[list[Expr], list[Expr]]:
            place = (begin + chunk) * CHUNK + word * 8
            across = [n * lanes for n in range(VECTORS)]
            for at in range(0, width, _LINE):
                self.word.prefetch(place + ahead * CHUNK, start, width, at)
            raw = [p.let("raw", self.word.vector(place, start, width, at, None)) for at in across]
            even = [p.let("even", tirx.reinterpret(words, each) & low) for each in raw]
            odd = [p.let("odd", tirx.reinterpret(words, each >> four) & low) for each in raw]
            return even, odd

        def number(formula: Formula, chunk: Expr, n: int) -> Expr:
            if n == 0:
                formula.prefetch((begin + chunk + ahead) * CHUNK, start, width, 0)
            return formula.vector((begin + chunk) * CHUNK, start, width, n * lanes, None)

        return _Source(codes, number)

    def _tile(
        self, lines: list[Expr], sums: list[Total], begin: Expr, count: Index, source: _Source
    ) -> None:
        """Add the products of some rows with `count` chunks from `begin` on to their sums."""
        p = self.program
        firsts = [p.let(f"first{r}", line * self.chunks + begin) for r, line in enumerate(lines)]
        with p.loop("chunk", count) as chunk:
            totals = self._integers(firsts, chunk, source)
            self._scaled(totals, sums, firsts, chunk, source)

    def _integers(self, firsts: list[Expr], chunk: Expr, source: _Source) -> list[list[Expr]]:
        """The sums of a chunk as integers, by row and vector."""
        p, dots, lanes = self.program, self.dots, self.lanes
        kept = [
            [p.allocate(f"total{r}_{n}", lanes, "int32") for n in range(VECTORS)]
            for r in range(len(firsts))
        ]
        for first, own in zip(firsts, kept, strict=True):
            begin = loops.zero("int32", lanes)
            if self.starts is not None:
                begin = p.let(
                    "begin", loops.broadcast(loops.load(self.starts, first + chunk), lanes)
                )
            for total in own:
                p.store(total, 0, begin, lanes)
        for word in range(_WORDS // 2):
            for half, codes in enumerate(source.codes(chunk, word)):
                for first, own in zip(firsts, kept, strict=True):
                    at = (first + chunk) * _WORDS + (2 * word + half)
                    signed = loops.broadcast(loops.load(self.ordered, at), lanes)
                    signed = p.let("signed", signed)
                    for total, code in zip(own, codes, strict=True):
                        before = loops.load(total, 0, lanes)
                        p.store(total, 0, dots.add(before, code, signed), lanes)
        return [
            [p.let("joined", dots.joined(loops.load(total, 0, lanes))) for total in own]
            for own in kept
        ]

    def _scaled(
        self,
        totals: list[list[Expr]],
        sums: list[Total],
        firsts: list[Expr],
        chunk: Expr,
        source: _Source,
    ) -> None:
        """Add the sums of a chunk, made floats and scaled, to those of the rows."""
        p, lanes = self.program, self.lanes

        def shared(formula: Formula | None, n: int) -> Expr | None:
            return None if formula is None else p.let("by", source.number(formula, chunk, n))

        numbers = [
            [shared(formula, n) for formula in (self.slope, self.shift, self.offset)]
            for n in range(VECTORS)
        ]
        for first, own, out in zip(firsts, totals, sums, strict=True):
            scale_at = loops.floordiv(first + chunk, self.chunks_per_scale)
            scale = p.let(
                "scale", loops.broadcast(loops.load(self.activations.scales, scale_at), lanes)
            )
            of_codes: Expr | None = None
            if self.sums is not None:
                of_codes = loops.broadcast(loops.load(self.sums, first + chunk), lanes)
                of_codes = p.let("of_codes", of_codes)
            for n, (total, (slope, shift, offset)) in enumerate(zip(own, numbers, strict=True)):
                value = total.astype(f"float32x{lanes}")
                if shift is not None:
                    value = value + shift * of_codes
                if slope is not None:
                    value = slope * value
                if offset is not None:
                    value = value + offset * of_codes
                before = loops.load(out.buffer, out.start + n * lanes, lanes)
                p.store(out.buffer, out.start + n * lanes, before + scale * value, lanes)


def _shuffled(value: Expr, places: list[int]) -> Expr:
    """The lanes of a vector at these places."""
    return tirx.Shuffle([value], [tirx.const(place, "int32") for place in places])
