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
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2

from relaxpy.backend.cpu.rules.attention_access import LOWEST, splat
from relaxpy.tir.forms.stages import Combiner, map_loads
from relaxpy.tir.numerics import math, scalar
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer import loops
from relaxpy.tir.writer.elementary import value_written_out
from relaxpy.tir.writer.loops import Buffer, Expr, Program, int64
from relaxpy.tir.writer.paged_attention import Scoring
from relaxpy.tir.writer.vectors import fold, interleaved, vector_value, vectorise

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
        for count in (8, 6, 4, 3, 2):
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

    def _vector(self, at: Expr) -> Expr:
        value = loops.load(self.view, at, self.lanes)
        if self.dtype == "float32":
            return value
        if self.dtype == "bfloat16":
            words = value.astype(f"uint32x{self.lanes}")
            by = loops.broadcast(tirx.const(16, "uint32"), self.lanes)
            return tirx.reinterpret(f"float32x{self.lanes}", words << by)
        return value.astype(f"float32x{self.lanes}")

    def in_order(self, vectors: Sequence[Expr]) -> list[Expr]:
        """Vectors that belong to places read by `read`, in the order of memory."""
        if not self.is_paired:
            return list(vectors)
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        return [each for pair in pairs for each in interleaved(*pair, self.lanes)]


