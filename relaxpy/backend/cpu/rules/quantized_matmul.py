"""Products of activations in int8 with weights of 4 bits, on bytes (W4A8): `relaxpy.tir.forms.quantized_matmul`.

The weight is in tiles of columns (`relaxpy.backend.cpu.row_tiles`): a vector of words has eight neighbours along the
depth of each of its columns. The low nibbles of its four bytes are the codes at even places, the high ones those at odd
places, so two instructions of `relaxpy.backend.cpu.dots` multiply them with two words of activations. A first loop
brings the bytes of the activations into that order, and sums them by chunks.

A task makes all rows of a panel, in tiles of some rows. For few rows a word is read once, by the tile that multiplies
it. From `MANY_TILES` on, the task unpacks the codes of its panel, and the numbers of the groups, into memory first, and
all tiles read those.

Every `CHUNK` places of the depth the sums of integers become floats, are scaled, and are added to those of the row in
order. So a row's result does not depend on other rows, nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.dots import Dots, total_of
from relaxpy.backend.cpu.rules.matmul_finish import Finish, Total
from relaxpy.backend.cpu.rules.matmul_formula import Formula
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.forms.quantized_matmul import QuantizedMatmul, quantized_matmul_of
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer import loops
from relaxpy.tir.writer.loops import Buffer, Expr, PrimFunc, Program, Stmt

CHUNK = 32
"""Places of the depth whose products are summed as integers: `relaxpy.backend.cpu.dots.MOST` words of even places and
of odd ones."""
VECTORS = 2
"""Vectors across a panel."""
MANY_TILES = 6
"""Tiles of rows that share the unpacked codes of a panel, at least: for fewer, memory is read while they compute."""
AHEAD = 4
"""Chunks between a word that is read from memory and those that are prefetched."""
_WORDS = CHUNK // 4
_PLACES = [8 * byte + at for byte in range(4) for at in (0, 2, 4, 6, 1, 3, 5, 7)]
"""The order of the bytes of a chunk: of each eight, those at even places, then those at odd places."""


def quantized_matmul_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is such a product of a weight in tiles, and the target has the
    instructions; or None."""
    dots = Dots.of(target) if target.kind == "llvm" else None
    found = quantized_matmul_of(func) if dots is not None else None
    if dots is None or found is None or not _is_readable(found, dots.lanes):
        return None
    height = 4 if target.vector_registers < 32 else 6

    def write() -> PrimFunc:
        body = _Writer(found, dots, height).write()
        return loops.finished(func, dots.around(body))

    return Arrangement(write)


def _is_readable(product: QuantizedMatmul, lanes: int) -> bool:
    """Are vectors of the weight read from tiles, and rows of activations one after the other?"""
    form = product.form
    depth = loops.constant(form.depth.extent)
    dense = loops.constant(form.row.extent) == 1 or loops.constant(form.row.lhs) == depth
    if product.shared % CHUNK or not dense or loops.constant(form.lhs.base) != 0:
        return False
    return Formula(Program(), form, lanes).is_padded


def _small_integer(value: Expr | None) -> int | None:
    """The value of a constant that sums of integers may begin with (`Dots.start`)."""
    number = float(value.value) if isinstance(value, tirx.FloatImm) else 1.0
    return int(number) if -15 <= number <= 0 and number == int(number) else None


@dataclass(frozen=True, eq=False)
class _Source:
    """Where a tile reads the weight of its panel."""

    codes: Callable[[Expr, int], tuple[list[Expr], list[Expr]]]
    """The codes at even and at odd places of the word of this number in a chunk, by vector."""
    number: Callable[[Formula, Expr, int], Expr]
    """The vector of this number that a formula has for a chunk."""


