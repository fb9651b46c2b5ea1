"""A tile of attention by tensor cores (`mma.sync` of CUDA): some rows of queries, in one pass over their keys.

A *row* is a query and a head; the rows of a tile read the same keys and values. A group of 4 warps goes through the
keys in blocks of 64. Keys and values of a block are copied into shared memory, 16 bytes at a time and without passing
registers: while scores are computed from the keys, values come; while values are added, the next keys. Scores are
products of 16 rows and 8 keys. They become powers with the online softmax (Milakov and Gimelshein, 2018), in the
registers of the instruction's sums, which are those of the left-hand factor of the next one: powers times values (Dao,
FlashAttention-2, 2023).

* *many* rows, up to 64: a warp computes 16 of them, with all keys of a block.
* *few* rows, up to 16, as text is generated: all warps compute the same rows, each with 16 keys of a block. At the end
  their sums are merged in the order of the warps.

The order of a row's operations depends on its own keys only, and blocks begin at multiples of 64. A score that is
masked has the power 0, so an infinite value reaches all rows of a tile that see a key of its block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from relaxpy.backend.gpu.schedule.group import launched, meet, registers, shared, shares
from relaxpy.backend.gpu.target import GpuTarget, WarpFunctions
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
    Program,
    both,
    floordiv,
    floormod,
    int64,
    load,
)
from relaxpy.tir.tvm import tirx

WARP, WARPS = 32, 4
THREADS = WARP * WARPS
ROWS = 16
"""Rows of a warp, and the most that are few."""
MOST_ROWS = ROWS * WARPS
BLOCK = 64
"""Keys of a block."""
CHUNK = 8
"""Numbers of 16 bits that are copied at once."""
LARGEST_HEAD = 128
"""The largest width of a head: for a larger one, sums would need more registers than there are."""
_PAD = 4
"""Words between rows in shared memory, so that the rows of a square are in different banks."""
_SQUARE = 8
_STATE = 3
"""Numbers that are kept of a row at the end, beside its sums."""
LOWEST = -3.4028234663852886e38
"""The initial value of the largest score: finite, so that scores of minus infinity have powers of 0."""
LOG2_E = 1.4426950408889634
_NOTHING = -float("inf")
"""The score of a key that a row does not see."""

Row = TypeVar("Row")
"""What an attention knows of a row."""


@dataclass(frozen=True)
class Matrix:
    """A matrix of 16-bit numbers in shared memory: the right-hand factor of a product."""

    first: int
    """The first word."""
    height: int
    width: int
    """Numbers of a row, a multiple of 8."""
    is_turned: bool
    """Are its rows along the depth of the product, not along the columns?"""

    @property
    def stride(self) -> int:
        """Words from a row to the next."""
        return self.width // 2 + _PAD

    @property
    def words(self) -> int:
        """Words of shared memory."""
        return self.height * self.stride


def fits(target: GpuTarget, dtype: str, depth: int | None, columns: int | None) -> bool:
    """Has a target what tiles of this type and these widths of keys and values need?"""
    functions = target.warp_functions
    widths = (depth or 0, columns or 0)
    return (
        functions is not None
        and dtype in functions.pair
        and dtype in target.tensor_cores
        and target.group_size >= THREADS
        and all(0 < width <= LARGEST_HEAD and width % ROWS == 0 for width in widths)
    )


class AttentionTile(ABC, Generic[Row]):
    """Writes the program of a group. What a row, a key and a value are is the subclass's."""

    def __init__(
        self, target: GpuTarget, dtype: str, depth: int, columns: int, keys_turned: bool
    ) -> None:
        """`keys_turned`: are the keys in memory along the keys, not along the depth?"""
        assert target.warp_functions is not None, "asked before"
        self.functions: WarpFunctions = target.warp_functions
        self.instruction, self.pair = target.tensor_cores[dtype], self.functions.pair[dtype]
        self.dtype, self.depth, self.columns = dtype, depth, columns
        self.p = p = Program()
        self.group, self.thread = tirx.Var("group", "int64"), tirx.Var("thread", "int64")
        self.keys_turned = keys_turned
        self._sources: dict[Buffer, Buffer] = {}
        self._begin_block(BLOCK)
        words = max(self.keys.words + self.values.words, MOST_ROWS * (columns + _STATE))
        self.memory = shared(p, "tile", words, "uint32")
        self.warp = p.let("warp", floordiv(self.thread, WARP))
        self.lane = p.let("lane", floormod(self.thread, WARP))
        self.quad = p.let("quad", floordiv(self.lane, 4))
        self.own = p.let("own", floormod(self.lane, 4))

    def _begin_block(self, block: int) -> None:
        """Take blocks of so many keys."""
        height, width = (self.depth, block) if self.keys_turned else (block, self.depth)
        self.block = block
        self.keys = Matrix(0, height, width, self.keys_turned)
        self.values = Matrix(self.keys.words, block, self.columns, is_turned=True)

    # What a subclass knows

    @abstractmethod
    def row(self, number: Expr) -> Row:
        """A row of the tile. A number beyond the last one is that of any row."""

    @abstractmethod
    def bounds(self, row: Row) -> tuple[Expr, Expr]:
        """The keys that a row sees: from the first up to, not including, the second."""

    @abstractmethod
    def query_word(self, row: Row, at: Expr) -> Expr:
        """Two neighbours of a row's query, from an even place on."""

    @abstractmethod
    def score(self, row: Row, key: Expr, place: Expr, product: Expr) -> Expr:
        """The score of a product, float32, for a key that the row sees, and its place in the block."""

    @abstractmethod
    def copy_keys(self, start: Expr) -> None:
        """Copy the block that begins at a key into `self.keys`; keys that no row sees are 0."""

    @abstractmethod
    def copy_values(self, start: Expr) -> None:
        """Copy the values of a block into `self.values`; those of keys that no row sees are 0."""

    def weight(self, power: Expr, place: Expr) -> Expr:
        """The factor of a key's value, for its power and its place in the block."""
        return power

    def share(self, row: Row, top: Expr, total: Expr) -> Expr:
        """The factor that makes sums of weighted values a result: `top` is the largest score, `total` the sum of
        powers."""
        zero = tirx.const(0.0, "float32")
        return tirx.Select(tirx.EQ(total, zero), zero, tirx.const(1.0, "float32") / total)

    @abstractmethod
    def store(self, row: Row, column: Expr, quotient: Expr) -> None:
        """Store an element of the result."""

    # The program

    def share_bounds(self) -> None:
        """Determine the bounds of all rows, in shared memory, since registers are scarce."""
        self._limits = shared(self.p, "limits", 2 * MOST_ROWS, "int64")
        with self.p.when(self.thread < MOST_ROWS):
            for n, bound in enumerate(self.bounds(self.row(self.thread))):
                self.p.store(self._limits, self.thread + n * MOST_ROWS, bound)
        meet(self.p)

    def limits(self, number: Expr) -> tuple[Expr, Expr]:
        """The bounds of the row with a number, after `share_bounds`."""
        return load(self._limits, number), load(self._limits, number + MOST_ROWS)

    def write(self, low: Expr, end: Expr, rows: Expr, is_few: bool) -> None:
        """The tile with so many rows, which see keys from `low` up to `end`."""
        p = self.p
        self._begin_block(BLOCK if is_few or self.columns <= BLOCK else BLOCK // 2)
        first = p.let("first_key", floordiv(low, self.block) * self.block)
        base = self.quad if is_few else self.quad + self.warp * ROWS
        numbers = [p.let("number", base + part * _SQUARE) for part in range(2)]
        self._rows = [self.row(number) for number in numbers]
        self._numbers = numbers
        self._is_few = is_few
        is_busy = True if is_few else p.let("is_busy", self.warp * ROWS < rows)
        # Of a thread: two rows, of which it has two neighbours in each 8 columns.
        self._query = registers(p, "query", self.depth // 4, "uint32")
        self._sums = registers(p, "sums", self.columns // 2, "float32")
        self._tops, self._totals = (registers(p, name, 2, "float32") for name in ("tops", "totals"))
        self._begin()
        with p.when(first < end):
            self.copy_keys(first)
        with p.loop("block", self._blocks(end - first)) as block:
            start = p.let("start", first + block * self.block)
            self._arrived()
            self.copy_values(start)
            powers = registers(p, "powers", self._keys_of_warp // 4, "uint32")
            with p.when(is_busy):
                self._weigh(start, powers)
            self._arrived()
            with p.when(start + self.block < end):
                self.copy_keys(start + self.block)
            with p.when(is_busy):
                self._add_values(powers)
        self._finish(rows)

    def _blocks(self, keys: Expr) -> Expr:
        """The number of blocks of so many keys."""
        return tirx.Max(tirx.Div(keys + int64(self.block - 1), int64(self.block)), int64(0))

    @property
    def _keys_of_warp(self) -> int:
        return self.block // WARPS if self._is_few else self.block

    @property
    def _first_key(self) -> Expr | int:
        """The first key of a block that the warp computes."""
        return self.warp * (self.block // WARPS) if self._is_few else 0

    def _arrived(self) -> None:
        """Wait for the copies of all threads, and for all that read what they will overwrite."""
        self.call(self.functions.copied)
        meet(self.p)

    def _begin(self) -> None:
        """Read the queries, and begin with no keys."""
        for at in range(self.depth // 4):
            step, part = divmod(at, 4)
            place = self.own * 2 + (step * ROWS + part // 2 * _SQUARE)
            self._set(self._query, at, self.query_word(self._rows[part % 2], place))
        for at in range(self.columns // 2):
            self._set(self._sums, at, tirx.const(0.0, "float32"))
        for part in range(2):
            self._set(self._tops, part, tirx.const(LOWEST, "float32"))
            self._set(self._totals, part, tirx.const(0.0, "float32"))

    def _weigh(self, start: Expr, powers: Buffer) -> None:
        """The warp's powers of a block's keys, in pairs; rescale the sums if they have larger scores."""
        p, count = self.p, self._keys_of_warp
        scores = registers(p, "scores", count // 2, "float32")
        for at in range(count // 2):
            self._set(scores, at, tirx.const(0.0, "float32"))
        steps = self.depth // ROWS
        self._multiply(self.keys, scores, self._query, count, steps, along_depth=False)
        first = self._first_key
        places = [p.let("place", self.own * 2 + first + n) for n in range(2)]
        for part, row in enumerate(self._rows):
            low, high = self.limits(self._numbers[part])
            low = p.let("low", self.in_block(low - start))
            high = p.let("high", self.in_block(high - start))
            mine = [(square, n) for square in range(count // _SQUARE) for n in range(2)]
            largest = registers(p, "largest", 1, "float32")
            self._set(largest, 0, _at(self._tops, part))
            for square, n in mine:
                at = square * 4 + part * 2 + n
                place = places[n] + square * _SQUARE
                narrow = tirx.Cast("int32", place)
                score = self.score(row, start + place, place, _at(scores, at))
                seen = both(low <= narrow, narrow < high)
                score = p.let("score", tirx.if_then_else(seen, score, _number(_NOTHING)))
                self._set(scores, at, score)
                self._set(largest, 0, tirx.Max(_at(largest, 0), score))
            new = p.let("new", self._of_four(self.functions.largest, largest, 0))
            decay = p.let("decay", power(_at(self._tops, part) - new))
            self._set(self._tops, part, new)
            total: Expr = _at(self._totals, part) * decay
            for square, n in mine:
                at = square * 4 + part * 2 + n
                value = p.let("power", power(_at(scores, at) - new))
                total = p.let("total", total + value)
                self._set(scores, at, self.weight(value, places[n] + square * _SQUARE))
            self._set(self._totals, part, total)
            for square in range(self.columns // _SQUARE):
                for n in range(2):
                    at = square * 4 + part * 2 + n
                    self._set(self._sums, at, _at(self._sums, at) * decay)
        for at in range(count // 4):
            pair = [_at(scores, at * 2 + n) for n in range(2)]
            self._set(powers, at, tirx.call_extern("uint32", self.pair, *pair))

    def _add_values(self, powers: Buffer) -> None:
        """Add the values of a block, weighted."""
        steps = self._keys_of_warp // ROWS
        self._multiply(self.values, self._sums, powers, self.columns, steps, along_depth=True)

    def _multiply(
        self, right: Matrix, sums: Buffer, left: Buffer, columns: int, steps: int, along_depth: bool
    ) -> None:
        """Add the product of a factor in registers and so many columns of one in shared memory, `steps` times 16 deep.
        Keys, of which the warp may have a part, are along the depth (`along_depth`) or along the columns."""
        p = self.p
        square, line = floordiv(self.lane, _SQUARE), floormod(self.lane, _SQUARE)
        near, far = floormod(square, 2), floordiv(square, 2)
        # Four squares: two along the depth, for each of two along the columns.
        if right.is_turned:
            row, word = near * _SQUARE + line, far * (_SQUARE // 2)
        else:
            row, word = far * _SQUARE + line, near * (_SQUARE // 2)
        if right.is_turned == along_depth:  # a row is a key
            row = row + self._first_key
        else:
            word = word + floordiv(int64(self._first_key), 2)
        own = p.let("own_word", row * right.stride + (word + right.first))
        words = registers(p, "words", 4, "uint32")
        function = self.functions.turned if right.is_turned else self.functions.squares
        for step in range(steps):
            for pair in range(columns // ROWS):
                if right.is_turned:
                    away = step * ROWS * right.stride + pair * ROWS // 2
                else:
                    away = pair * ROWS * right.stride + step * ROWS // 2
                self.call(function, _address(words, 0), _address(self.memory, own + away))
                for n in range(2):
                    given = [
                        _address(sums, (pair * 2 + n) * 4),
                        _address(left, step * 4),
                        _address(words, n * 2),
                    ]
                    self.call(self.instruction, *given)

    def _finish(self, rows: Expr) -> None:
        """Divide the sums by their totals, merge those of the warps in their order, and store the results. All go
        through shared memory, so that no thread keeps the places of its rows in registers."""
        p, columns = self.p, self.columns
        self._arrived()
        for part in range(2):
            total = self._of_four(self.functions.total, self._totals, part)
            row = p.let("row", self.warp * ROWS + self.quad + part * _SQUARE)
            for at in range(columns // 4):
                square, n = divmod(at, 2)
                place = row * columns + self.own * 2 + (square * _SQUARE + n)
                self._keep(place, _at(self._sums, square * 4 + part * 2 + n))
            with p.when(tirx.EQ(self.own, int64(0))):
                self._keep(row + self._tops_at, _at(self._tops, part))
                self._keep(row + self._totals_at, total)
        meet(p)
        same = ROWS if self._is_few else MOST_ROWS
        """Rows after which a row comes again, as another warp's."""
        with p.when(self.thread < MOST_ROWS):
            first = p.let("first", floormod(self.thread, same))
            top, total = (
                p.let("kept", self._kept(first + at)) for at in (self._tops_at, self._totals_at)
            )
            for row in range(same, MOST_ROWS, same):
                other, more = (
                    self._kept(first + (row + at)) for at in (self._tops_at, self._totals_at)
                )
                new = p.let("new", tirx.Max(top, other))
                total = p.let("total", total * power(top - new) + more * power(other - new))
                top = new
            share = self.share(self.row(first), top, total)
            decay = power(self._kept(self.thread + self._tops_at) - top)
            self._keep(self.thread + self._shares_at, decay * share if self._is_few else share)
        meet(p)
        with shares(p, same * columns // 2, self.thread, THREADS) as number:
            own = p.let("row", floordiv(number, columns // 2))
            with p.when(own < rows):
                known = self.row(own)
                column = p.let("column", floormod(number, columns // 2) * 2)
                of_warps = [own + first for first in range(0, MOST_ROWS, same)]
                factors = [p.let("share", self._kept(row + self._shares_at)) for row in of_warps]
                for n in range(2):
                    value: Expr = tirx.const(0.0, "float32")
                    for row, factor in zip(of_warps, factors, strict=True):
                        value = value + self._kept(row * columns + (column + n)) * factor
                    self.store(known, column + n, p.let("value", value))

    @property
    def _tops_at(self) -> int:
        """The first word of the largest scores of all rows of all warps. Their totals and factors follow."""
        return MOST_ROWS * self.columns

    @property
    def _totals_at(self) -> int:
        return self._tops_at + MOST_ROWS

    @property
    def _shares_at(self) -> int:
        return self._totals_at + MOST_ROWS

    def _keep(self, place: Expr, value: Expr) -> None:
        self.p.add(tirx.BufferStore(self.memory, tirx.reinterpret("uint32", value), [place]))

    def _kept(self, place: Expr) -> Expr:
        return tirx.reinterpret("float32", tirx.BufferLoad(self.memory, [place]))

    def _of_four(self, function: str, numbers: Buffer, at: int) -> Expr:
        """The largest, or the sum, of the numbers of the threads that have a row."""
        return self.p.let("of_four", tirx.call_extern("float32", function, _at(numbers, at)))

    def _set(self, buffer: Buffer, at: int, value: Expr) -> None:
        self.p.add(tirx.BufferStore(buffer, value, [int64(at)]))

    # For subclasses

    def launched(self, func: tirx.PrimFunc, groups: Expr) -> tirx.PrimFunc:
        """The function with the program as its body, for so many groups."""
        group, thread = (self.group, groups), (self.thread, THREADS)
        return launched(func, self.p.body(), group, thread, is_whole=True)

    def in_block(self, place: Expr) -> Expr:
        """A place relative to a block, clamped to it, in 32 bits."""
        return tirx.Cast("int32", tirx.Max(tirx.Min(place, int64(self.block)), int64(0)))

    def reads(self, buffer: Buffer) -> None:
        """Prepare reads of a parameter of 16-bit or 8-bit numbers."""
        if buffer not in self._sources:
            kind = "uint32x4" if _is_bytes(buffer) else "uint32"
            self._sources[buffer] = self.p.flat_view(buffer, kind)

    def word(self, buffer: Buffer, at: Expr) -> Expr:
        """The 16-bit number at an even place, and its neighbour."""
        return load(self._sources[buffer], floordiv(at, 2))

    def copy(
        self,
        matrix: Matrix,
        buffer: Buffer,
        offset: Callable[[Expr, Expr], Expr],
        exists: Callable[[Expr, Expr], Expr],
        line: Expr | None = None,
    ) -> None:
        """Copy a matrix from memory, 16 bytes at a time. `offset` (of a row and a column) says where they begin,
        `exists` whether they are copied: otherwise they are 0. `line` is the distance of two rows, where all have the
        same."""
        size = 2 * CHUNK if _is_bytes(buffer) else CHUNK
        across = matrix.width // size
        count = matrix.height * across
        is_even = line is not None and THREADS % across == 0
        """Do all chunks of a thread have the same column, and rows that are as far from each other?"""
        begin: tuple[Expr, Expr, Expr] | None = None
        for step in range(-(-count // THREADS)):
            number = self.thread + step * THREADS
            # All but the last chunks exist, and later ones begin where the first does.
            with self.p.when((step + 1) * THREADS <= count or number < count):
                if begin is None or not is_even:
                    row = self.p.let("row", floordiv(number, across))
                    column = self.p.let("column", floormod(number, across) * size)
                    begin = row, column, self.p.let("begin", offset(row, column))
                    down = 0
                else:
                    down = THREADS // across * step
                row, column, source = begin
                if line is not None:
                    source = source + line * down
                row = row + down
                to = matrix.first + row * matrix.stride + floordiv(column, 2)
                if _is_bytes(buffer):
                    self._convert(buffer, to, source, exists(row, column))
                    continue
                given = (
                    _address(self.memory, to),
                    _address(self._sources[buffer], floordiv(source, 2)),
                    tirx.Cast("int32", exists(row, column)),
                )
                self.call(self.functions.copy, *given)

    def _convert(self, buffer: Buffer, to: Expr, source: Expr, exists: Expr) -> None:
        """Copy 16 bytes now, as 16-bit numbers."""
        p, words = self.p, 16 // 4
        chunk = registers(p, "chunk", words, "uint32")
        for at in range(words):
            self._set(chunk, at, tirx.const(0, "uint32"))
        with p.when(exists):
            vector = p.let("bytes", load(self._sources[buffer], floordiv(source, 16)))
            for at in range(words):
                self._set(chunk, at, tirx.Shuffle([vector], [tirx.const(at, "int32")]))
        to = p.let("to", to)
        for at in range(words):
            # A float32 from 2**23 on has an integer as its lowest bits; the sign of a byte is 128 of them.
            word = p.let("word", tirx.bitwise_xor(_at(chunk, at), tirx.const(0x80808080, "uint32")))
            for pair in range(2):
                numbers = [_of_byte(word, pair * 2 + n) for n in range(2)]
                value = tirx.call_extern("uint32", self.pair, *numbers)
                self.p.store(self.memory, to + (at * 2 + pair), value)

    def call(self, function: str, *given: Expr) -> None:
        """Call a function of the device."""
        self.p.add(tirx.Evaluate(tirx.call_extern("int32", function, *given)))


def power(exponent: Expr) -> Expr:
    """The exponential function."""
    return tirx.exp2(exponent * tirx.const(LOG2_E, "float32"))


def _is_bytes(buffer: Buffer) -> bool:
    return str(buffer.dtype) == "int8"


def _of_byte(word: Expr, at: int) -> Expr:
    """The number of a byte, to which 128 was added, as float32."""
    byte = tirx.bitwise_and(
        tirx.shift_right(word, tirx.const(8 * at, "uint32")), tirx.const(0xFF, "uint32")
    )
    bits = tirx.bitwise_or(byte, tirx.const(0x4B000000, "uint32"))
    return tirx.reinterpret("float32", bits) - _number(float((1 << 23) + 128))


def _number(value: float) -> Expr:
    return tirx.FloatImm("float32", value)


def _at(buffer: Buffer, at: int) -> Expr:
    return tirx.BufferLoad(buffer, [int64(at)])


def _address(buffer: Buffer, at: Expr | int) -> Expr:
    return tirx.address_of(tirx.BufferLoad(buffer, [int64(at)]))
