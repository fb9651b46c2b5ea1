"""Tiles of paged attention: some rows of queries and the keys of a block, in registers.

A *row* is a query head of a token; the rows of a tile share their key head. A *block* is some neighbouring pages of a
sequence. For each block, a tile updates its rows' state, which is that of an online softmax:

    scores = query @ keys of the block                      a tile of sums in registers
    new = max(top, max(scores)); decay = 2 ** (top - new); top = new
    weights = 2 ** (scores - top); totals = totals * decay + weights
    sums = sums * decay + weights @ values of the block     another tile

Keys lie across lanes: scores are whole vectors, and no sum crosses lanes. Every row has the same operations in the same
order, whatever the tile that it is in. What a block has beyond the keys of a row is never added, since it may be
anything.

Where the target has dot products of bfloat16 (`relaxpy.backend.cpu.arithmetic`), what is multiplied are words: two
neighbours of a key, and the values of two neighbouring keys at one column. Weights are rounded then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import log2

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.narrowing import narrowed
from relaxpy.backend.cpu.rules.attention_access import LOWEST, as_numbers, as_words, ones, splat
from relaxpy.backend.cpu.target import CACHE_LINE
from relaxpy.tir.numerics import math, scalar
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.elementary import value_written_out
from relaxpy.tir.programs.loops import Buffer, Expr, Program, int64
from relaxpy.tir.programs.paged_attention import Scoring
from relaxpy.tir.programs.vectors import fold, interleaved, mapped, vector_value
from relaxpy.tir.recognise.stages import Combiner
from relaxpy.tir.tvm import tirx, tvm

LOG2_E = log2(2.718281828459045)
"""Scores are kept as exponents of 2."""
_MAX = Combiner("max", tirx.FloatImm("float32", LOWEST))


@dataclass(frozen=True)
class Sizes:
    """The sizes of a program."""

    rows: int
    """Heads that share a key head."""
    width: int
    columns: int
    page: int
    """Tokens of a page."""
    pages: int
    """Pages of a block."""
    lanes: int
    registers: int

    @property
    def block(self) -> int:
        """Keys of a block."""
        return self.page * self.pages

    @property
    def vectors(self) -> int:
        """Vectors of keys in a page."""
        return self.page // self.lanes

    @property
    def most_rows(self) -> int:
        """The most rows of a tile of two vectors: two registers are for what is multiplied, and two are spare."""
        return (self.registers - 4) // 2

    def across(self, height: int, vectors: int) -> int:
        """The number of vectors across a tile of this height, of so many that there are."""
        for count in (8, 6, 4, 2):
            factors = count if height > 1 else 1
            if vectors % count == 0 and height * count + factors + 2 <= self.registers:
                return count
        return 1


class Numbers:
    """Numbers in memory, read as vectors of float32."""

    def __init__(self, program: Program, buffer: Buffer, lanes: int, line: int) -> None:
        """`line`: the numbers of a line, of which whole parts are read."""
        self.program, self.lanes, self.dtype = program, lanes, str(buffer.dtype)
        is_bfloat16 = self.dtype == "bfloat16"
        self.view = program.flat_view(buffer, "uint16" if is_bfloat16 else None)
        self.is_paired = is_bfloat16 and line % (2 * lanes) == 0
        """Are the numbers of two vectors in memory read as those at even places, and those at odd ones? For bfloat16
        these are one operation each."""

    def read(self, at: Expr, count: int) -> list[Expr]:
        """As many vectors, from a place on. An even number of them if they are paired."""
        p, lanes = self.program, self.lanes
        wide, bits = f"float32x{lanes}", f"uint32x{lanes}"
        if not self.is_paired:
            return [p.let("wide", self._vector(at + n * lanes)) for n in range(count)]
        found: list[Expr] = []
        upper = loops.broadcast(tirx.const(0xFFFF0000, "uint32"), lanes)
        by = loops.broadcast(tirx.const(16, "uint32"), lanes)
        for n in range(0, count, 2):
            raw = loops.load(self.view, at + n * lanes, 2 * lanes)
            words = p.let("words", tirx.reinterpret(bits, raw))
            found.append(p.let("even", tirx.reinterpret(wide, words << by)))
            found.append(p.let("odd", tirx.reinterpret(wide, words & upper)))
        return found

    def read_words(self, at: Expr, step: int, count: int) -> list[Expr]:
        """As many vectors of words, an even number: each of a number of the line from a place on and of one of the line
        a step behind."""
        p, lanes = self.program, self.lanes
        found: list[Expr] = []
        for n in range(0, count, 2):
            place = at + n * lanes
            lines = [loops.load(self.view, place + k * step, 2 * lanes) for k in range(2)]
            for words in interleaved(*(p.let("line", line) for line in lines), 2 * lanes):
                found.append(p.let("words", tirx.reinterpret(f"int32x{lanes}", words)))
        return found

    def _vector(self, at: Expr) -> Expr:
        value = loops.load(self.view, at, self.lanes)
        if self.dtype == "float32":
            return value
        if self.dtype == "bfloat16":
            words = value.astype(f"uint32x{self.lanes}")
            by = loops.broadcast(tirx.const(16, "uint32"), self.lanes)
            return tirx.reinterpret(f"float32x{self.lanes}", words << by)
        return value.astype(f"float32x{self.lanes}")

    def prefetch(self, begin: Expr, step: Expr, size: int) -> None:
        """Prefetch the cache lines of a step of as many numbers, the first of which begins at `begin`, into the second
        level: the first one holds little more than the block that is used, and waits for few lines at a time."""
        line = CACHE_LINE // max(1, tvm.DataType(self.dtype).bits // 8)
        for n in range(0, size, line):
            self.program.prefetch(self.view, begin + step * size + n, level=2)

    def in_order(self, vectors: Sequence[Expr]) -> list[Expr]:
        """Vectors that belong to places read by `read`, in the order of memory."""
        if not self.is_paired:
            return list(vectors)
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        return [each for pair in pairs for each in interleaved(*pair, self.lanes)]


@dataclass(frozen=True)
class Products:
    """How queries and keys are multiplied."""

    arithmetic: Arithmetic
    words: int
    """The number of words of a query and of a key."""
    scale: float | None
    """The factor that makes products scores; None if the queries have it."""


@dataclass(frozen=True, eq=False)
class Ahead:
    """Pages that are prefetched, while those of a block are used."""

    keys: Numbers
    values: Numbers
    keys_of: Callable[[Expr], Expr]
    """Where the keys of a page begin."""
    values_of: Callable[[Expr], Expr]


@dataclass(frozen=True, eq=False)
class Block:
    """Where the keys and values of a block are."""

    exists: Callable[[Expr], Expr]
    """Is a page one of those that are read?"""
    scales: Callable[[Expr], Expr]
    """Where the scales of a page begin."""
    begin: Callable[[Expr], Expr]
    """Where the keys of a page begin."""
    keys: Callable[[Expr, Expr, int, int], list[Expr]]
    """(where the page begins, number of the word, first vector, count): vectors of words of keys."""
    values: Callable[[Expr, Expr, int], list[Expr]]
    """(line, part of the columns, count): vectors of values, or of words of this line's and the next one's."""
    lines: Callable[[Expr], Expr]
    """Where the lines of values of a part begin."""
    parts: int
    """The block's parts of one size, each with its lines one after the other."""
    ahead: Ahead | None = None
    """The pages of the next block, if it has pages that are not in a cache yet."""