class _Writer:
    """Writes the program of one product."""

    def __init__(self, product: QuantizedMatmul, dots: Dots, height: int) -> None:
        self.form, self.dots, self.height = product.form, dots, height
        self.program = p = Program()
        self.rows, self.columns = self.form.row.extent, self.form.column.extent
        depth = loops.constant(self.form.depth.extent)
        assert depth is not None, "checked by quantized_matmul_of"
        self.chunks = depth // CHUNK
        self.lanes, self.width = dots.lanes, VECTORS * dots.lanes
        self.out = p.flat_view(self.form.out.buffer)
        self.codes = p.flat_view(self.form.lhs.buffer)
        self.scales = p.flat_view(product.scale)
        self.chunks_per_scale = product.group // CHUNK
        weight = product.weight
        self.added = _small_integer(weight.shift)
        """The shift of the codes, if sums of integers begin with it."""
        self.word = Formula(p, self.form, self.lanes, product.nibbles.word)
        shift = None if self.added is not None else weight.shift
        self.slope, self.shift, self.offset = (
            None if value is None else Formula(p, self.form, self.lanes, value)
            for value in (weight.slope, shift, weight.offset)
        )
        self.numbers = [n for n in (self.slope, self.shift, self.offset) if n is not None]
        self.ordered = self._memory("ordered", 4, "int32")
        self.starts = self._memory("starts", CHUNK, "int32") if self.added is not None else None
        needs_sums = self.shift is not None or self.offset is not None
        self.sums = self._memory("sums", CHUNK, "float32") if needs_sums else None
        self.finish = None
        if self.form.epilogue is not None:
            self.finish = Finish(p, self.form, self.out)

    def _memory(self, name: str, every: int, dtype: str) -> Buffer:
        """Memory for an element of each `every` places of the activations."""
        size = loops.simplify(self.rows * (self.chunks * CHUNK // every))
        memory = tirx.decl_buffer([size], dtype, name, scope="global", layout=None)
        self.program.add(tirx.AllocBuffer(memory))
        return memory

    def write(self) -> Stmt:
        """Write the whole body."""
        p = self.program
        with p.loop("row", self.rows, parallel=True) as row, p.loop("chunk", self.chunks) as chunk:
            self._order(row * self.chunks + chunk)
        many = self.rows >= loops.int64(MANY_TILES * self.height)
        with p.loop("panel", loops.ceildiv(self.columns, self.width), parallel=True) as panel:
            start = p.let("start", loops.simplify(panel * self.width))
            with p.when(many):
                self._many_rows(start)
            with p.otherwise(many):
                self._few_rows(start)
        return p.body()

    def _order(self, chunk: Expr) -> None:
        """Bring the activations of a chunk, by its number among those of all rows, into order, and sum them."""
        p = self.program
        codes = p.let("codes", loops.load(self.codes, chunk * CHUNK, CHUNK))
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

    def _few_rows(self, start: Expr) -> None:
        """The rows of a panel, in tiles that read the weight from its memory."""
        p = self.program
        whole = p.let("whole", loops.floordiv(self.rows, self.height))
        with p.loop("tile", whole) as tile:
            self._tile(p.let("row", tile * self.height), self.height, start, self._packed(start))
        done = p.let("done", loops.simplify(whole * self.height))
        for height in range(1, self.height):
            with p.when(loops.equals(self.rows - done, height)):
                self._tile(done, height, start, self._packed(start))

    def _many_rows(self, start: Expr) -> None:
        """The rows of a panel, in tiles that read its unpacked weight. The last tile may begin in the one before it,
        whose rows it does not store again."""
        p, width = self.program, self.width
        packed = self._packed(start)
        codes = p.allocate("unpacked", self.chunks * _WORDS * width, "int32")
        memory = [p.allocate("by", self.chunks * width, "float32") for _ in self.numbers]
        across = [n * self.lanes for n in range(VECTORS)]
        with p.loop("chunk", self.chunks) as chunk:
            for word in range(_WORDS // 2):
                halves = packed.codes(chunk, word)
                for half, vectors in enumerate(halves):
                    place = chunk * (_WORDS * width) + (2 * word + half) * width
                    for at, vector in zip(across, vectors, strict=True):
                        p.store(codes, place + at, vector, self.lanes)
            for formula, kept in zip(self.numbers, memory, strict=True):
                for n, at in enumerate(across):
                    value = packed.number(formula, chunk, n)
                    p.store(kept, chunk * width + at, value, self.lanes)

        def load(buffer: Buffer, place: Expr) -> list[Expr]:
            return [p.let("codes", loops.load(buffer, place + at, self.lanes)) for at in across]

        def unpacked(chunk: Expr, word: int) -> tuple[list[Expr], list[Expr]]:
            place = chunk * (_WORDS * width) + 2 * word * width
            return load(codes, place), load(codes, place + width)

        def number(formula: Formula, chunk: Expr, n: int) -> Expr:
            kept = memory[self.numbers.index(formula)]
            return loops.load(kept, chunk * width + n * self.lanes, self.lanes)

        with p.loop("tile", loops.ceildiv(self.rows, self.height)) as tile:
            new = p.let("new", tile * self.height)
            row = p.let("row", loops.minimum(new, self.rows - self.height))
            self._tile(row, self.height, start, _Source(unpacked, number), new)

    def _packed(self, start: Expr) -> _Source:
        """The weight of the panel from column `start` on, in its memory."""
        p, lanes, width = self.program, self.lanes, self.width
        low = loops.broadcast(tirx.const(0x0F0F0F0F, "int32"), lanes)
        four = loops.broadcast(tirx.const(4, "uint32"), lanes)
        words = f"int32x{lanes}"

        def codes(chunk: Expr, word: int) -> tuple[list[Expr], list[Expr]]:
            place = chunk * CHUNK + word * 8
            across = [n * lanes for n in range(VECTORS)]
            for at in across:
                self.word.prefetch(place + AHEAD * CHUNK, start, width, at)
            raw = [p.let("raw", self.word.vector(place, start, width, at, None)) for at in across]
            even = [p.let("even", tirx.reinterpret(words, each) & low) for each in raw]
            odd = [p.let("odd", tirx.reinterpret(words, each >> four) & low) for each in raw]
            return even, odd

        def number(formula: Formula, chunk: Expr, n: int) -> Expr:
            return formula.vector(chunk * CHUNK, start, width, n * lanes, None)

        return _Source(codes, number)

    def _tile(
        self, row: Expr, height: int, start: Expr, source: _Source, new: Expr | None = None
    ) -> None:
        """The sums of some rows in the panel from column `start` on. Rows before `new` are not stored."""
        p, lanes = self.program, self.lanes
        sums = [p.allocate(f"sums{r}", self.width, "float32") for r in range(height)]
        for own in sums:
            for n in range(VECTORS):
                p.store(own, n * lanes, loops.zero("float32", lanes), lanes)
        firsts = [p.let(f"first{r}", (row + r) * self.chunks) for r in range(height)]
        with p.loop("chunk", self.chunks) as chunk:
            totals = self._integers(firsts, chunk, source)
            self._scaled(totals, sums, firsts, chunk, source)
        self._store(row, start, sums, new)

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
        sums: list[Buffer],
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
            scale = p.let("scale", loops.broadcast(loops.load(self.scales, scale_at), lanes))
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
                before = loops.load(out, n * lanes, lanes)
                p.store(out, n * lanes, before + scale * value, lanes)

    def _store(self, row: Expr, start: Expr, sums: list[Buffer], new: Expr | None) -> None:
        """Finish the sums of some rows and write them to the output."""
        exact = loops.constant(loops.floormod(self.columns, self.width)) == 0
        left = None
        if not exact:
            left = self.program.let("left", loops.clamped_int32(self.columns - start, self.width))
        for r, own in enumerate(sums):
            if new is None:
                self._store_row(row + r, start, own, left)
            else:
                with self.program.when(row + r >= new):
                    self._store_row(row + r, start, own, left)

    def _store_row(self, row: Expr, start: Expr, own: Buffer, left: Expr | None) -> None:
        p, lanes = self.program, self.lanes
        target = p.let("target", row * self.form.row.out + start + self.form.out.base)
        place = {} if self.finish is None else self.finish.row_place(row)
        for at in range(0, self.width, lanes):
            mask = None if left is None else loops.first_lanes(left - at, lanes)
            if self.finish is not None:
                total = Total(own, loops.int64(at))
                self.finish.store(total, place, start + at, target + at, lanes, mask)
            else:
                value = loops.load(own, at, lanes)
                p.store(self.out, target + at, value, lanes, mask)


def _shuffled(value: Expr, places: list[int]) -> Expr:
    """The lanes of a vector at these places."""
    return tirx.Shuffle([value], [tirx.const(place, "int32") for place in places])
