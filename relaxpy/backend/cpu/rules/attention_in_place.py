"""Attention by tiles (`relaxpy.backend.cpu.tiles`) for bfloat16 and one query whose key head some heads share: how text
is generated.

For so few lanes packing would take most of the time, so keys and values are multiplied where they are. 16 keys, a row
each, are a left-hand tile: their products with the queries, packed once, are scores with lanes beside each other,

    scores[key, lane] = f(keys @ queries)                  float32, in the task's memory
    powers = exp(scores - top)                             float32, 16 numbers at a time: some keys of all lanes
    sums[lane] = sums[lane] * decay + powers @ values      float32

As a right-hand tile, rows of values are words of two neighbouring columns, where the instruction adds up both products
of a word. So each power is there twice, in words whose other half is 0: one sums even columns, the other odd ones. Both
are rows of one tile for at most 8 lanes, and tiles of their own for more.

Keys that do not fill a tile are copied; those past the end have the least power, 2**-126.

0 times infinity or NaN is NaN, so such a value spoils the column beside its own. Where sums are not finite in the end,
the task starts again, and adds values key by key, without tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from relaxpy.backend.cpu.rules.attention_access import LOWEST, Access, Task, splat
from relaxpy.backend.cpu.rules.attention_tile_writer import (
    GROUP,
    VECTOR,
    Block,
    TileWriter,
)
from relaxpy.backend.cpu.rules.powers import shares, weights
from relaxpy.backend.cpu.rules.transpose import turned
from relaxpy.backend.cpu.tiles import ROW_BYTES, ROWS, TILES, Tiles, address
from relaxpy.tir.numerics import scalar
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr, int64
from relaxpy.tir.programs.vectors import fold, interleaved, strips, vectorise
from relaxpy.tir.recognise.contraction import Operand, substitute
from relaxpy.tir.recognise.stages import Combiner
from relaxpy.tir.tvm import tirx

LEAST_NARROW, LEAST_WIDE = 3, 5
"""The fewest lanes for which this is faster than vectors are: of narrow heads, and of wider ones, whose keys and values
vectors read at the memory's rate, too."""
NARROW = 128
"""The most columns of keys and values, together, of narrow heads."""
BLOCK = 8 * ROWS
"""Keys that are processed together. Of 256, what is prefetched would wait longer in the second cache."""
GROUPS = BLOCK // ROWS
"""Groups of keys, a tile each, in a block."""
_TILE = ROWS * VECTOR
"""Words of a tile."""
_SCORES, _KEYS = 0, 1
"""The tiles of a group of scores and of keys; the others are queries."""
_VALUES = TILES - 1
"""The tile of values; powers are in the ones before, and sums in the first ones."""
_FIRST, _AGAIN, _DONE = (tirx.const(n, "int32") for n in range(3))
"""The state of a task: it makes its sums by tiles, makes them again without, or has them."""
_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000
"""The bits of a float32 without its sign, and those of infinity; of NaN they are larger."""
_HALF, _UPPER = 0x8000, -0x10000
"""Half of the last bit of a bfloat16, and the bits of a float32 that are one."""


def has_in_place_program(access: Access) -> bool:
    """Are the lanes of a query as many as tiles are for, do they see the same keys, and do their scores depend on the
    product and on what they share?"""
    if access.has_own_scores or not access.heads_see_alike:
        return False
    is_narrow = access.form.depth + access.form.columns <= NARROW
    return (LEAST_NARROW if is_narrow else LEAST_WIDE) <= access.sharing <= ROWS