@dataclass(frozen=True, eq=False)
class Block:
    """Where the keys and values of a block are."""

    exists: Sequence[Expr]
    """Of each page: is it one of those that are read?"""
    keys: Callable[[int, Expr, int, int], list[Expr]]
    """(page, place in the width, first vector, count): vectors of keys."""
    scales: Sequence[Expr]
    """Of each page: where its scales begin."""
    values: Callable[[Expr, Expr, int], list[Expr]]
    """(line, column, count): vectors of values."""
    lines: Sequence[tuple[Expr, int, int]]
    """Parts of the block that have their values one after the other: where they begin, the first key, and how many."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """The keys of a block that rows attend to: from the first up to, not including, the second number. They may be
    beyond the block."""

    all: tuple[Expr, Expr]
    """Those that any row of the tile has."""
    shared: tuple[Expr, Expr]
    """Those that every row has."""
    of_row: Callable[[Expr | int], tuple[Expr, Expr]] | None = None
    """Those of a row of the tile; None: all have the same."""


class Tiles:
    """Writes the tiles of a task."""

    def __init__(
        self, program: Program, sizes: Sizes, scoring: Scoring, keys: Numbers,
        scales: tuple[Numbers, Numbers] | None, rows: int,
    ) -> None:  # fmt: skip
        """Allocates the state of as many rows."""
        self.program, self.sizes, self.scoring, self.keys = program, sizes, scoring, keys
        self.key_scales, self.value_scales = scales or (None, None)
        p, lanes = program, sizes.lanes
        self.query = p.allocate("query", rows * sizes.width, "float32")
        self.sums = p.allocate("sums", rows * sizes.columns, "float32")
        self.tops = p.allocate("tops", rows, "float32")
        self.totals = p.allocate("totals", rows * lanes, "float32")
        self.scores = p.allocate("scores", sizes.most_rows * sizes.block, "float32")
        self.decays = p.allocate("decays", sizes.most_rows, "float32")

    def begin(self, row: Expr) -> None:
        """The state of a row without keys."""
        p, lanes, columns = self.program, self.sizes.lanes, self.sizes.columns
        p.store(self.tops, row, tirx.FloatImm("float32", LOWEST))
        p.store(self.totals, row * lanes, splat(0.0, lanes), lanes)
        with p.loop("c", columns // lanes) as c:
            p.store(self.sums, row * columns + c * lanes, splat(0.0, lanes), lanes)

    def tile(self, row: Expr, height: int, block: Block, bounds: Bounds) -> None:
        """Update the state of some rows, from a number on."""
        p, sizes = self.program, self.sizes
        for page, exists in enumerate(block.exists):
            with p.when(exists):
                self._products(row, height, block, page)
        if self.scoring.soft_cap:
            self._cap(height)
        start, end = bounds.shared
        is_part = tirx.Or(int64(0) < start, end < int64(sizes.block))
        with p.when(is_part):
            self._hide(height, bounds)
        self._weights(row, height, block)
        self._sums(row, height, block, bounds)

    def _products(self, row: Expr, height: int, block: Block, page: int) -> None:
        """The products of the rows with a page's keys."""
        p, sizes = self.program, self.sizes
        lanes, across = sizes.lanes, sizes.across(height, sizes.vectors)
        line = p.let("line", row * sizes.width)
        for first in range(0, sizes.vectors, across):
            with p.scope():
                sums = [
                    [p.allocate("product", lanes, "float32") for _ in range(across)]
                    for _ in range(height)
                ]
                for own in sums:
                    for each in own:
                        p.store(each, 0, splat(0.0, lanes), lanes)
                with p.loop("k", sizes.width) as k:
                    keys = block.keys(page, k, first, across)
                    for r, own in enumerate(sums):
                        number = loops.load(self.query, line + (r * sizes.width) + k)
                        factor = p.let("factor", loops.broadcast(number, lanes))
                        for each, key in zip(own, keys, strict=True):
                            before = loops.load(each, 0, lanes)
                            p.store(each, 0, before + key * factor, lanes)
                for r, own in enumerate(sums):
                    found = self.keys.in_order([loops.load(each, 0, lanes) for each in own])
                    for n, score in enumerate(found):
                        at = (first + n) * lanes
                        if self.key_scales is not None:
                            (scale,) = self.key_scales.read(block.scales[page] + at, 1)
                            score = score * scale
                        place = r * sizes.block + page * sizes.page + at
                        p.store(self.scores, place, score, lanes)

    def _cap(self, height: int) -> None:
        """The soft-capped scores."""
        p, lanes = self.program, self.sizes.lanes
        with p.loop("n", height * (self.sizes.block // lanes)) as n:
            at = n * lanes
            value = vector_value(
                lambda lane: value_written_out(
                    scalar.tanh(tirx.BufferLoad(self.scores, [at + lane]))
                ),
                lanes,
            )
            assert value is not None, "tanh has vectors"
            p.store(self.scores, at, value * splat(self.scoring.soft_cap * LOG2_E, lanes), lanes)

    def _hide(self, height: int, bounds: Bounds) -> None:
        """Give keys that a row does not attend to a score of minus infinity."""
        p, sizes, lanes = self.program, self.sizes, self.sizes.lanes
        with p.loop("r", height) as r:
            start, end = bounds.all if bounds.of_row is None else bounds.of_row(r)
            first, last = (p.let("bound", each.astype("int32")) for each in (start, end))
            for n in range(sizes.block // lanes):
                at = r * sizes.block + n * lanes
                mask = loops.lanes_between(first - n * lanes, last - n * lanes, lanes)
                score = loops.load(self.scores, at, lanes)
                score = tirx.Select(mask, score, splat(-float("inf"), lanes))
                p.store(self.scores, at, score, lanes)

    def _weights(self, row: Expr, height: int, block: Block) -> None:
        """Replace the scores by the weights of the values; update the rows' tops and totals."""
        p, sizes, lanes = self.program, self.sizes, self.sizes.lanes
        vectors = sizes.block // lanes
        with p.loop("r", height) as r:
            found = [
                loops.load(self.scores, r * sizes.block + n * lanes, lanes) for n in range(vectors)
            ]
            largest = fold(p, _joined(p, found, tirx.Max), lanes, _MAX)
            old = p.let("old", loops.load(self.tops, row + r))
            new = p.let("new", tirx.Max(old, largest))
            p.store(self.tops, row + r, new)
            p.store(self.decays, r, power(old - new, 1))
        with p.loop("r", height) as r:
            top = p.let("top", loops.broadcast(loops.load(self.tops, row + r), lanes))
            powers: list[Expr] = []
            for n in range(vectors):
                at = r * sizes.block + n * lanes
                own = p.let("power", power(loops.load(self.scores, at, lanes) - top, lanes))
                powers.append(own)
                if self.value_scales is not None:
                    page, vector = divmod(n, sizes.vectors)
                    place = block.scales[page] + vector * lanes
                    (scale,) = self.value_scales.read(place, 1)
                    own = own * scale
                p.store(self.scores, at, own, lanes)
            added = _joined(p, powers, tirx.Add)
            decay = loops.broadcast(loops.load(self.decays, r), lanes)
            before = loops.load(self.totals, (row + r) * lanes, lanes)
            p.store(self.totals, (row + r) * lanes, before * decay + added, lanes)

    def _sums(self, row: Expr, height: int, block: Block, bounds: Bounds) -> None:
        """Add the weighted values of a block to the sums of the rows."""
        p, sizes, lanes = self.program, self.sizes, self.sizes.lanes
        across = sizes.across(height, sizes.columns // lanes)
        steps = [
            (line, first, *part)
            for line, first, count in block.lines
            for part in self._parts(bounds, first, count)
        ]
        line = p.let("line", row * sizes.columns)
        with p.loop("part", sizes.columns // (across * lanes)) as part:
            column = p.let("column", part * (across * lanes))
            sums = [
                [p.allocate("sum", lanes, "float32") for _ in range(across)] for _ in range(height)
            ]
            for r, own in enumerate(sums):
                decay = p.let("decay", loops.broadcast(loops.load(self.decays, r), lanes))
                for n, each in enumerate(own):
                    at = line + (r * sizes.columns + n * lanes) + column
                    p.store(each, 0, loops.load(self.sums, at, lanes) * decay, lanes)
            for begin, first, start, end, of_row in steps:
                self._add(sums, block, (begin, first, start, end), column, of_row)
            for r, own in enumerate(sums):
                for n, each in enumerate(own):
                    at = line + (r * sizes.columns + n * lanes) + column
                    p.store(self.sums, at, loops.load(each, 0, lanes), lanes)

    def _parts(self, bounds: Bounds, first: int, count: int):
        """The ranges of keys, counted from the first, in the order in which they are added; and which rows have one of
        those that not all have."""
        p = self.program

        def within(value: Expr, low: Expr | int) -> Expr:
            limited = tirx.Min(value - first, int64(count)) if first else tirx.Min(value, int64(count))
            return p.let("edge", tirx.Max(limited, int64(low)))

        start = within(bounds.all[0], 0)
        if bounds.of_row is None:
            return [(start, within(bounds.all[1], start), None)]
        end = within(bounds.all[1], start)
        from_ = p.let("from", tirx.Min(within(bounds.shared[0], start), end))
        to = p.let("to", tirx.Min(within(bounds.shared[1], from_), end))
        return [(start, from_, bounds.of_row), (from_, to, None), (to, end, bounds.of_row)]

    def _add(self, sums, block: Block, keys, column: Expr, of_row) -> None:
        """Add the weighted values of some keys."""
        p, sizes, lanes = self.program, self.sizes, self.sizes.lanes
        begin, first, start, end = keys
        with p.loop("n", end - start, about=1 if of_row else sizes.page) as n:
            j = p.let("j", start + n)
            values = block.values(begin + j * sizes.columns, column, len(sums[0]))
            for r, own in enumerate(sums):
                number = loops.load(self.scores, j + (r * sizes.block + first))
                weight = p.let("weight", loops.broadcast(number, lanes))
                added = [
                    loops.load(each, 0, lanes) + value * weight
                    for each, value in zip(own, values, strict=True)
                ]
                if of_row is None:
                    for each, value in zip(own, added, strict=True):
                        p.store(each, 0, value, lanes)
                    continue
                low, high = of_row(r)
                with p.when(loops.both(low <= j + first, j + first < high)):
                    for each, value in zip(own, added, strict=True):
                        p.store(each, 0, value, lanes)


def power(vector: Expr, lanes: int) -> Expr:
    """2 to the power of numbers that are at most 0."""
    operand = tirx.decl_buffer([int64(lanes)], "float32", "x", layout=None)

    def element(lane: Expr) -> tirx.BufferStore:
        value = math.exp2_of_negative(tirx.BufferLoad(operand, [lane]))
        return tirx.BufferStore(operand, value, [lane])

    stmt = vectorise(element, lanes)
    assert stmt is not None, "powers have vectors"
    return map_loads(stmt.value, lambda _: vector)


def _joined(p: Program, vectors: Sequence[Expr], join: Callable[[Expr, Expr], Expr]) -> Expr:
    """All vectors combined, neighbours first."""
    found = list(vectors)
    while len(found) > 1:
        pairs = [found[n : n + 2] for n in range(0, len(found), 2)]
        found = [p.let("joined", join(*pair)) if len(pair) > 1 else pair[0] for pair in pairs]
    return found[0]