@dataclass(frozen=True, eq=False)
class Tiling:
    """Tiles of the same height."""

    height: int
    visit: Callable[[Expr, Callable[[Expr], None]], None]
    """Write the loops over the tiles around what is written for one, given its first row: over those with a row that
    attends to a key of the block from a number on."""
    is_even: bool
    """Have all rows of a tile the same keys?"""


class Tiles:
    """Writes what a block of keys does to the state of a task's rows."""

    def __init__(
        self, program: Program, sizes: Sizes, scoring: Scoring, keys: Numbers, products: Products, weighing: Arithmetic,
        scales: tuple[Numbers, Numbers] | None, rows: int,
    ) -> None:  # fmt: skip
        """Allocates the state of as many rows."""
        self.program, self.sizes, self.scoring, self.keys = program, sizes, scoring, keys
        self.products, self.weighing = products, weighing
        self.key_scales, self.value_scales = scales or (None, None)
        p, lanes = program, sizes.lanes
        self.query = p.allocate("query", rows * products.words, "float32")
        self.scores = p.allocate("scores", rows * sizes.block, "float32")
        self.sums = p.allocate("sums", rows * sizes.columns, "float32")
        self.tops = p.allocate("tops", rows, "float32")
        self.totals = p.allocate("totals", rows * lanes, "float32")
        self.decays = p.allocate("decays", rows + lanes, "float32")
        self.first = p.allocate("first", rows, "int64")
        """The first key of the block that a row attends to."""
        self.end = p.allocate("end", rows, "int64")
        """The key after the last one."""

    def begin(self, row: Expr) -> None:
        """The state of a row without keys."""
        p, lanes, columns = self.program, self.sizes.lanes, self.sizes.columns
        p.store(self.tops, row, tirx.FloatImm("float32", LOWEST))
        p.store(self.totals, row * lanes, splat(0.0, lanes), lanes)
        with p.loop("c", columns // lanes) as c:
            p.store(self.sums, row * columns + c * lanes, splat(0.0, lanes), lanes)

    def score(
        self, block: Block, tilings: Sequence[Tiling],
        bias: Callable[[Expr, Expr], Expr] | None = None,
    ) -> None:  # fmt: skip
        """The scores of a block's keys for the rows of the tiles; `bias` has what is added to those of a row, for the
        vector of keys from a number on."""
        p, sizes = self.program, self.sizes
        with p.loop("page", sizes.pages, rolled=True) as page, p.when(block.exists(page)):
            for tiling in tilings:
                across = sizes.across(tiling.height, sizes.vectors)
                for first in range(0, sizes.vectors, across):
                    key = page * sizes.page + first * sizes.lanes
                    tile = partial(self._products, tiling.height, block, page, first, bias)
                    tiling.visit(key, tile)

    def weigh(
        self, rows: tuple[Expr, Expr], bounds: Callable[[Expr], tuple[Expr, Expr]],
        scales: Callable[[Expr], Expr],
    ) -> None:  # fmt: skip
        """Replace the scores of a block by the weights of its values, for the rows from the first up to, not including,
        the second, which whole tiles have. `bounds` has the keys of a row, from the first up to, not including, the
        second, which may be beyond the block; `scales` says where the scales of a page begin."""
        p, sizes, lanes = self.program, self.sizes, self.sizes.lanes
        first, end = rows
        count = p.let("rows", end - first)
        if self.scoring.soft_cap:
            self._cap(first, count)
        with p.loop("r", count, about=sizes.rows) as r:
            row = p.let("row", first + r)
            self._largest(row, *bounds(row))
        with p.loop("r", _quotient(count + (lanes - 1), lanes), about=1) as r:
            at = p.let("at", first + r * lanes)
            p.store(self.decays, at, power(loops.load(self.decays, at, lanes), lanes), lanes)
        with p.loop("r", count, about=sizes.rows) as r:
            self._weights(p.let("row", first + r), scales)

    def gather(self, block: Block, tilings: Sequence[Tiling]) -> None:
        """Add the weighted values of a block to the sums of the rows of the tiles."""
        p, sizes, lanes = self.program, self.sizes, self.sizes.lanes
        for tiling in tilings:
            across = sizes.across(tiling.height, sizes.columns // lanes)
            with p.loop("part", sizes.columns // (across * lanes)) as part:
                tiling.visit(int64(0), partial(self._sums, tiling, block, part, across))

    def _products(
        self, height: int, block: Block, page: Expr, first: int,
        bias: Callable[[Expr, Expr], Expr] | None, row: Expr,
    ) -> None:  # fmt: skip
        """The scores of the rows of a tile, for some vectors of a page's keys."""
        p, sizes, lanes = self.program, self.sizes, self.sizes.lanes
        across = sizes.across(height, sizes.vectors)
        arithmetic, words = self.products.arithmetic, self.products.words
        line = p.let("line", row * words)
        begin = p.let("begin", block.begin(page))
        ahead = int64(0) if block.ahead is None else p.let("next", block.ahead.keys_of(page))
        sums = [
            [p.allocate("product", lanes, "float32") for _ in range(across)] for _ in range(height)
        ]
        for own in sums:
            for each in own:
                p.store(each, 0, splat(0.0, lanes), lanes)
        with p.loop("k", words) as k:
            if block.ahead is not None:
                step = k + (first // across) * words
                block.ahead.keys.prefetch(ahead, step, across * lanes * arithmetic.group)
            keys = block.keys(begin, k, first, across)
            for r, own in enumerate(sums):
                number = as_words(loops.load(self.query, line + (r * words) + k), arithmetic)
                factor = p.let("factor", loops.broadcast(number, lanes))
                for each, key in zip(own, keys, strict=True):
                    new = arithmetic.add_product(loops.load(each, 0, lanes), key, factor)
                    p.store(each, 0, new, lanes)
        number = page * sizes.page + first * lanes
        for r, own in enumerate(sums):
            found = [loops.load(each, 0, lanes) for each in own]
            if arithmetic.group == 1:
                found = self.keys.in_order(found)
            for n, score in enumerate(found):
                if self.products.scale is not None:
                    score = score * splat(self.products.scale, lanes)
                if self.key_scales is not None:
                    place = block.scales(page) + (first + n) * lanes
                    (scale,) = self.key_scales.read(place, 1)
                    score = score * scale
                if bias is not None:
                    score = score + bias(row + r, number + n * lanes)
                place = (row + r) * sizes.block + (number + n * lanes)
                p.store(self.scores, place, score, lanes)

    def _cap(self, first: Expr, count: Expr) -> None:
        """The soft-capped scores of rows."""
        p, lanes, block = self.program, self.sizes.lanes, self.sizes.block
        with p.loop("n", count * (block // lanes), about=self.sizes.rows * (block // lanes)) as n:
            at = p.let("at", first * block + n * lanes)

            def element(lane: Expr) -> Expr:
                return value_written_out(scalar.tanh(tirx.BufferLoad(self.scores, [at + lane])))

            value = vector_value(element, lanes)
            assert value is not None, "tanh has vectors"
            p.store(self.scores, at, value * splat(self.scoring.soft_cap * LOG2_E, lanes), lanes)

    def _largest(self, row: Expr, low: Expr, high: Expr) -> None:
        """Give the keys that a row does not attend to a score of minus infinity, and update the row's top."""
        p, sizes, lanes = self.program, self.sizes, self.sizes.lanes
        low = p.let("low", tirx.Max(tirx.Min(low, int64(sizes.block)), int64(0)))
        high = p.let("high", tirx.Max(tirx.Min(high, int64(sizes.block)), int64(0)))
        p.store(self.first, row, low)
        p.store(self.end, row, high)
        places = [row * sizes.block + n * lanes for n in range(sizes.block // lanes)]
        with p.when(tirx.Or(int64(0) < low, high < int64(sizes.block))):
            first, end = (p.let("bound", each.astype("int32")) for each in (low, high))
            for n, at in enumerate(places):
                mask = loops.lanes_between(first - n * lanes, end - n * lanes, lanes)
                score = loops.load(self.scores, at, lanes)
                score = tirx.Select(mask, score, splat(-float("inf"), lanes))
                p.store(self.scores, at, score, lanes)
        scores = [loops.load(self.scores, at, lanes) for at in places]
        largest = fold(p, _joined(p, scores, tirx.Max), lanes, _MAX)
        old = p.let("old", loops.load(self.tops, row))
        new = p.let("new", tirx.Max(old, largest))
        p.store(self.tops, row, new)
        p.store(self.decays, row, old - new)

    def _weights(self, row: Expr, scales: Callable[[Expr], Expr]) -> None:
        """Replace the scores of a row by the weights of the values, and update its total."""
        p, sizes, lanes = self.program, self.sizes, self.sizes.lanes
        top = p.let("top", loops.broadcast(loops.load(self.tops, row), lanes))
        powers: list[Expr] = []
        for n in range(sizes.block // lanes):
            at = row * sizes.block + n * lanes
            own = p.let("power", power(loops.load(self.scores, at, lanes) - top, lanes))
            powers.append(own)
            if self.weighing.group > 1:
                continue
            if self.value_scales is not None:
                page, vector = divmod(n, sizes.vectors)
                (scale,) = self.value_scales.read(scales(int64(page)) + vector * lanes, 1)
                own = own * scale
            p.store(self.scores, at, own, lanes)
        decay = loops.broadcast(loops.load(self.decays, row), lanes)
        before = loops.load(self.totals, row * lanes, lanes)
        if self.weighing.group == 1:
            p.store(self.totals, row * lanes, before * decay + _joined(p, powers, tirx.Add), lanes)
            return
        total = p.let("total", before * decay)
        for n in range(0, len(powers), 2):
            words = tirx.reinterpret(f"int32x{lanes}", narrowed(*powers[n : n + 2]))
            words = p.let("words", words)
            at = row * sizes.block + n // 2 * lanes
            p.store(self.scores, at, as_numbers(words), lanes)
            total = p.let("total", self.weighing.add_product(total, words, ones(self.weighing)))
        p.store(self.totals, row * lanes, total, lanes)

    def _sums(self, tiling: Tiling, block: Block, part: Expr, across: int, row: Expr) -> None:
        """Add the weighted values of a block to the sums of a tile, in some vectors of the columns."""
        p, sizes, lanes = self.program, self.sizes, self.sizes.lanes
        at = row * sizes.columns + part * (across * lanes)
        line = p.let("line", at)
        sums = [
            [p.allocate("sum", lanes, "float32") for _ in range(across)]
            for _ in range(tiling.height)
        ]
        for r, own in enumerate(sums):
            decay = p.let("decay", loops.broadcast(loops.load(self.decays, row + r), lanes))
            for n, each in enumerate(own):
                before = loops.load(self.sums, line + (r * sizes.columns + n * lanes), lanes)
                p.store(each, 0, before * decay, lanes)
        count = sizes.block // block.parts
        with p.loop("lines", block.parts, rolled=True) as number:
            begin, first = p.let("begin", block.lines(number)), p.let("first", number * count)
            ahead = (
                int64(0) if block.ahead is None else p.let("next", block.ahead.values_of(number))
            )

            group = self.weighing.group

            def add(start: Expr, end: Expr, is_shared: bool) -> None:
                with p.loop("n", end - start, about=count // group if is_shared else 1) as n:
                    j = p.let("j", start + n)
                    if block.ahead is not None:
                        step = part * (count // group) + j
                        block.ahead.values.prefetch(ahead, step, across * lanes * group)
                    values = block.values(begin + j * group, part, across)
                    self._add(tiling, sums, values, row, j * group + first, is_shared)

            self._each_range(tiling, row, first, count, add)
        for r, own in enumerate(sums):
            for n, each in enumerate(own):
                place = line + (r * sizes.columns + n * lanes)
                p.store(self.sums, place, loops.load(each, 0, lanes), lanes)

    def _each_range(
        self, tiling: Tiling, row: Expr, first: Expr, count: int,
        add: Callable[[Expr, Expr, bool], None],
    ) -> None:  # fmt: skip
        """Add the keys that some row of a tile attends to, of so many from the first on, which is number 0, in order:
        `add` is given the first, that after the last one, and whether all rows attend to them."""
        p, last = self.program, tiling.height - 1

        def within(buffer: Buffer, place: Expr, low: Expr | int) -> Expr:
            value = loops.load(buffer, place) - first
            return p.let("edge", tirx.Max(tirx.Min(value, int64(count)), int64(low)))

        def words(key: Expr, added: int) -> Expr:
            group = self.weighing.group
            return key if group == 1 else p.let("word", tirx.Div(key + added, int64(group)))

        up = self.weighing.group - 1
        start = within(self.first, row, 0)
        if tiling.is_even:
            end = within(self.end, row, start)
            add(words(start, 0), words(end, up), True)
            return
        end = within(self.end, row + last, start)
        shared = p.let("shared", tirx.Min(within(self.first, row + last, start), end))
        to = p.let("to", tirx.Min(within(self.end, row, shared), end))
        if up:
            # Words with keys that only some rows attend to are not shared.
            start, end = words(start, 0), words(end, up)
            shared = p.let("shared", tirx.Min(words(shared, up), end))
            to = p.let("to", tirx.Max(words(to, 0), shared))
        # The keys before and behind those that all rows attend to, by the same code.
        with p.loop("side", 2, rolled=True) as side:
            is_before = loops.equals(side, 0)
            add(loops.select(is_before, start, to), loops.select(is_before, shared, end), False)
            with p.when(is_before):
                add(shared, to, True)

    def _add(
        self, tiling: Tiling, sums: list[list[Buffer]], values: list[Expr], row: Expr, key: Expr, is_shared: bool,
    ) -> None:  # fmt: skip
        """Add the weighted values of a key to the sums of a tile, or of those rows that attend to it; of a word's two
        keys, to the sums of those rows that attend to one."""
        p, lanes, weighing = self.program, self.sizes.lanes, self.weighing
        group = weighing.group

        def attends(r: int, key: Expr) -> Expr:
            first, end = (loops.load(buffer, row + r) for buffer in (self.first, self.end))
            return loops.both(first <= key, key < end)

        def bits(r: int) -> Expr:
            """Those of the keys that a row attends to: the others may be anything, and 0 times that NaN."""
            none = tirx.const(0, "int32")
            low, high = (
                tirx.Select(attends(r, key + n), tirx.const(half, "int32"), none)
                for n, half in enumerate((0xFFFF, -(1 << 16)))
            )
            return p.let("bits", low | high)

        if group > 1 and is_shared and tiling.is_even:
            mask = loops.broadcast(bits(0), lanes)
            values = [p.let("values", value & mask) for value in values]
        for r, own in enumerate(sums):
            place = key if group == 1 else tirx.Div(key, int64(group))
            number = loops.load(self.scores, (row + r) * self.sizes.block + place)
            weight = p.let("weight", loops.broadcast(as_words(number, weighing), lanes))
            has_key: Expr | bool = True
            seen = values
            if not is_shared and group == 1:
                has_key = attends(r, key)
            elif not is_shared:
                own_bits = bits(r)
                has_key = tirx.NE(own_bits, tirx.const(0, "int32"))
                seen = [value & loops.broadcast(own_bits, lanes) for value in values]
            with p.when(has_key):
                for each, value in zip(own, seen, strict=True):
                    new = weighing.add_product(loops.load(each, 0, lanes), value, weight)
                    p.store(each, 0, new, lanes)


def power(vector: Expr, lanes: int) -> Expr:
    """2 to the power of numbers that are at most 0."""
    return mapped(math.exp2_of_negative, vector, lanes)


def _joined(p: Program, vectors: Sequence[Expr], join: Callable[[Expr, Expr], Expr]) -> Expr:
    """All vectors combined, neighbours first."""
    found = list(vectors)
    while len(found) > 1:
        pairs = [found[n : n + 2] for n in range(0, len(found), 2)]
        found = [p.let("joined", join(*pair)) if len(pair) > 1 else pair[0] for pair in pairs]
    return found[0]


def _quotient(value: Expr, divisor: int) -> Expr:
    """The quotient of a number that is not negative."""
    return value if divisor == 1 else tirx.Div(value, int64(divisor))
