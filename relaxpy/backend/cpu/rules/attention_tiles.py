"""Attention by tiles (`relaxpy.backend.cpu.tiles`), for bfloat16 and many lanes that share a key head.

A block of keys is packed as right-hand tiles have it: keys transposed, in words of two neighbours along the depth;
values as they are, in words of two neighbouring keys. Then, for the lanes of the task, 32 at a time (two tiles have as
many rows),

    scores = f(queries @ keys)                            float32, in the task's memory
    powers = exp(scores - top)                            rounded to bfloat16; their totals are not
    sums = sums * decay + powers @ values                 float32

A key that a lane does not see has the least power, 2**-126. That would not make infinities and NaN of its values small,
so a block which has these, and which not all lanes of a part see, is added to the sums without tiles, key by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from relaxpy.backend.cpu.narrowing import narrowed
from relaxpy.backend.cpu.rules.attention_access import LOWEST, Access, Task, splat
from relaxpy.backend.cpu.rules.attention_tile_writer import (
    GROUP,
    VECTOR,
    Block,
    TileWriter,
)
from relaxpy.backend.cpu.rules.places import shared_pieces
from relaxpy.backend.cpu.rules.powers import shares, weights
from relaxpy.backend.cpu.rules.transpose import strip_of, summed, turned
from relaxpy.backend.cpu.tiles import ROWS, Tiles, address
from relaxpy.tir.numerics import scalar
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, int64
from relaxpy.tir.programs.vectors import fold, strips, vector_loop, vector_value
from relaxpy.tir.recognise.contraction import Operand
from relaxpy.tir.recognise.stages import Combiner
from relaxpy.tir.tvm import tirx

LANES = 2 * ROWS
"""Lanes that are multiplied at a time: a part of a task."""
PARTS = 8
"""The most parts of a task: all of them read what is packed once."""
PART_TASKS = 16
"""The fewest tasks that remain if each has twice as many parts."""
GROUPS = 8
"""Groups of keys, each multiplied at a time, in a block."""
BLOCK = GROUP * GROUPS
_STRIP = strip_of(VECTOR, 32)
_ROW_BYTES = GROUP * 4
"""Bytes of a row of a packed group: words for each key or column."""
_SQUARE = LANES * GROUP
_MAGNITUDE, _INFINITY = 0x7FFF, 0x7F80
"""The bits of a bfloat16 without its sign, and those of infinity; of NaN they are larger."""


def lanes_of_task(access: Access) -> Expr:
    """The number of lanes of a task: more where enough tasks remain."""
    extents = access.form.axes.extents
    groups = extents["batch"] * loops.floordiv(extents["head"], access.sharing)
    tasks = loops.simplify(groups * loops.ceildiv(access.lanes, LANES))
    return loops.simplify(shared_pieces(tasks, PARTS, PART_TASKS) * LANES)


@dataclass(frozen=True, eq=False)
class _Part:
    """A part of the lanes in a block: its first lane, their number, the block's groups of keys up to the last that some
    of them see, and the range of the groups that all of them see entirely; whether all see the whole block."""

    first: Expr
    lanes: Expr
    groups: Expr
    plain: tuple[Expr, Expr]
    is_seen: Expr


class TilesProgram(TileWriter):
    """Writes the program of one task."""

    def __init__(self, access: Access, task: Task, tiles: Tiles, width: Expr) -> None:
        super().__init__(access, task, tiles)
        p = self.program
        self.used = p.let("used", loops.minimum(access.lanes - task.first, width))
        """Lanes that exist."""
        lanes = LANES * PARTS
        self.queries = p.allocate("queries", lanes * self.depth, "uint16")
        self.keys = p.allocate("keys", BLOCK * self.depth // 2, "int32")
        self.values = p.allocate("values", BLOCK * self.columns, "uint16")
        self.scores = p.allocate("scores", GROUPS * _SQUARE, "float32")
        self.powers = p.allocate("powers", LANES * BLOCK, "uint16")
        self.sums = p.allocate("sums", lanes * self.columns, "float32")
        self.top = p.allocate("top", lanes, "float32")
        """For each lane what is subtracted from exponents (`Exponents.top`)."""
        self.largest = p.allocate("largest", LANES * VECTOR, "float32")
        """For each lane of a part, a vector of the largest scores."""
        self.decay = p.allocate("decay", LANES, "float32")
        self.totals = p.allocate("totals", lanes * VECTOR, "float32")
        self.low = p.allocate("seen_from", lanes, "int64")
        self.high = p.allocate("seen_to", lanes, "int64")
        self.ends = p.allocate("part_ends", 3 * PARTS, "int64")
        """For each part, the key after the last one that some of its lanes see, and those that all see: the first, and
        the one after the last."""

    def write(self) -> None:
        """Write the whole program, from the queries to the results."""
        p = self.program
        self._begin()
        low, high = self._seen()
        self.tiles.configure(p, (loops.minimum(self.used, ROWS), int64(ROWS)))
        blocks = p.let("blocks", loops.ceildiv(loops.maximum(high - low, 0), BLOCK))
        with p.loop("block", blocks) as n:
            start = p.let("start", loops.simplify(low + n * BLOCK))
            count = p.let("count", loops.minimum(high - start, BLOCK))
            block = Block(n, start, count, p.let("groups", loops.ceildiv(count, GROUP)))
            self._pack_keys(block)
            is_infinite = self._pack_values(block)
            with p.loop("part", loops.ceildiv(self.used, LANES), rolled=True) as part:
                self._part(part, block, is_infinite)
        self.tiles.release(p)
        self._finish()

    def _part(self, number: Expr, block: Block, is_infinite: Expr) -> None:
        """Add a block to the totals and sums of a part of the lanes, if these see any of its keys."""
        p = self.program
        part = self._seen_by(number, block)
        with p.when(True if self.form.seen is None else part.groups > 0):
            self._products(part)
            with p.loop("lane", part.lanes, rolled=True) as lane:
                self._scores(part, lane, block)
            self._decay(part)
            with p.loop("lane", part.lanes, rolled=True) as lane:
                self._powers(part, lane)
            is_odd = loops.both(is_infinite, tirx.Not(part.is_seen))
            with p.when(is_odd):
                self._weigh_seen(part, block)
            with p.otherwise(is_odd):
                self._weigh(part, block)

    def _seen_by(self, number: Expr, block: Block) -> _Part:
        """The part of this number in a block: its lanes, and the groups of keys that they see."""
        p = self.program
        first = p.let("first", loops.simplify(number * LANES))
        lanes = p.let("lanes", loops.minimum(self.used - first, LANES))
        whole = loops.floordiv(block.count, GROUP)
        if self.form.seen is None:
            return _Part(
                first,
                lanes,
                block.groups,
                (int64(0), p.let("whole", whole)),
                tirx.const(True, "bool"),
            )
        ends = [loops.load(self.ends, number + n * PARTS) - block.start for n in range(3)]
        some_to, all_from, all_to = (
            p.let("end", loops.minimum(loops.maximum(end, 0), block.count)) for end in ends
        )
        groups = p.let("groups", loops.ceildiv(some_to, GROUP))
        begin = p.let("plain_from", loops.minimum(loops.ceildiv(all_from, GROUP), groups))
        end = p.let("plain_to", loops.maximum(loops.floordiv(all_to, GROUP), begin))
        is_seen = loops.both(loops.equals(all_from, 0), loops.equals(all_to, block.count))
        return _Part(first, lanes, groups, (begin, end), is_seen)

    # Before the keys

    def _begin(self) -> None:
        """Copy the queries; nothing is summed yet."""
        p, access, query = self.program, self.access, self.form.query
        with p.loop("lane", self.used) as lane:
            line = p.let("line", access.offset(query, access.lane_place(self.task, lane)))
            with p.loop("part", self.depth // GROUP) as part:
                words = loops.load(access.words(query), line + part * GROUP, GROUP)
                p.store(self.queries, lane * self.depth + part * GROUP, words, GROUP)
            p.store(self.totals, lane * VECTOR, splat(0.0, VECTOR), VECTOR)
        with p.loop("n", LANES * PARTS // VECTOR) as n:
            p.store(self.top, n * VECTOR, splat(LOWEST, VECTOR), VECTOR)
        size = loops.ceildiv(self.used, LANES) * (LANES * self.columns // VECTOR)
        with p.loop("n", loops.simplify(size)) as n:
            p.store(self.sums, n * VECTOR, splat(0.0, VECTOR), VECTOR)
        with p.loop("n", LANES) as n:
            p.store(self.largest, n * VECTOR, splat(LOWEST, VECTOR), VECTOR)

    def _seen(self) -> tuple[Expr, Expr]:
        """Store the keys that each lane sees, and each part. Returns those that some lanes see: the first, and the one
        after the last."""
        p, keys = self.program, self.access.keys
        if self.form.seen is None:
            with p.loop("lane", self.used) as lane:
                p.store(self.low, lane, int64(0))
                p.store(self.high, lane, keys)
            return int64(0), keys
        ends = p.allocate("ends", 2, "int64")
        p.store(ends, 0, keys)
        p.store(ends, 1, int64(0))
        with p.loop("part", loops.ceildiv(self.used, LANES)) as part:
            first = p.let("first", loops.simplify(part * LANES))

            def note(lane: Expr, low: Expr, high: Expr) -> None:
                p.store(self.low, loops.simplify(first + lane), low)
                p.store(self.high, loops.simplify(first + lane), high)

            own = Task(self.task.batch, self.task.head, loops.simplify(self.task.first + first))
            number = loops.minimum(self.used - first, LANES)
            some, every = self.access.seen_keys(own, number, note)
            for n, end in enumerate((some[1], *every)):
                p.store(self.ends, part + n * PARTS, end)
            for n, (end, combine) in enumerate(zip(some, (tirx.min, tirx.max), strict=True)):
                p.store(ends, n, combine(loops.load(ends, n), end))
        return p.let("low", loops.load(ends, 0)), p.let("high", loops.load(ends, 1))

    # One block of keys

    def _prefetch(self, operand: Operand, line: Expr, number: Expr, part: Expr) -> None:
        """Prefetch a group of numbers, which are a cache line, of a row that is read soon, into the second cache."""
        at = line + number * self.access.stride(operand, "key") + part * GROUP
        self.access.prefetch(operand, loops.simplify(at), level=2)

    def _pack_keys(self, block: Block) -> None:
        """Transpose the words of 16 keys at a time. Prefetches the block's values."""
        p, key = self.program, self.form.key
        source = self.access.words(key)
        with p.loop("some", loops.simplify(block.groups * 2)) as some:
            first = p.let("first", loops.simplify(some * VECTOR))
            rows = [self.row(key, self.key_line, block, first + n) for n in range(VECTOR)]
            group = loops.floordiv(some, 2) * (self.depth // 2 * GROUP)
            to = p.let("to", loops.simplify(group + loops.floormod(some, 2) * VECTOR))
            with p.loop("part", self.depth // GROUP) as part:
                for n in range(VECTOR):
                    self._prefetch(self.form.value, self.value_line, block.start + first + n, part)
                with p.loop("strip", VECTOR // _STRIP, rolled=True) as strip:
                    word = p.let("word", loops.simplify(part * VECTOR + strip * _STRIP))
                    reads = [loops.load(source, row + word * 2, 2 * _STRIP) for row in rows]
                    words = [tirx.reinterpret("int32x16", each) for each in strips(reads, _STRIP)]
                    for n, column in enumerate(turned(p, words)):
                        at = to + (word + n) * GROUP
                        p.store(self.keys, loops.simplify(at), column, VECTOR)

    def _pack_values(self, block: Block) -> Expr:
        """Join neighbouring keys' values to words; keys that do not exist are zeros. Returns whether some are infinite
        or NaN. Prefetches the keys of the next block."""
        p, value = self.program, self.form.value
        source, zeros = self.access.words(value), loops.zero("uint16", GROUP)
        largest = p.allocate("largest_bits", GROUP, "uint16")
        p.store(largest, 0, zeros, GROUP)
        bits = loops.broadcast(tirx.const(_MAGNITUDE, "uint16"), GROUP)
        with p.loop("pair", loops.simplify(block.groups * ROWS), rolled=True) as pair:
            numbers = [loops.simplify(pair * 2 + n) for n in range(2)]
            rows = [self.row(value, self.value_line, block, number) for number in numbers]
            exist = [loops.broadcast(number < block.count, GROUP) for number in numbers]
            with p.loop("part", self.columns // GROUP) as part:
                words: list[Expr] = []
                for number in numbers:
                    ahead = block.start + number + BLOCK
                    self._prefetch(self.form.key, self.key_line, ahead, part)
                for row, exists in zip(rows, exist, strict=True):
                    loaded = loops.load(source, row + part * GROUP, GROUP)
                    words.append(p.let("words", tirx.Select(exists, loaded, zeros)))
                to = part * (BLOCK * GROUP) + pair * (2 * GROUP)
                for half, picked in enumerate(_halves(*words)):
                    p.store(self.values, loops.simplify(to + half * GROUP), picked, GROUP)
                for each in words:
                    found = tirx.Max(loops.load(largest, 0, GROUP), each & bits)
                    p.store(largest, 0, found, GROUP)
        most = fold(
            p, loops.load(largest, 0, GROUP), GROUP, Combiner("max", tirx.const(0, "uint16"))
        )
        return p.let("is_infinite", most >= tirx.const(_INFINITY, "uint16"))

    def _products(self, part: _Part) -> None:
        """The products of a part's queries and the block's keys."""
        p, tiles = self.program, self.tiles
        for rows in self._rows_of_tiles(part.lanes):
            with p.loop("group", part.groups, rolled=True) as group:
                tiles.begin(p, rows)
                with p.loop("step", self.depth // GROUP) as step:
                    right = group * (self.depth // 2 * GROUP) + step * (ROWS * GROUP)
                    left = part.first * self.depth + step * GROUP
                    self._multiply(rows, self.queries, left, self.depth, self.keys, right)
                tiles.store(p, rows, self.scores, loops.simplify(group * _SQUARE))

    def _rows_of_tiles(self, lanes: Expr) -> Iterator[int]:
        """A branch for one row of tiles, and one for two: yields the rows that the lanes of a part need."""
        p, few = self.program, lanes <= ROWS
        with p.when(few):
            yield 1
        with p.otherwise(few):
            yield 2

    def _multiply(
        self, rows: int, left: Buffer, at: Expr, width: int, right: Buffer, right_at: Expr
    ) -> None:
        """Multiply `rows` tiles of the rows of `left`, which are `width` bfloat16 apart, by packed ones."""
        p, tiles, stride = self.program, self.tiles, int64(width * 2)
        factors = address(left, loops.simplify(at)), address(right, loops.simplify(right_at))
        tiles.multiply(p, rows, factors[0], stride, factors[1], _ROW_BYTES)

    def _scores(self, part: _Part, lane: Expr, block: Block) -> None:
        """Convert a lane's products to scores, and store the largest of them."""
        p, own = self.program, loops.simplify(part.first + lane)
        place = self.access.lane_place(self.task, own)
        largest = p.allocate("own_largest", VECTOR, "float32")
        p.store(largest, 0, splat(LOWEST, VECTOR), VECTOR)
        begin, end = part.plain
        number = p.let("plain", end - begin)
        with p.loop("plain", number) as n:
            self._find_largest(largest, lane, begin + n, block, place, None)
        sees = self._sees(own, block)
        with p.loop("masked", part.groups - number) as n:
            group = p.let("group", n + loops.select(n < begin, 0, number))
            self._find_largest(largest, lane, group, block, place, sees)
        p.store(self.largest, lane * VECTOR, loops.load(largest, 0, VECTOR), VECTOR)

    def _find_largest(
        self,
        largest: Buffer,
        lane: Expr,
        group: Expr,
        block: Block,
        place: dict[Expr, Expr],
        sees: Callable[[Expr], Expr] | None,
    ) -> None:
        """Convert a group of products to scores, and raise `largest`."""
        p = self.program
        for at, first in self._vectors(lane, group, block, place):
            if sees is not None or self.exponents.scale is None:
                score = self._score(place, at, first)
                if sees is not None:
                    mask = sees(loops.simplify(first - block.start))
                    score = tirx.Select(mask, score, splat(-float("inf"), VECTOR))
                p.store(self.scores, at, score, VECTOR)
            found = tirx.Max(loops.load(largest, 0, VECTOR), loops.load(self.scores, at, VECTOR))
            p.store(largest, 0, found, VECTOR)

    def _sees(self, lane: Expr, block: Block) -> Callable[[Expr], Expr]:
        """Which keys of a block a lane sees: the mask of a vector of them, given the place of its first."""
        p = self.program
        low, high = (
            p.let("end", loops.clamped_int32(loops.load(each, lane) - block.start, BLOCK))
            for each in (self.low, self.high)
        )
        ramp = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), VECTOR)
        # One comparison tests both ends: before the first key, the unsigned difference is large.
        places = p.let("places", ramp - loops.broadcast(low, VECTOR))
        number = tirx.max(high - low, tirx.const(0, "int32")).astype("uint32")
        number = p.let("number", loops.broadcast(number, VECTOR))

        def mask(first: Expr) -> Expr:
            place = places + loops.broadcast(first.astype("int32"), VECTOR)
            return place.astype(f"uint32x{VECTOR}") < number

        return mask

    def _decay(self, part: _Part) -> None:
        """Update the largest exponents of a part, and store by how much the earlier sums shrink."""
        p = self.program
        for at in range(0, LANES, VECTOR):
            rows = [loops.load(self.largest, (at + n) * VECTOR, VECTOR) for n in range(VECTOR)]
            old = p.let("old", loops.load(self.top, loops.simplify(part.first + at), VECTOR))
            own = self.exponents.top(summed(p, rows, tirx.Max))
            new = p.let("new", tirx.Max(old, own))
            p.store(self.top, loops.simplify(part.first + at), new, VECTOR)
            decay = weights(p, self.exponents.shrinking(old, new))
            is_first = tirx.EQ(old, splat(LOWEST, VECTOR))
            p.store(self.decay, at, tirx.Select(is_first, splat(1.0, VECTOR), decay), VECTOR)

    def _powers(self, part: _Part, lane: Expr) -> None:
        """Replace a lane's scores by powers, and update its total and its sums so far."""
        p, own = self.program, loops.simplify(part.first + lane)
        decay = p.let("decay", loops.load(self.decay, lane))
        by = p.let("by", loops.broadcast(decay, VECTOR))
        with p.when(scalar.not_equal(decay, tirx.FloatImm("float32", 1.0))):
            for at in self._sums_of(own):
                p.store(self.sums, at, loops.load(self.sums, at, VECTOR) * by, VECTOR)
        top = p.let("top", loops.broadcast(loops.load(self.top, own), VECTOR))
        totals = [p.allocate("total", VECTOR, "float32") for _ in range(2)]
        p.store(totals[0], 0, loops.load(self.totals, own * VECTOR, VECTOR) * by, VECTOR)
        p.store(totals[1], 0, splat(0.0, VECTOR), VECTOR)
        with p.loop("group", part.groups) as group:
            values: list[Expr] = []
            for half, total in enumerate(totals):
                at = loops.simplify(group * _SQUARE + lane * GROUP + half * VECTOR)
                score = loops.load(self.scores, at, VECTOR)
                values.append(p.let("power", weights(p, self.exponents.exponent(score, top))))
                p.store(total, 0, loops.load(total, 0, VECTOR) + values[-1], VECTOR)
            to = loops.simplify(lane * BLOCK + group * GROUP)
            p.store(self.powers, to, narrowed(*values), GROUP)
        total = loops.load(totals[0], 0, VECTOR) + loops.load(totals[1], 0, VECTOR)
        p.store(self.totals, own * VECTOR, total, VECTOR)

    def _sums_of(self, lane: Expr) -> Iterator[Expr]:
        """A loop over the vectors of a lane's sums: yields the places of two at a time."""
        p = self.program
        part, row = loops.floordiv(lane, LANES), loops.floormod(lane, LANES)
        line = p.let("sums_at", loops.simplify(part * (LANES * self.columns) + row * GROUP))
        with p.loop("group", self.columns // GROUP) as group:
            for half in range(2):
                yield loops.simplify(line + group * _SQUARE + half * VECTOR)

    def _vectors(
        self, lane: Expr, group: Expr, block: Block, place: dict[Expr, Expr]
    ) -> Iterator[tuple[Expr, Expr]]:
        """The vectors of a lane's scores with a group of keys: the place of each, and its first key. Scores that read
        memory are computed from the products before."""
        p = self.program
        row = p.let("row", loops.simplify(group * _SQUARE + lane * GROUP))
        first = p.let("first", loops.simplify(block.start + group * GROUP))
        if self.reads:
            count = p.let("exist", loops.minimum(block.count - group * GROUP, GROUP))

            def element(j: Expr) -> tirx.BufferStore:
                product = tirx.BufferLoad(self.scores, [row + j])
                value = self.access.score(product, self.access.at_key(place, first + j))
                return tirx.BufferStore(self.scores, value, [row + j])

            vector_loop(p, "j", count, VECTOR, element)
        for half in range(2):
            yield loops.simplify(row + half * VECTOR), loops.simplify(first + half * VECTOR)

    def _score(self, place: dict[Expr, Expr], at: Expr, first: Expr) -> Expr:
        """A vector of scores."""
        if self.reads or self.exponents.scale is not None:
            return loops.load(self.scores, at, VECTOR)

        def element(j: Expr) -> Expr:
            product = tirx.BufferLoad(self.scores, [at + j])
            return self.access.score(product, self.access.at_key(place, first + j))

        value = vector_value(element, VECTOR)
        assert value is not None, "lanes are neighbours in the products"
        return value

    def _weigh(self, part: _Part, block: Block) -> None:
        """Add the block's values, weighted by their powers, to the sums of a part."""
        p, tiles = self.program, self.tiles
        for rows in self._rows_of_tiles(part.lanes):
            with p.loop("columns", self.columns // GROUP, rolled=True) as columns:
                sums = p.let(
                    "sums_at", loops.simplify(part.first * self.columns + columns * _SQUARE)
                )
                is_first = loops.equals(block.number, 0)
                with p.when(is_first):
                    tiles.begin(p, rows)
                with p.otherwise(is_first):
                    tiles.load(p, rows, self.sums, sums)
                with p.loop("group", part.groups, rolled=True) as group:
                    right = columns * (BLOCK * GROUP) + group * (GROUP * GROUP)
                    self._multiply(rows, self.powers, group * GROUP, BLOCK, self.values, right)
                tiles.store(p, rows, self.sums, sums)

    def _weigh_seen(self, part: _Part, block: Block) -> None:
        """The same for keys that a lane sees, one by one."""
        p, access, value = self.program, self.access, self.form.value
        zeros = loops.zero("uint16", GROUP)
        with p.loop("lane", part.lanes) as lane, p.loop("j", block.count) as j:
            own = loops.simplify(part.first + lane)
            low, high = (loops.load(each, own) for each in (self.low, self.high))
            key = p.let("key", loops.simplify(block.start + j))
            with p.when(loops.both(low <= key, key < high)):
                row = self.row(value, self.value_line, block, j)
                word = loops.load(self.powers, loops.simplify(lane * BLOCK + j))
                bits = word.astype("uint32") << tirx.const(16, "uint32")
                weight = p.let("weight", loops.broadcast(tirx.reinterpret("float32", bits), VECTOR))
                line = loops.simplify(part.first * self.columns + lane * GROUP)
                with p.loop("columns", self.columns // GROUP) as columns:
                    words = loops.load(
                        access.words(value), loops.simplify(row + columns * GROUP), GROUP
                    )
                    for half, wide in enumerate(_halves(zeros, p.let("words", words))):
                        at = loops.simplify(line + columns * _SQUARE + half * VECTOR)
                        new = tirx.reinterpret(f"float32x{VECTOR}", wide) * weight
                        old = loops.load(self.sums, at, VECTOR)
                        p.store(self.sums, at, old + new, VECTOR)

    # After the keys

    def _finish(self) -> None:
        """Divide the sums of all lanes by their totals, and store them."""
        p, access, out = self.program, self.access, self.form.out
        with p.loop("some", loops.ceildiv(self.used, VECTOR), rolled=True) as some:
            first = p.let("first", loops.simplify(some * VECTOR))
            at = [loops.simplify((first + n) * VECTOR) for n in range(VECTOR)]
            total = summed(p, [loops.load(self.totals, n, VECTOR) for n in at])
            p.store(self.decay, 0, shares(p.let("total", total)), VECTOR)
            with p.loop("n", loops.minimum(self.used - first, VECTOR), rolled=True) as n:
                lane = p.let("lane", loops.simplify(first + n))
                place = access.lane_place(self.task, lane)
                line = p.let("line", access.offset(out, place))
                by = p.let("by", loops.broadcast(loops.load(self.decay, n), VECTOR))
                part, row = loops.floordiv(lane, LANES), loops.floormod(lane, LANES)
                sums = p.let("sums_at", loops.simplify(part * (LANES * self.columns) + row * GROUP))
                with p.loop("columns", self.columns // GROUP) as columns:
                    at_half = [
                        loops.simplify(sums + columns * _SQUARE + half * VECTOR)
                        for half in range(2)
                    ]
                    halves = [
                        p.let("half", loops.load(self.sums, each, VECTOR) * by) for each in at_half
                    ]
                    column = loops.simplify(columns * GROUP)
                    access.store_neighbours(_in_order(*halves), place, line, column)


# The columns of a group of values are not in order where they are packed, nor are those of sums: words of two rows are
# joined within the quarters of a register, which takes one operation.


def _halves(even: Expr, odd: Expr) -> list[Expr]:
    """Two rows of 16-bit numbers joined to words: the first halves of all quarters, and the second ones."""
    return [
        tirx.Shuffle(
            [even, odd],
            [
                tirx.IntImm("int32", quarter * 8 + half * 4 + n + row * GROUP)
                for quarter in range(4)
                for n in range(4)
                for row in range(2)
            ],
        )
        for half in range(2)
    ]


def _in_order(first: Expr, second: Expr) -> list[Expr]:
    """Two vectors of columns in the order of `_halves` in theirs."""
    order = [
        half * VECTOR + quarter * 4 + n
        for quarter in range(4)
        for half in range(2)
        for n in range(4)
    ]
    return [
        tirx.Shuffle([first, second], [tirx.IntImm("int32", n) for n in order[at : at + VECTOR]])
        for at in (0, VECTOR)
    ]
