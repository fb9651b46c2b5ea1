"""Products of narrow numbers by tensor cores (`mma.sync` of CUDA), for any number of rows.

A group of threads computes a tile of the output, of one shape for few rows and of another for many. Blocks of both
factors go through shared memory in words of 32 bits, each of 2 or 4 neighbours along the depth; while a block is
multiplied, the next ones come. Where shared memory has room for several (*stages*), they are copied there past the
registers (`cp.async`), if reads of 16 bytes are aligned; else the next one waits in registers, as a factor does that is
computed. A warp, 32 threads, computes a part of the tile in squares of 16 × 8, for each of which an instruction
multiplies 16 × 8 words by 8 × 8. A thread has two words of each eight rows or columns of a factor, and two neighbours
of each eight rows of the sums (PTX ISA, "Matrix Fragments for mma.m16n8k16"). It gets them from shared memory in
squares of eight rows and four words, four at a time (`ldmatrix`).

The order of a sum is that of the depth, whatever the tile: rows have equal bits in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.backend.gpu.schedule.group import blocks, meet, registers
from relaxpy.backend.gpu.schedule.product import Product
from relaxpy.backend.gpu.schedule.vectors import WORD, flat_index, read_words
from relaxpy.backend.gpu.target import GpuTarget, WarpFunctions
from relaxpy.backend.knobs import knob
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
    both,
    ceildiv,
    constant,
    floordiv,
    floormod,
    guarded,
    index_of,
    int64,
)
from relaxpy.tir.recognise.contraction import Operand
from relaxpy.tir.tvm import tirx, tvm

WARP = 32
_WARPS = 8
_ROWS, _COLUMNS, _WORDS = 16, 8, 8
"""The extents of an instruction: rows, columns, and words along the depth."""
_VECTOR = 4
"""The words of a read."""
_HALVES = ("float16", "bfloat16")
_PAD = 4
"""Words between rows in shared memory, so that the rows of a square are in different banks."""
_SQUARE = 8
"""Rows of a square in shared memory."""
_SHARED_BYTES = 41 << 10
"""Shared memory of blocks. A group has 48 KiB without asking the driver for more, of which few rows take up to 6."""
_MOST_STAGES = 4


@dataclass(frozen=True)
class TileShape:
    """The tile of a group, and how its warps divide it. As text `128x128x16x2`: height, width, words, down."""

    height: int
    width: int
    words: int
    """The depth of a block in shared memory, in words."""
    down: int
    """Warps along the rows."""

    @property
    def stride(self) -> int:
        """Words from one row of a block to the next."""
        return self.words + _PAD

    @property
    def stage_words(self) -> int:
        """Words of shared memory of a block of both factors."""
        return (self.height + self.width) * self.stride

    @property
    def stages(self) -> int:
        """How many blocks shared memory has room for: one is multiplied, and others come."""
        return min(_MOST_STAGES, _SHARED_BYTES // (self.stage_words * WORD // 8))

    def fits(self, warps: int) -> bool:
        """Can so many warps divide it? Each has whole squares of both sides, and each thread whole reads of both
        blocks."""
        across, rest = divmod(warps, self.down)
        if rest or self.height % (self.down * _ROWS) or self.width % (max(across, 1) * _COLUMNS):
            return False
        reads = (size * self.words % (warps * WARP * _VECTOR) for size in (self.height, self.width))
        fits = self.stage_words * WORD // 8 <= _SHARED_BYTES
        return fits and self.words % _WORDS == 0 and not any(reads)

    def __str__(self) -> str:
        return f"{self.height}x{self.width}x{self.words}x{self.down}"


ALL_ROWS = (1 << 31) - 1
_NARROW_ROWS = 64
_NARROW = (
    TileShape(64, 32, 32, 2), TileShape(16, 32, 64, 1), TileShape(16, 64, 32, 1), TileShape(16, 64, 64, 1),
    TileShape(32, 32, 64, 2), TileShape(32, 64, 32, 2), TileShape(64, 32, 64, 2), TileShape(64, 64, 32, 2),
)  # fmt: skip
"""Tiles for few rows, the default first. Their time is that of reading the right-hand factor: many groups, each with
long reads."""
_WIDE = (
    TileShape(128, 128, 16, 2), TileShape(64, 64, 32, 2), TileShape(64, 128, 16, 2), TileShape(64, 128, 32, 2),
    TileShape(128, 64, 16, 2), TileShape(128, 64, 32, 4), TileShape(128, 128, 32, 2), TileShape(128, 128, 16, 4),
    TileShape(256, 64, 16, 4), TileShape(128, 256, 16, 2), TileShape(256, 128, 16, 4),
)  # fmt: skip
"""Tiles for many rows, the default first."""


def tensor_core_programs(
    product: Product, target: GpuTarget, known: int | None
) -> list[tuple[int, TensorCores]]:
    """The programs of a product for any number of rows, or the one for a known number, each with the most rows that it
    is for; empty without an instruction."""
    instructions, functions = target.tensor_cores, target.warp_functions
    form = product.form
    factors = {factor_type(operand) for operand in (form.lhs, form.rhs)}
    if len(factors) != 1 or not factors <= instructions.keys() or product.threads != _WARPS * WARP:
        return []
    assert functions is not None, "a device with such instructions has them"
    (factor,) = factors
    if product.dtype != ("int32" if factor == "int8" else "float32"):
        return []
    instruction = instructions[factor]
    product.threads = knob("warps", _WARPS, (4,)) * WARP
    most = knob("narrow_rows", _NARROW_ROWS, (16, 32, 128))
    sides = [("narrow_tile", most, _NARROW), ("wide_tile", ALL_ROWS, _WIDE)]
    if known is not None:
        sides = sides[:1] if known <= most else sides[1:]
    shapes = [(rows, _tile(name, tiles, product.threads // WARP)) for name, rows, tiles in sides]
    programs = [
        (most, TensorCores(product, shape, instruction, functions)) for most, shape in shapes
    ]
    words = max(program.words for _, program in programs)  # of all programs of the product
    for _, program in programs:
        program.words = words
    return programs


def _tile(name: str, tiles: Sequence[TileShape], warps: int) -> TileShape:
    """The setting of a knob whose values are tiles, those that so many warps can divide."""
    known = {str(tile): tile for tile in tiles if tile.fits(warps)}
    default, *others = known
    return known[knob(name, default, others)]


class TensorCores:
    """The program of one shape of tiles."""

    def __init__(
        self,
        product: Product,
        shape: TileShape,
        instruction: str,
        functions: WarpFunctions,
    ) -> None:
        self.of, self.shape, self.instruction = product, shape, instruction
        self.functions = functions
        product.is_whole = True
        self.per_word = WORD // tvm.DataType(factor_type(product.form.lhs)).bits
        """Elements of a word."""
        self.block = shape.words * self.per_word
        self.along = blocks(product.columns, shape.width)
        across = product.threads // WARP // shape.down
        self.across = across
        self.squares = shape.height // shape.down // _ROWS, shape.width // across // _COLUMNS
        """Squares of a warp along rows and columns."""
        form = product.form
        is_copied = self._is_copied(form.lhs) and self._is_copied(form.rhs)
        self.stages = shape.stages if is_copied else min(shape.stages, 2)
        """Blocks in shared memory. One that waits in registers on its way there is one at a time."""
        self.words = self.stages * shape.stage_words
        """Words of shared memory."""

    @property
    def groups(self) -> Expr:
        """The number of groups of a product."""
        return blocks(self.of.rows, self.shape.height) * self.along

    def allocate(self) -> None:
        """Allocate shared memory, which is outside of all conditions, once for all programs of a product."""
        self.memory = self.of.shared("blocks", self.words, "uint32")

    def write(self) -> None:
        """One tile."""
        of, p, shape = self.of, self.of.p, self.shape
        number = of.own_product(self.groups)
        along = p.let("along", index_of(self.along))
        firsts = (
            p.let("first_row", floordiv(number, along) * shape.height),
            p.let("first_column", floormod(number, along) * shape.width),
        )
        warp, lane = (
            p.let("warp", floordiv(of.thread, WARP)),
            p.let("lane", floormod(of.thread, WARP)),
        )
        place = (floordiv(warp, self.across), floormod(warp, self.across))
        quad, own = p.let("quad", floordiv(lane, 4)), p.let("own", floormod(lane, 4))
        high, wide = self.squares
        rows, columns = place[0] * (high * _ROWS), place[1] * (wide * _COLUMNS)
        self._place(lane, quad, own, rows, columns)
        sums = registers(p, "sums", high * wide * 4, of.dtype)
        for at in range(high * wide * 4):
            p.add(tirx.BufferStore(sums, tirx.const(0, of.dtype), [int64(at)]))
        self._sources = {
            operand.buffer: p.flat_view(operand.buffer, "uint32")
            for operand in (of.form.lhs, of.form.rhs)
            if self._is_copied(operand)
        }
        if self.stages == 1:
            self._one_stage(firsts, sums)
        elif self.stages == 2:
            self._two_stages(firsts, sums)
        else:
            self._several_stages(firsts, sums)
        rows, columns = p.let("rows", rows + quad), columns + own * 2
        row = p.let("row", firsts[0] + rows)
        column = p.let("column", firsts[1] + columns)
        for at in range(high * wide * 4):
            square, part = divmod(at, 4)
            i = row + (square // wide * _ROWS + part // 2 * 8)
            j = column + (square % wide * _COLUMNS + part % 2)
            with p.when(both(i < of.rows, j < of.columns)):
                of.store(tirx.BufferLoad(sums, [int64(at)]), i, j)

    def _place(self, lane: Expr, quad: Expr, own: Expr, rows: Expr, columns: Expr) -> None:
        """Determine the words that a thread reads of the first squares of its warp, which begin at these rows and
        columns of the tile."""
        p, shape = self.of.p, self.shape
        square, line = floordiv(lane, _SQUARE), floormod(lane, _SQUARE)
        near, far = floormod(square, 2), floordiv(square, 2)
        # Of the left-hand factor two squares along the rows, for each of two along the depth; of the other the reverse.
        self.left = p.let(
            "left_word", (rows + near * _SQUARE + line) * shape.stride + far * (_WORDS // 2)
        )
        columns = columns + shape.height
        self.right = p.let(
            "right_word", (columns + far * _SQUARE + line) * shape.stride + near * (_WORDS // 2)
        )
        _, wide = self.squares
        if wide % 2:
            self.last = p.let("last_word", (columns + quad) * shape.stride + own)

    def _one_stage(self, firsts: Sequence[Expr], sums: Buffer) -> None:
        """All blocks, where shared memory has room for one: the next one waits in registers."""
        p, fetched = self.of.p, self._fetch_buffers()
        self._fetch(fetched, firsts, int64(0), int64(0))
        with p.loop("block", ceildiv(self.of.depth, self.block)) as block:
            meet(p)
            self._keep(fetched, int64(0))
            meet(p)
            self._fetch(fetched, firsts, (block + 1) * self.block, int64(0))
            self._multiply(sums, int64(0))

    def _two_stages(self, firsts: Sequence[Expr], sums: Buffer) -> None:
        """All blocks, where shared memory has room for two."""
        of, p, words = self.of, self.of.p, self.shape.stage_words
        fetched = self._fetch_buffers()
        self._fetch(fetched, firsts, int64(0), int64(0))
        self._keep(fetched, int64(0))
        with p.loop("block", ceildiv(of.depth, self.block)) as block:
            if self._sources:
                self._call(self.functions.copied)
            # This block is there for all, and all have multiplied the one before it.
            meet(p)
            stage = p.let("stage", floormod(block, 2) * words)
            start = p.let("start", (block + 1) * self.block)
            with p.when(start < of.depth):
                self._fetch(fetched, firsts, start, words - stage)
            self._multiply(sums, stage)
            with p.when(start < of.depth):
                self._keep(fetched, words - stage)

    def _several_stages(self, firsts: Sequence[Expr], sums: Buffer) -> None:
        """All blocks, where shared memory has room for more than two, and both factors are copied there. What a turn
        begins to copy is a group of copies, empty behind the last block."""
        of, p, words, ahead = self.of, self.of.p, self.shape.stage_words, self.stages - 1
        fetched = self._fetch_buffers()

        def fetch(start: Expr, stage: Expr) -> None:
            with p.when(start < of.depth):
                self._fetch(fetched, firsts, start, stage)
            self._call(self.functions.commit)

        for number in range(ahead):
            fetch(int64(number * self.block), int64(number * words))
        with p.loop("block", ceildiv(of.depth, self.block)) as block:
            self._call(self.functions.copied_but[ahead - 1])
            # This block is there for all, and all have multiplied the one before it, whose place is taken.
            meet(p)
            taken = p.let("taken", floormod(block + ahead, self.stages) * words)
            fetch(p.let("start", (block + ahead) * self.block), taken)
            self._multiply(sums, p.let("stage", floormod(block, self.stages) * words))

    def _multiply(self, sums: Buffer, stage: Expr) -> None:
        """Multiply the block that begins at a word of shared memory."""
        with self.of.p.loop("step", self.shape.words // _WORDS) as step:
            self._multiply_words(sums, stage + step * _WORDS)

    def _multiply_words(self, sums: Buffer, first: Expr) -> None:
        """Multiply 8 words of the depth, from this word on."""
        p, stride, squares = self.of.p, self.shape.stride, self.functions.squares
        high, wide = self.squares
        a, b = registers(p, "a", high * 4, "uint32"), registers(p, "b", wide * 2, "uint32")
        for i in range(high):
            word = self.left + first + i * _ROWS * stride
            self._call(squares, _address(a, i * 4), _address(self.memory, word))
        for j in range(0, wide - 1, 2):
            word = self.right + first + j * _COLUMNS * stride
            self._call(squares, _address(b, j * 2), _address(self.memory, word))
        if wide % 2:
            for part in range(2):
                word = self.last + first + (wide - 1) * _COLUMNS * stride + part * 4
                value = tirx.BufferLoad(self.memory, [word])
                p.add(tirx.BufferStore(b, value, [int64((wide - 1) * 2 + part)]))
        for i in range(high):
            for j in range(wide):
                given = [_address(sums, (i * wide + j) * 4), _address(a, i * 4), _address(b, j * 2)]
                self._call(self.instruction, *given)

    def _call(self, function: str, *given: Expr) -> None:
        """Call a function of the device."""
        self.of.p.add(tirx.Evaluate(tirx.call_extern("int32", function, *given)))

    # From memory into shared memory, perhaps by way of registers

    def _is_copied(self, operand: Operand) -> bool:
        """Is a factor copied past the registers?"""
        depth, count = constant(self.of.depth), _VECTOR * self.per_word
        is_whole = depth is not None and depth % count == 0
        return self.shape.stages > 1 and is_whole and self.of.vector(operand) == count

    def _reads(self, size: int) -> int:
        """How many reads each thread has of a block with so many rows or columns."""
        return size * self.shape.words // self.of.threads // _VECTOR

    def _fetch_buffers(self) -> list[Buffer | None]:
        """Registers for a thread's part of each factor's block, where it comes that way."""
        form, shape = self.of.form, self.shape
        sides = (("left", form.lhs, shape.height), ("right", form.rhs, shape.width))
        return [
            None
            if self._is_copied(operand)
            else registers(self.of.p, f"next_{name}", self._reads(size) * _VECTOR, "uint32")
            for name, operand, size in sides
        ]

    def _parts(self, number: int) -> tuple[Expr, Expr]:
        """The row, or column, and the first word of a thread's read of this number."""
        vectors = self.shape.words // _VECTOR
        at = self.of.thread + number * self.of.threads
        return floordiv(at, vectors), floormod(at, vectors) * _VECTOR

    def _fetch(
        self, into: Sequence[Buffer | None], firsts: Sequence[Expr], start: Expr, stage: Expr
    ) -> None:
        """Read a thread's part of the blocks that begin at this depth, or begin to copy it to where the blocks begin in
        shared memory. Outside of a factor is 0."""
        of, p, form, above = self.of, self.of.p, self.of.form, 0
        for operand, buffer, first, extent, size in zip(
            (form.lhs, form.rhs), into, firsts, (of.rows, of.columns),
            (self.shape.height, self.shape.width), strict=True,
        ):  # fmt: skip
            for number in range(self._reads(size)):
                line, word = self._parts(number)
                row, at = p.let("row", first + line), p.let("at", start + word * self.per_word)
                exists = both(row < extent, at < of.depth)
                if buffer is None:
                    to = stage + (line + above) * self.shape.stride + word
                    self._copy(operand, to, row, at, exists)
                    continue
                for part, value in enumerate(self._words(operand, row, at, exists)):
                    p.add(tirx.BufferStore(buffer, value, [int64(number * _VECTOR + part)]))
            above += size

    def _copy(self, operand: Operand, to: Expr, row: Expr, at: Expr, exists: Expr) -> None:
        """Begin to copy the words of a read."""
        source = floordiv(
            flat_index(operand.buffer, self.of.index(operand, row, at)), self.per_word
        )
        given = (
            _address(self.memory, to),
            _address(self._sources[operand.buffer], source),
            tirx.Cast("int32", exists),
        )
        self._call(self.functions.copy, *given)

    def _words(self, operand: Operand, row: Expr, at: Expr, exists: Expr) -> list[Expr]:
        """The words of a read; each is 0 where it does not exist."""
        of, p = self.of, self.of.p
        count = _VECTOR * self.per_word
        depth = constant(of.depth)
        is_whole = depth is not None and depth % count == 0
        if of.vector(operand) == count and is_whole:
            chunk = registers(p, "chunk", _VECTOR, "uint32")
            with p.when(tirx.Not(exists)):
                for part in range(_VECTOR):
                    p.add(tirx.BufferStore(chunk, tirx.const(0, "uint32"), [int64(part)]))
            with p.when(exists):
                words = read_words(p, operand.buffer, of.index(operand, row, at), _VECTOR)
                for part in range(_VECTOR):
                    p.add(tirx.BufferStore(chunk, words(part), [int64(part)]))
            return [tirx.BufferLoad(chunk, [int64(part)]) for part in range(_VECTOR)]
        found: list[Expr] = []
        for part in range(_VECTOR):
            word: Expr = tirx.const(0, "uint32")
            for n in range(self.per_word):
                k = at + (part * self.per_word + n)
                known = exists if is_whole else both(exists, k < of.depth)
                value = guarded(known, _narrow(of.raw(operand, row, k)))
                bits = WORD // self.per_word
                unsigned = tirx.Cast("uint32", _bits_of(value, bits))
                word = tirx.bitwise_or(
                    word, tirx.shift_left(unsigned, tirx.const(n * bits, "uint32"))
                )
            found.append(p.let("word", word))
        return found

    def _keep(self, fetched: Sequence[Buffer | None], stage: Expr) -> None:
        """Store a thread's part of the blocks in shared memory, where they begin at a word."""
        p, above = self.of.p, 0
        for buffer, size in zip(fetched, (self.shape.height, self.shape.width), strict=True):
            for number in range(self._reads(size) if buffer is not None else 0):
                row, word = self._parts(number)
                first = p.let("word", stage + (row + above) * self.shape.stride + word)
                for part in range(_VECTOR):
                    value = tirx.BufferLoad(buffer, [int64(number * _VECTOR + part)])
                    p.add(tirx.BufferStore(self.memory, value, [first + part]))
            above += size


def factor_type(operand: Operand) -> str:
    """The type of a factor's elements, before a computed one is widened for the sums."""
    if operand.formula is None:
        return str(operand.buffer.dtype)
    return str(_narrow(operand.formula).ty.dtype)


def _narrow(value: Expr) -> Expr:
    """A value without the cast that widens it."""
    is_widened = isinstance(value, tirx.Cast) and str(value.ty.dtype) == "float32"
    return value.value if is_widened and str(value.value.ty.dtype) in _HALVES else value


def _address(buffer: Buffer, at: Expr | int) -> Expr:
    return tirx.address_of(tirx.BufferLoad(buffer, [int64(at)]))


def _bits_of(value: Expr, bits: int) -> Expr:
    """The bits of a number as an unsigned integer of the same size."""
    own = f"uint{bits}"
    return value if str(value.ty.dtype) == own else tirx.reinterpret(own, value)