class InPlaceProgram(TileWriter):
    """Writes the program of one task."""

    def __init__(self, access: Access, task: Task, tiles: Tiles) -> None:
        super().__init__(access, task, tiles)
        p = self.program
        self.lanes = lanes = 1 << (access.sharing - 1).bit_length()
        """Lanes rounded up to a power of two: those of a key in a vector. Missing ones repeat the last."""
        self.steps = self.depth // GROUP
        """Tiles along the depth."""
        self.column_groups = self.columns // GROUP
        self.parts = max(1, 2 * lanes // ROWS)
        """Tiles of powers, and of sums of a group of columns: their rows are even columns' and odd ones', of all
        lanes."""
        self.powers_at = GROUPS * _TILE
        self.sums_at = self.powers_at + GROUPS * self.parts * _TILE
        self.queries_at = self.sums_at + self.column_groups * self.parts * _TILE
        self.keys_at = self.queries_at + self.steps * _TILE
        self.values_at = self.keys_at + ROWS * self.depth // 2
        size = self.values_at + ROWS * self.columns // 2
        # One allocation: each costs as much as some dozen keys.
        self.scratch = p.allocate("scratch", size, "float32")
        self.top = p.allocate("top", VECTOR, "float32")
        """For each lane what is subtracted from exponents (`Exponents.top`)."""
        self.decay = p.allocate("decay", VECTOR, "float32")
        self.totals = [p.allocate("totals", VECTOR, "float32") for _ in range(2)]
        self.turn = p.allocate("turn", 1, "int32")

    def write(self) -> None:
        """Write the whole program, from the queries to the results."""
        p = self.program
        self._pack_queries()
        low, high = int64(0), self.access.keys
        if self.form.seen is not None:
            place = self.access.lane_place(self.task, 0)
            ends = (self.form.seen.low, self.form.seen.high)
            low, high = (p.let("end", substitute(end, place)) for end in ends)
        number = p.let("blocks", loops.ceildiv(loops.maximum(high - low, 0), BLOCK))
        self.tiles.configure(p, (int64(ROWS), int64(ROWS)))
        p.store(self.turn, 0, _FIRST)
        with p.repeat(loops.load(self.turn, 0) < _DONE):
            by_tiles = loops.equals(loops.load(self.turn, 0), _FIRST)
            self._begin()
            with p.loop("block", number) as n:
                start = p.let("start", loops.simplify(low + n * BLOCK))
                count = p.let("count", loops.minimum(high - start, BLOCK))
                block = Block(n, start, count, p.let("groups", loops.ceildiv(count, ROWS)))
                self._copy_rest(block)
                self._products(block)
                self._scores(block)
                self._decay(block)
                self._weigh(block, by_tiles)
            again = loops.both(by_tiles, self._is_infinite())
            p.store(self.turn, 0, tirx.Select(again, _AGAIN, _DONE))
        self.tiles.release(p)
        self._finish()

    # Before the keys

    def _pack_queries(self) -> None:
        """Copy the queries: words of two neighbours along the depth, of all lanes."""
        p, access, query = self.program, self.access, self.form.query
        with p.loop("lane", self.lanes, rolled=True) as lane:
            own = loops.minimum(lane, access.sharing - 1)
            line = p.let("line", access.offset(query, access.lane_place(self.task, own)))
            with p.loop("word", self.depth // 2, rolled=True) as word:
                pair = loops.load(access.words(query), loops.simplify(line + word * 2), 2)
                at = loops.simplify(self.queries_at + word * VECTOR + lane)
                p.store(self.scratch, at, tirx.reinterpret("float32", pair))

    def _begin(self) -> None:
        """Nothing is summed yet."""
        p = self.program
        p.store(self.top, 0, splat(LOWEST, VECTOR), VECTOR)
        for total in self.totals:
            p.store(total, 0, splat(0.0, VECTOR), VECTOR)
        # Rows of powers that no lane has stay 0, too.
        cleared = self.powers_at if 2 * self.lanes < ROWS else self.sums_at
        with p.loop("n", (self.queries_at - cleared) // VECTOR, rolled=True) as n:
            self._put(cleared + n * VECTOR, splat(0.0, VECTOR))

    def _get(self, at: Expr | int, lanes: int = VECTOR) -> Expr:
        return loops.load(self.scratch, loops.simplify(at), lanes)

    def _put(self, at: Expr | int, value: Expr) -> None:
        self.program.store(self.scratch, loops.simplify(at), value, VECTOR)

    # One block of keys

    def _copy_rest(self, block: Block) -> None:
        """Copy the keys, and their values, that do not fill a tile; rows past the end repeat the last one."""
        p, form = self.program, self.form
        whole = loops.floordiv(block.count, ROWS)
        copies = (
            (form.key, self.key_line, self.keys_at, self.depth),
            (form.value, self.value_line, self.values_at, self.columns),
        )
        with p.when(whole < block.groups), p.loop("n", ROWS, rolled=True) as n:
            for operand, line, to, width in copies:
                row = self.row(operand, line, block, loops.simplify(whole * ROWS + n))
                with p.loop("part", width // GROUP) as part:
                    words = loops.load(self.access.words(operand), row + part * GROUP, GROUP)
                    self._put(to + (n * (width // GROUP) + part) * VECTOR, _floats(words))

    def _rows(
        self, operand: Operand, line: Expr, copy_at: int, width: int, block: Block, group: Expr
    ) -> Iterator[Callable[[int], tuple[Expr, Expr]]]:
        """A branch for a group of rows in place, and one for a copied one: yields what gives the address of its numbers
        from one on, a multiple of a tile's, and the stride in bytes."""
        p, words = self.program, self.access.words(operand)
        step = self.access.stride(operand, "key")
        is_whole = (group + 1) * ROWS <= block.count
        with p.when(is_whole):
            first = p.let("first", loops.simplify(line + (block.start + group * ROWS) * step))
            stride = p.let("stride", loops.simplify(step * 2))
            yield lambda at: (address(words, loops.simplify(first + at)), stride)
        with p.otherwise(is_whole):
            yield lambda at: (address(self.scratch, copy_at + at // 2), int64(width * 2))

    def _prefetch(self, operand: Operand, line: Expr, width: int, first: Expr) -> None:
        """Prefetch a group of rows, which need not exist, into the second cache."""
        with self.program.loop("n", ROWS, rolled=True) as n:
            row = loops.simplify(line + (first + n) * self.access.stride(operand, "key"))
            for at in range(0, width, GROUP):
                self.access.prefetch(operand, row + at, level=2)

    def _products(self, block: Block) -> None:
        """The products of the block's keys and the queries, stored in the memory of the scores."""
        p, tiles, key = self.program, self.tiles, self.form.key
        packed = [address(self.scratch, self.queries_at + n * _TILE) for n in range(self.steps)]
        first, room = _KEYS + 1, TILES - _KEYS - 1
        kept = self.steps if self.steps <= room else room - 1
        for step in range(kept):
            tiles.load_tile(p, first + step, packed[step], ROW_BYTES)
        with p.loop("group", block.groups, rolled=True) as group:
            values = block.start + group * ROWS
            self._prefetch(self.form.value, self.value_line, self.columns, values)
            tiles.clear_tile(p, _SCORES)
            rows = self._rows(key, self.key_line, self.keys_at, self.depth, block, group)
            for where in rows:
                for step in range(self.steps):
                    tiles.load_tile(p, _KEYS, *where(step * GROUP))
                    query = first + min(step, kept)
                    if step >= kept:
                        tiles.load_tile(p, query, packed[step], ROW_BYTES)
                    tiles.multiply_tiles(p, _SCORES, _KEYS, query)
            tiles.store_tile(p, _SCORES, address(self.scratch, loops.simplify(group * _TILE)))

    def _scores(self, block: Block) -> None:
        """Convert the products to scores, if these are more than a product times a number; those of keys past the end
        are minus infinity."""
        p, number = self.program, loops.simplify(block.groups * ROWS - block.count)
        if self.exponents.scale is None:
            with p.loop("j", block.count) as j:
                self._score(j, block.start + j)
        with p.loop("j", number, rolled=True) as j:
            self._put((block.count + j) * VECTOR, splat(-float("inf"), VECTOR))

    def _score(self, j: Expr, key: Expr) -> None:
        """Convert the products of a key with all lanes."""
        access, at = self.access, loops.simplify(j * VECTOR)
        place = access.at_key(access.shared_place(self.task), loops.simplify(key))

        def element(lane: Expr) -> tirx.BufferStore:
            product = tirx.BufferLoad(self.scratch, [at + lane])
            return tirx.BufferStore(self.scratch, access.score(product, place), [at + lane])

        stmt = vectorise(element, self.lanes)
        assert stmt is not None, "lanes are neighbours in the products"
        self.program.add(stmt)

    def _vectors(self, group: Expr) -> list[Expr]:
        """The scores of a group: each vector has some keys of all lanes, in the order that `turned` wants."""
        rows = [self._get(group * _TILE + n * VECTOR, self.lanes) for n in range(ROWS)]
        return strips(rows, self.lanes)

    def _across(self, vector: Expr, join: Callable[[Expr, Expr], Expr]) -> Expr:
        """Join the keys of a vector: what comes of them, as often as there are keys."""
        p, step = self.program, self.lanes
        current = p.let("joined", vector)
        while step < VECTOR:
            order = [tirx.IntImm("int32", (n + step) % VECTOR) for n in range(VECTOR)]
            current = p.let("joined", join(current, tirx.Shuffle([current], order)))
            step *= 2
        return current

    def _decay(self, block: Block) -> None:
        """Update the largest exponents, the totals and sums so far."""
        p = self.program
        found = [p.allocate("found", VECTOR, "float32") for _ in range(2)]
        for each in found:
            p.store(each, 0, splat(LOWEST, VECTOR), VECTOR)
        with p.loop("group", block.groups, rolled=True) as group:
            for n, score in enumerate(self._vectors(group)):
                largest = loops.load(found[n % 2], 0, VECTOR)
                p.store(found[n % 2], 0, tirx.Max(largest, score), VECTOR)
        most = tirx.Max(*(loops.load(each, 0, VECTOR) for each in found))
        own = self.exponents.top(self._across(most, tirx.Max))
        old = p.let("old", loops.load(self.top, 0, VECTOR))
        new = p.let("new", tirx.Max(old, own))
        p.store(self.top, 0, new, VECTOR)
        decay = p.let("shrink", weights(p, self.exponents.shrinking(old, new)))
        p.store(self.decay, 0, decay, VECTOR)
        for total in self.totals:
            p.store(total, 0, loops.load(total, 0, VECTOR) * decay, VECTOR)
        with p.loop("lane", self.lanes, rolled=True) as lane:
            own = p.let("own", loops.load(self.decay, lane))
            with p.when(scalar.not_equal(own, tirx.FloatImm("float32", 1.0))):
                by = p.let("by", loops.broadcast(own, VECTOR))
                with p.loop("columns", self.column_groups, rolled=True) as columns:
                    for at in self._sums_of(lane, columns):
                        self._put(at, self._get(at) * by)

    def _sums_of(self, lane: Expr, columns: Expr) -> list[Expr]:
        """The places of a lane's sums of a group of columns: of even ones, and of odd ones."""
        line = self.sums_at + columns * (self.parts * _TILE) + lane * VECTOR
        return [loops.simplify(line + odd * (self.lanes * VECTOR)) for odd in range(2)]

    def _powers(self, group: Expr) -> None:
        """Store the powers of a group: a row of words for each lane and half."""
        p = self.program
        top = loops.load(self.top, 0, VECTOR)
        rounded: list[Expr] = []
        for n, score in enumerate(self._vectors(group)):
            power = p.let("power", weights(p, self.exponents.exponent(score, top)))
            total = self.totals[n % 2]
            p.store(total, 0, loops.load(total, 0, VECTOR) + power, VECTOR)
            bits = tirx.reinterpret(f"int32x{VECTOR}", power) + _words(_HALF)
            rounded.append(bits & _words(_UPPER))
        to = p.let("to", loops.simplify(self.powers_at + group * (self.parts * _TILE)))
        for lane, word in enumerate(turned(p, rounded)):
            even = tirx.reinterpret(f"uint32x{VECTOR}", word) >> _words(16, "uint32")
            self._put(to + lane * VECTOR, _floats(even))
            self._put(to + (self.lanes + lane) * VECTOR, _floats(word))

    def _weigh(self, block: Block, by_tiles: Expr) -> None:
        """Compute the powers, and add the block's values, weighted by them, to the sums."""
        p, tiles, parts = self.program, self.tiles, self.parts
        most = (_VALUES - parts) // parts
        number = -(-self.column_groups // most)
        for turn in range(number):
            first, end = (self.column_groups * n // number for n in (turn, turn + 1))
            places = [
                address(self.scratch, self.sums_at + n * _TILE)
                for n in range(first * parts, end * parts)
            ]
            for n, place in enumerate(places):
                tiles.load_tile(p, n, place, ROW_BYTES)
            with p.loop("group", block.groups, rolled=True) as group:
                if turn == 0:
                    ahead = block.start + BLOCK + group * ROWS
                    self._prefetch(self.form.key, self.key_line, self.depth, ahead)
                    self._powers(group)
                with p.when(by_tiles):
                    self._add_group(block, group, range(first, end))
            for n, place in enumerate(places):
                tiles.store_tile(p, n, place)
        with p.otherwise(by_tiles):
            self._add_one_by_one(block)

    def _add_group(self, block: Block, group: Expr, columns: Sequence[int]) -> None:
        """Add a group's values in some groups of columns to sums that are in tiles."""
        p, tiles, parts = self.program, self.tiles, self.parts
        powers = [_VALUES - parts + part for part in range(parts)]
        at = p.let("powers_at", loops.simplify(self.powers_at + group * (parts * _TILE)))
        for part, tile in enumerate(powers):
            tiles.load_tile(p, tile, address(self.scratch, at + part * _TILE), ROW_BYTES)
        value = self.form.value
        rows = self._rows(value, self.value_line, self.values_at, self.columns, block, group)
        for where in rows:
            for n, column in enumerate(columns):
                tiles.load_tile(p, _VALUES, *where(column * GROUP))
                for part, tile in enumerate(powers):
                    tiles.multiply_tiles(p, n * parts + part, tile, _VALUES)

    def _add_one_by_one(self, block: Block) -> None:
        """Add a block's values to the sums without tiles."""
        p, words = self.program, self.access.words(self.form.value)
        with p.loop("j", block.count) as j, p.loop("lane", self.lanes, rolled=True) as lane:
            row = self.row(self.form.value, self.value_line, block, j)
            power = loops.floordiv(j, ROWS) * (self.parts * _TILE) + loops.floormod(j, ROWS)
            power = self._get(self.powers_at + power + (self.lanes + lane) * VECTOR, 1)
            weight = p.let("weight", loops.broadcast(power, VECTOR))
            with p.loop("columns", self.column_groups, rolled=True) as columns:
                read = loops.load(words, loops.simplify(row + columns * GROUP), GROUP)
                both = p.let("both", tirx.reinterpret(f"int32x{VECTOR}", read))
                halves = (both << _words(16), both & _words(_UPPER))
                for at, half in zip(self._sums_of(lane, columns), halves, strict=True):
                    self._put(at, self._get(at) + _floats(half) * weight)

    # After the keys

    def _is_infinite(self) -> Expr:
        """Are some sums infinite or NaN?"""
        p = self.program
        largest = p.allocate("largest_bits", VECTOR, "int32")
        p.store(largest, 0, _words(0), VECTOR)
        with p.loop("n", (self.queries_at - self.sums_at) // VECTOR) as n:
            sums = tirx.reinterpret(f"int32x{VECTOR}", self._get(self.sums_at + n * VECTOR))
            found = tirx.Max(loops.load(largest, 0, VECTOR), sums & _words(_MAGNITUDE))
            p.store(largest, 0, found, VECTOR)
        most = Combiner("max", tirx.const(0, "int32"))
        bits = fold(p, loops.load(largest, 0, VECTOR), VECTOR, most)
        return p.let("is_infinite", bits >= tirx.const(_INFINITY, "int32"))

    def _finish(self) -> None:
        """Divide the sums of all lanes by their totals, and store them."""
        p, access, out = self.program, self.access, self.form.out
        totals = [loops.load(each, 0, VECTOR) for each in self.totals]
        total = self._across(totals[0] + totals[1], tirx.Add)
        p.store(self.decay, 0, shares(total), VECTOR)
        with p.loop("lane", access.sharing, rolled=True) as lane:
            place = access.lane_place(self.task, lane)
            line = p.let("line", access.offset(out, place))
            by = p.let("by", loops.broadcast(loops.load(self.decay, lane), VECTOR))
            with p.loop("columns", self.column_groups, rolled=True) as columns:
                even, odd = (self._get(at) * by for at in self._sums_of(lane, columns))
                quotients = interleaved(p.let("even", even), p.let("odd", odd), VECTOR)
                self.access.store_neighbours(
                    quotients, place, line, loops.simplify(columns * GROUP)
                )


def _floats(words: Expr) -> Expr:
    """The bits of a vector as float32, which the memory of a task is."""
    return tirx.reinterpret(f"float32x{VECTOR}", words)


def _words(value: int, dtype: str = "int32") -> Expr:
    return loops.broadcast(tirx.const(value, dtype), VECTOR)
