"""Products of narrow numbers by tensor cores (`mma.sync` of CUDA), for any number of rows.

A group of threads computes a tile of the output, of one shape for few rows and of another for many. Blocks of both
factors go through shared memory in words of 32 bits, each of 2 or 4 neighbours along the depth; while a block is
multiplied, the next one is read from memory into registers.
A warp, 32 threads, computes a part of the tile in squares of 16 × 8, for each of which an instruction multiplies 16 × 8
words by 8 × 8. A thread has two words of each eight rows or columns of a factor, and two neighbours of each eight rows
of the sums (PTX ISA, "Matrix Fragments for mma.m16n8k16").

The order of a sum is that of the depth, whatever the tile: rows have equal bits in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relaxpy.backend.gpu.schedule.group import blocks, meet, registers
from relaxpy.backend.gpu.schedule.product import Product
from relaxpy.backend.gpu.schedule.vectors import WORD, read_words
from relaxpy.backend.knobs import knob
from relaxpy.tir.forms.contraction import Operand
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.writer.loops import (
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

WARP = 32
_WARPS = 8
_ROWS, _COLUMNS, _WORDS = 16, 8, 8
"""The extents of an instruction: rows, columns, and words along the depth."""
_VECTOR = 4
"""The words of a read."""
_HALVES = ("float16", "bfloat16")
_PAD = 4
"""Words between rows in shared memory, so that the threads of a warp read different banks."""


_SHARED_BYTES = 48 << 10
"""Shared memory that a group has without asking the driver for more."""


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
    def shared_words(self) -> int:
        """Words of shared memory."""
        return (self.height + self.width) * self.stride

    def fits(self, warps: int) -> bool:
        """Can so many warps divide it? Each has whole squares of both sides, and each thread whole reads of both
        blocks."""
        across, rest = divmod(warps, self.down)
        if rest or self.height % (self.down * _ROWS) or self.width % (max(across, 1) * _COLUMNS):
            return False
        reads = (size * self.words % (warps * WARP * _VECTOR) for size in (self.height, self.width))
        fits = self.shared_words * WORD // 8 <= _SHARED_BYTES
        return fits and self.words % _WORDS == 0 and not any(reads)

    def __str__(self) -> str:
        return f"{self.height}x{self.width}x{self.words}x{self.down}"


ALL_ROWS = (1 << 31) - 1
_NARROW_ROWS = 64
_NARROW = (
    TileShape(64, 32, 64, 2), TileShape(16, 32, 64, 1), TileShape(16, 64, 64, 1), TileShape(32, 32, 64, 2),
    TileShape(32, 64, 32, 2), TileShape(64, 32, 32, 2), TileShape(64, 64, 32, 2), TileShape(64, 64, 64, 2),
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
    product: Product, instructions: Mapping[str, str], known: int | None
) -> list[tuple[int, TensorCores]]:
    """The programs of a product for any number of rows, or the one for a known number, each with the most rows that it
    is for; empty without an instruction. `instructions` are functions of the device's language, by the type of the
    factors."""
    form = product.form
    factors = {factor_type(operand) for operand in (form.lhs, form.rhs)}
    if len(factors) != 1 or not factors <= instructions.keys() or product.threads != _WARPS * WARP:
        return []
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
    words = max(shape.shared_words for _, shape in shapes)
    return [(most, TensorCores(product, shape, instruction, words)) for most, shape in shapes]


def _tile(name: str, tiles: Sequence[TileShape], warps: int) -> TileShape:
    """The setting of a knob whose values are tiles, those that so many warps can divide."""
    known = {str(tile): tile for tile in tiles if tile.fits(warps)}
    default, *others = known
    return known[knob(name, default, others)]


class TensorCores:
    """The program of one shape of tiles."""

    def __init__(self, product: Product, shape: TileShape, instruction: str, words: int) -> None:
        """`words` of shared memory are for all programs of the product."""
        self.of, self.shape, self.instruction, self.words = product, shape, instruction, words
        self.per_word = WORD // tvm.DataType(factor_type(product.form.lhs)).bits
        """Elements of a word."""
        self.block = shape.words * self.per_word
        self.along = blocks(product.columns, shape.width)
        across = product.threads // WARP // shape.down
        self.across = across
        self.squares = shape.height // shape.down // _ROWS, shape.width // across // _COLUMNS
        """Squares of a warp along rows and columns."""

    @property
    def groups(self) -> Expr:
        """The number of groups of a product."""
        return blocks(self.of.rows, self.shape.height) * self.along

    def allocate(self) -> None:
        """Allocate shared memory, which is outside of all conditions, once for all programs of a product."""
        self.memory = self.of.shared("blocks", self.words, "uint32")

    def write(self) -> None:
        """One tile."""
        of, p, shape, memory = self.of, self.of.p, self.shape, self.memory
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
        # The first word of the thread in each factor's block.
        rows = place[0] * (high * _ROWS) + quad
        columns = place[1] * (wide * _COLUMNS) + quad
        left = p.let("left_word", rows * shape.stride + own)
        right = p.let("right_word", (columns + shape.height) * shape.stride + own)
        sums = registers(p, "sums", high * wide * 4, of.dtype)
        for at in range(high * wide * 4):
            p.add(tirx.BufferStore(sums, tirx.const(0, of.dtype), [int64(at)]))
        fetched = self._fetch_buffers()
        self._fetch(fetched, firsts, int64(0))
        with p.loop("block", ceildiv(of.depth, self.block)) as block:
            meet(p)
            self._keep(fetched, memory)
            meet(p)
            self._fetch(fetched, firsts, (block + 1) * self.block)
            with p.loop("step", shape.words // _WORDS) as step:
                self._multiply(memory, left + step * _WORDS, right + step * _WORDS, sums)
        row = p.let("row", firsts[0] + rows)
        column = p.let("column", firsts[1] + place[1] * (wide * _COLUMNS) + own * 2)
        for at in range(high * wide * 4):
            square, part = divmod(at, 4)
            i = row + (square // wide * _ROWS + part // 2 * 8)
            j = column + (square % wide * _COLUMNS + part % 2)
            with p.when(both(i < of.rows, j < of.columns)):
                of.store(tirx.BufferLoad(sums, [int64(at)]), i, j)

    def _multiply(self, memory: Buffer, left: Expr, right: Expr, sums: Buffer) -> None:
        """Multiply 8 words of the depth, from these words of the thread on."""
        p, stride = self.of.p, self.shape.stride
        high, wide = self.squares
        a, b = registers(p, "a", high * 4, "uint32"), registers(p, "b", wide * 2, "uint32")
        for i in range(high):
            for part in range(4):
                word = left + (i * _ROWS + part % 2 * 8) * stride + part // 2 * 4
                p.add(tirx.BufferStore(a, tirx.BufferLoad(memory, [word]), [int64(i * 4 + part)]))
        for j in range(wide):
            for part in range(2):
                word = right + j * _COLUMNS * stride + part * 4
                p.add(tirx.BufferStore(b, tirx.BufferLoad(memory, [word]), [int64(j * 2 + part)]))
        for i in range(high):
            for j in range(wide):
                given = [_address(sums, (i * wide + j) * 4), _address(a, i * 4), _address(b, j * 2)]
                p.add(tirx.Evaluate(tirx.call_extern("int32", self.instruction, *given)))

    # From memory into registers, and from there into shared memory

    def _fetch_buffers(self) -> tuple[Buffer, Buffer]:
        words = self.shape.words
        left, right = (
            registers(self.of.p, f"next_{name}", size * words // self.of.threads, "uint32")
            for name, size in (("left", self.shape.height), ("right", self.shape.width))
        )
        return left, right

    def _parts(self, number: int) -> tuple[Expr, Expr]:
        """The row, or column, and the first word of a thread's read of this number."""
        vectors = self.shape.words // _VECTOR
        at = self.of.thread + number * self.of.threads
        return floordiv(at, vectors), floormod(at, vectors) * _VECTOR

    def _fetch(self, into: Sequence[Buffer], firsts: Sequence[Expr], start: Expr) -> None:
        """Read a thread's part of the blocks that begin at this depth; outside of a factor is 0."""
        of, p, form = self.of, self.of.p, self.of.form
        for operand, buffer, first, extent in zip(
            (form.lhs, form.rhs), into, firsts, (of.rows, of.columns), strict=True
        ):
            for number in range(int(buffer.shape[0]) // _VECTOR):
                row, word = self._parts(number)
                row, at = p.let("row", first + row), p.let("at", start + word * self.per_word)
                exists = both(row < extent, at < of.depth)
                words = self._words(operand, row, at, exists)
                for part, value in enumerate(words):
                    p.add(tirx.BufferStore(buffer, value, [int64(number * _VECTOR + part)]))

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

    def _keep(self, fetched: Sequence[Buffer], memory: Buffer) -> None:
        """Store a thread's part of the blocks in shared memory."""
        p, above = self.of.p, 0
        for buffer, height in zip(fetched, (self.shape.height, self.shape.width), strict=True):
            for number in range(int(buffer.shape[0]) // _VECTOR):
                row, word = self._parts(number)
                first = p.let("word", (row + above) * self.shape.stride + word)
                for part in range(_VECTOR):
                    value = tirx.BufferLoad(buffer, [int64(number * _VECTOR + part)])
                    p.add(tirx.BufferStore(memory, value, [first + part]))
            above += height


def factor_type(operand: Operand) -> str:
    """The type of a factor's elements, before a computed one is widened for the sums."""
    if operand.formula is None:
        return str(operand.buffer.dtype)
    return str(_narrow(operand.formula).ty.dtype)


def _narrow(value: Expr) -> Expr:
    """A value without the cast that widens it."""
    is_widened = isinstance(value, tirx.Cast) and str(value.ty.dtype) == "float32"
    return value.value if is_widened and str(value.value.ty.dtype) in _HALVES else value


def _address(buffer: Buffer, at: int) -> Expr:
    return tirx.address_of(tirx.BufferLoad(buffer, [int64(at)]))


def _bits_of(value: Expr, bits: int) -> Expr:
    """The bits of a number as an unsigned integer of the same size."""
    own = f"uint{bits}"
    return value if str(value.ty.dtype) == own else tirx.reinterpret(own, value)
