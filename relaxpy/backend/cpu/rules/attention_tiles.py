"""Attention by tiles (`relaxpy.backend.cpu.tiles`), for bfloat16 and many lanes that share a key head.

A block of keys is packed as right-hand tiles have it: keys transposed, in words of two neighbours along the depth;
values as they are, in words of two neighbouring keys. Then, for the lanes of the task, 32 at a time (two tiles have as
many rows),

    scores = f(queries @ keys)                            float32, in the task's memory
    powers = exp(scores - top)                            rounded to bfloat16; their totals are not
    sums = sums * decay + powers @ values                 float32

A key that a lane does not see has a power of 0. That would make infinities and NaN of its values into NaN, so a block
which has these, and which not all lanes see, is added to the sums without tiles, key by key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from relaxpy.backend.cpu.rules.attention_access import LOWEST, Access, Task, share_of, splat
from relaxpy.backend.cpu.rules.places import shared_pieces
from relaxpy.backend.cpu.rules.powers import FEATURES, weights
from relaxpy.backend.cpu.rules.transpose import summed, transposed
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.cpu.tiles import ROWS, Tiles, address
from relaxpy.tir.forms import stages as s
from relaxpy.tir.forms.attention import AttentionForm
from relaxpy.tir.forms.contraction import Operand
from relaxpy.tir.forms.stages import Combiner
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.writer import loops
from relaxpy.tir.writer.loops import Buffer, Expr, int64
from relaxpy.tir.writer.vectors import fold, vector_loop, vector_value

LANES = 2 * ROWS
"""Lanes that are multiplied at a time: a part of a task."""
PARTS = 4
"""The most parts of a task: all of them read what is packed once."""
PART_TASKS = 16
"""The fewest tasks that remain if each has twice as many parts."""
GROUP = 2 * ROWS
"""Keys, and columns, that are multiplied at a time."""
GROUPS = 8
"""Groups of keys in a block."""
BLOCK = GROUP * GROUPS
_VECTOR = 16
"""Numbers of a vector of words."""
_ROW_BYTES = GROUP * 4
"""Bytes of a row of a packed group: words for each key or column."""
_SQUARE = LANES * GROUP
_EXPONENT = 0x7F80
"""The bits of a bfloat16 that are all set in infinities and NaN."""

_ADD = Combiner("add", tirx.FloatImm("float32", 0.0))


def tiles_of(access: Access, target: CpuTarget) -> Tiles | None:
    """The tiles that multiply the factors, if the target has them, and if these are contiguous and as wide as whole
    tiles are."""
    form = access.form
    tiles = Tiles.of(form.dtype, form.dtype, "float32", target)
    if tiles is None or not all(map(target.has, ("avx512bf16", *FEATURES))):
        return None
    accesses = (
        (form.query, "depth"), (form.key, "depth"), (form.value, "column"), (form.out, "column"),
    )  # fmt: skip
    return tiles if all(access.is_contiguous(o, axis, GROUP) for o, axis in accesses) else None


def _scale_of(form: AttentionForm) -> float | None:
    """The positive number that a product is multiplied by to make the score; None if there is more to it. Of products
    and of scores, the same is the largest then."""
    match form.score:
        case tirx.Mul(a=product, b=factor) if product.same_as(form.product):
            scale = _number(factor)
            return scale if scale is not None and scale > 0 else None
        case score if score.same_as(form.product):
            return 1.0
        case _:
            return None


def _number(value: Expr) -> float | None:
    """A literal, or a quotient or root of such."""
    match value:
        case tirx.FloatImm(value=number):
            return float(number)
        case tirx.Div(a=a, b=b):
            dividend, divisor = _number(a), _number(b)
            return dividend / divisor if dividend is not None and divisor else None
        case tvm.ir.Call(op=op, args=[arg]) if getattr(op, "name", "") == "tirx.sqrt":
            number = _number(arg)
            return math.sqrt(number) if number is not None and number >= 0 else None
        case _:
            return None


def lanes_of_task(access: Access) -> Expr:
    """The number of lanes of a task: more where enough tasks remain."""
    extents = access.form.axes.extents
    groups = extents["batch"] * loops.floordiv(extents["head"], access.sharing)
    tasks = loops.simplify(groups * loops.ceildiv(access.lanes, LANES))
    return loops.simplify(shared_pieces(tasks, PARTS, PART_TASKS) * LANES)


@dataclass(frozen=True, eq=False)
class _Block:
    """A block of keys: its first one, their number, that of their groups (or of those that a part sees), whether all
    lanes see all of them, and whether these fill the groups, too."""

    start: Expr
    count: Expr
    groups: Expr
    is_seen: Expr
    is_whole: Expr


class TilesProgram:
    """Writes the program of one task."""

    def __init__(self, access: Access, task: Task, tiles: Tiles, width: Expr) -> None:
        self.access, self.task, self.form, self.tiles = access, task, access.form, tiles
        self.program = p = access.program
        self.depth, self.columns = self.form.depth, self.form.columns
        self.scale = _scale_of(self.form)
        """The factor of products that makes them scores, if it is applied where powers are computed: until then,
        "scores" are products."""
        self.used = p.let("used", loops.minimum(access.lanes - task.first, width))
        """Lanes that exist."""
        place = access.shared_place(task)
        self.key_line = p.let("key_line", access.offset(self.form.key, place))
        self.value_line = p.let("value_line", access.offset(self.form.value, place))
        lanes = LANES * PARTS
        self.queries = p.allocate("queries", lanes * self.depth, "uint16")
        self.keys = p.allocate("keys", BLOCK * self.depth // 2, "int32")
        self.values = p.allocate("values", BLOCK * self.columns, "uint16")
        self.scores = p.allocate("scores", GROUPS * _SQUARE, "float32")
        self.powers = p.allocate("powers", LANES * BLOCK, "uint16")
        self.sums = p.allocate("sums", lanes * self.columns, "float32")
        self.top = p.allocate("top", lanes, "float32")
        self.largest = p.allocate("largest", LANES * _VECTOR, "float32")
        """For each lane of a part, a vector of the largest scores."""
        self.decay = p.allocate("decay", LANES, "float32")
        self.totals = p.allocate("totals", lanes * _VECTOR, "float32")
        self.low = p.allocate("seen_from", lanes, "int64")
        self.high = p.allocate("seen_to", lanes, "int64")
        self.ends = p.allocate("part_ends", PARTS, "int64")
        """For each part, the key after the last one that some of its lanes see."""

    def write(self) -> None:
        """Write the whole program, from the queries to the results."""
        p, size = self.program, int64(ROWS)
        self._begin()
        (low, high), (all_from, all_to) = self._seen()
        self.tiles.configure(p, (size, size))
        number = p.let("blocks", loops.ceildiv(loops.maximum(high - low, 0), BLOCK))
        with p.loop("block", number) as block:
            start = p.let("start", loops.simplify(low + block * BLOCK))
            count = p.let("count", loops.minimum(high - start, BLOCK))
            groups = p.let("groups", loops.ceildiv(count, GROUP))
            is_seen = loops.both(all_from <= start, start + count <= all_to)
            is_full = loops.equals(loops.floormod(count, GROUP), 0)
            own = _Block(start, count, groups, is_seen, loops.both(is_seen, is_full))
            self._pack_keys(own)
            is_infinite = self._pack_values(own)
            with p.loop("part", loops.ceildiv(self.used, LANES)) as part:
                self._part(p.let("first", loops.simplify(part * LANES)), own, is_infinite)
        self.tiles.release(p)
        with p.loop("lane", self.used) as lane:
            self._finish(lane)

    def _part(self, first: Expr, block: _Block, is_infinite: Expr) -> None:
        """Add a block to the totals and sums of a part of the lanes, if these see any of its keys."""
        p = self.program
        lanes = p.let("lanes", loops.minimum(self.used - first, LANES))
        end = loops.load(self.ends, loops.floordiv(first, LANES))
        with p.when(True if self.form.seen is None else end > block.start):
            if self.form.seen is not None:
                some = loops.minimum(end - block.start, block.count)
                block = replace(block, groups=p.let("groups", loops.ceildiv(some, GROUP)))
            self._products(first, lanes, block)
            with p.when(block.is_whole), p.loop("lane", lanes) as lane:
                self._scores(first, lane, block, masked=False)
            with p.otherwise(block.is_whole), p.loop("lane", lanes) as lane:
                self._scores(first, lane, block, masked=True)
            self._decay(first)
            with p.loop("lane", lanes) as lane:
                self._powers(first, lane, block)
            is_odd = loops.both(is_infinite, tirx.Not(block.is_seen))
            with p.when(is_odd):
                self._weigh_seen(first, lanes, block)
            with p.otherwise(is_odd):
                self._weigh(first, lanes, block)

    # Before the keys

    def _begin(self) -> None:
        """Copy the queries; nothing is summed yet."""
        p, access, query = self.program, self.access, self.form.query
        with p.loop("lane", self.used) as lane:
            line = p.let("line", access.offset(query, access.lane_place(self.task, lane)))
            with p.loop("part", self.depth // GROUP) as part:
                words = loops.load(access.words(query), line + part * GROUP, GROUP)
                p.store(self.queries, lane * self.depth + part * GROUP, words, GROUP)
            p.store(self.totals, lane * _VECTOR, splat(0.0, _VECTOR), _VECTOR)
        with p.loop("n", LANES * PARTS // _VECTOR) as n:
            p.store(self.top, n * _VECTOR, splat(LOWEST, _VECTOR), _VECTOR)
        size = loops.ceildiv(self.used, LANES) * (LANES * self.columns // _VECTOR)
        with p.loop("n", loops.simplify(size)) as n:
            p.store(self.sums, n * _VECTOR, splat(0.0, _VECTOR), _VECTOR)
        with p.loop("n", LANES) as n:
            p.store(self.largest, n * _VECTOR, splat(LOWEST, _VECTOR), _VECTOR)

    def _seen(self) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
        """Store the keys that each lane sees. Returns the keys that some lanes see, and those that all of them see: the
        first, and the one after the last."""
        p, keys = self.program, self.access.keys
        if self.form.seen is None:
            with p.loop("lane", self.used) as lane:
                p.store(self.low, lane, int64(0))
                p.store(self.high, lane, keys)
            return (int64(0), keys), (int64(0), keys)
        for part in range(PARTS):
            p.store(self.ends, part, int64(0))

        def note(lane: Expr, low: Expr, high: Expr) -> None:
            p.store(self.low, lane, low)
            p.store(self.high, lane, high)
            part = p.let("part", loops.floordiv(lane, LANES))
            p.store(self.ends, part, tirx.max(loops.load(self.ends, part), high))

        return self.access.seen_keys(self.task, self.used, note)

    # One block of keys

    def _row(self, operand: Operand, line: Expr, block: _Block, number: Expr) -> Expr:
        """The offset of a row of the block; rows past the end repeat the last one."""
        row = block.start + loops.minimum(number, block.count - 1)
        at = line + row * self.access.stride(operand, "key")
        return self.program.let("row", loops.simplify(at))

    def _prefetch(self, operand: Operand, line: Expr, number: Expr, part: Expr) -> None:
        """Prefetch a group of numbers, which are a cache line, of a row that is read soon, into the second cache."""
        at = line + number * self.access.stride(operand, "key") + part * GROUP
        self.access.prefetch(operand, loops.simplify(at), level=2)

    def _pack_keys(self, block: _Block) -> None:
        """Transpose the words of 16 keys at a time. Prefetches the block's values."""
        p, key = self.program, self.form.key
        source = self.access.words(key)
        with p.loop("some", loops.simplify(block.groups * 2)) as some:
            first = p.let("first", loops.simplify(some * _VECTOR))
            rows = [self._row(key, self.key_line, block, first + n) for n in range(_VECTOR)]
            group = loops.floordiv(some, 2) * (self.depth // 2 * GROUP)
            to = p.let("to", loops.simplify(group + loops.floormod(some, 2) * _VECTOR))
            with p.loop("part", self.depth // GROUP) as part:
                for n in range(_VECTOR):
                    self._prefetch(self.form.value, self.value_line, block.start + first + n, part)
                words = [
                    tirx.reinterpret("int32x16", loops.load(source, row + part * GROUP, GROUP))
                    for row in rows
                ]
                for n, column in enumerate(transposed(p, words)):
                    at = to + (part * _VECTOR + n) * GROUP
                    p.store(self.keys, loops.simplify(at), column, _VECTOR)

    def _pack_values(self, block: _Block) -> Expr:
        """Join neighbouring keys' values to words; keys that do not exist are zeros. Returns whether some are infinite
        or NaN. Prefetches the keys of the next block."""
        p, value = self.program, self.form.value
        source, zeros = self.access.words(value), loops.zero("uint16", GROUP)
        odd = p.allocate("odd", GROUP, "uint16")
        p.store(odd, 0, zeros, GROUP)
        bits = loops.broadcast(tirx.const(_EXPONENT, "uint16"), GROUP)
        one = loops.broadcast(tirx.const(1, "uint16"), GROUP)
        with p.loop("pair", loops.simplify(block.groups * ROWS)) as pair:
            numbers = [loops.simplify(pair * 2 + n) for n in range(2)]
            rows = [self._row(value, self.value_line, block, number) for number in numbers]
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
                for half in range(2):
                    order = [n // 2 + half * _VECTOR + n % 2 * GROUP for n in range(GROUP)]
                    picked = tirx.Shuffle(words, [tirx.IntImm("int32", n) for n in order])
                    p.store(self.values, loops.simplify(to + half * GROUP), picked, GROUP)
                for each in words:
                    found = tirx.Select(tirx.EQ(each & bits, bits), one, zeros)
                    p.store(odd, 0, loops.load(odd, 0, GROUP) | found, GROUP)
        found = p.allocate("found", 1, "uint16")
        p.store(found, 0, tirx.const(0, "uint16"))
        with p.loop("n", GROUP) as n:
            p.store(found, 0, loops.load(found, 0) | loops.load(odd, n))
        return p.let("is_infinite", tirx.NE(loops.load(found, 0), tirx.const(0, "uint16")))

    def _products(self, first: Expr, lanes: Expr, block: _Block) -> None:
        """The products of a part's queries and the block's keys."""
        p, tiles = self.program, self.tiles
        for rows in self._rows_of_tiles(lanes):
            with p.loop("group", block.groups) as group:
                tiles.begin(p, rows)
                with p.loop("step", self.depth // GROUP) as step:
                    right = group * (self.depth // 2 * GROUP) + step * (ROWS * GROUP)
                    left = first * self.depth + step * GROUP
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

    def _scores(self, part: Expr, lane: Expr, block: _Block, *, masked: bool) -> None:
        """Convert a lane's products to scores, and store the largest of them."""
        p, own = self.program, loops.simplify(part + lane)
        place = self.access.lane_place(self.task, own)
        largest = p.allocate("own_largest", _VECTOR, "float32")
        p.store(largest, 0, splat(LOWEST, _VECTOR), _VECTOR)
        sees = self._sees(own, block) if masked else None
        for at, first in self._vectors(lane, block, place):
            if masked or self.scale is None:
                score = self._score(place, at, first)
                if sees is not None:
                    mask = sees(loops.simplify(first - block.start))
                    score = tirx.Select(mask, score, splat(-float("inf"), _VECTOR))
                p.store(self.scores, at, score, _VECTOR)
            found = tirx.Max(loops.load(largest, 0, _VECTOR), loops.load(self.scores, at, _VECTOR))
            p.store(largest, 0, found, _VECTOR)
        p.store(self.largest, lane * _VECTOR, loops.load(largest, 0, _VECTOR), _VECTOR)

    def _sees(self, lane: Expr, block: _Block) -> Callable[[Expr], Expr]:
        """Which keys of a block a lane sees: the mask of a vector of them, given the place of its first."""
        p = self.program
        low, high = (
            p.let("end", loops.clamped_int32(loops.load(each, lane) - block.start, BLOCK))
            for each in (self.low, self.high)
        )
        ramp = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), _VECTOR)
        # One comparison tests both ends: before the first key, the unsigned difference is large.
        places = p.let("places", ramp - loops.broadcast(low, _VECTOR))
        number = tirx.max(high - low, tirx.const(0, "int32")).astype("uint32")
        number = p.let("number", loops.broadcast(number, _VECTOR))

        def mask(first: Expr) -> Expr:
            place = places + loops.broadcast(first.astype("int32"), _VECTOR)
            return place.astype(f"uint32x{_VECTOR}") < number

        return mask

    def _decay(self, part: Expr) -> None:
        """Update the largest scores of a part, and store by how much the earlier sums shrink."""
        p = self.program
        for at in range(0, LANES, _VECTOR):
            rows = [loops.load(self.largest, (at + n) * _VECTOR, _VECTOR) for n in range(_VECTOR)]
            old = p.let("old", loops.load(self.top, loops.simplify(part + at), _VECTOR))
            new = p.let("new", tirx.Max(old, summed(p, rows, tirx.Max)))
            p.store(self.top, loops.simplify(part + at), new, _VECTOR)
            p.store(self.decay, at, self._power(old, new), _VECTOR)

    def _power(self, score: Expr, top: Expr) -> Expr:
        """The powers of a vector of scores from the largest ones."""
        rate = splat((1.0 if self.scale is None else self.scale) * math.log2(math.e), _VECTOR)
        return weights(self.program, (score - top) * rate)

    def _powers(self, part: Expr, lane: Expr, block: _Block) -> None:
        """Replace a lane's scores by powers, and update its total and its sums so far."""
        p, own = self.program, loops.simplify(part + lane)
        decay = p.let("decay", loops.load(self.decay, lane))
        by = p.let("by", loops.broadcast(decay, _VECTOR))
        with p.when(tirx.NE(decay, tirx.FloatImm("float32", 1.0))):
            for at in self._sums_of(own):
                p.store(self.sums, at, loops.load(self.sums, at, _VECTOR) * by, _VECTOR)
        new = p.let("new", loops.broadcast(loops.load(self.top, own), _VECTOR))
        totals = [p.allocate("total", _VECTOR, "float32") for _ in range(2)]
        p.store(totals[0], 0, loops.load(self.totals, own * _VECTOR, _VECTOR) * by, _VECTOR)
        p.store(totals[1], 0, splat(0.0, _VECTOR), _VECTOR)
        with p.loop("group", block.groups) as group:
            values: list[Expr] = []
            for half, total in enumerate(totals):
                at = loops.simplify(group * _SQUARE + lane * GROUP + half * _VECTOR)
                score = loops.load(self.scores, at, _VECTOR)
                values.append(p.let("power", self._power(score, new)))
                p.store(total, 0, loops.load(total, 0, _VECTOR) + values[-1], _VECTOR)
            to = loops.simplify(lane * BLOCK + group * GROUP)
            p.store(self.powers, to, self.tiles.narrowed(*values), GROUP)
        total = loops.load(totals[0], 0, _VECTOR) + loops.load(totals[1], 0, _VECTOR)
        p.store(self.totals, own * _VECTOR, total, _VECTOR)

    def _sums_of(self, lane: Expr) -> Iterator[Expr]:
        """A loop over the vectors of a lane's sums: yields the places of two at a time."""
        p = self.program
        part, row = loops.floordiv(lane, LANES), loops.floormod(lane, LANES)
        line = p.let("sums_at", loops.simplify(part * (LANES * self.columns) + row * GROUP))
        with p.loop("group", self.columns // GROUP) as group:
            for half in range(2):
                yield loops.simplify(line + group * _SQUARE + half * _VECTOR)

    def _vectors(
        self, lane: Expr, block: _Block, place: dict[Expr, Expr]
    ) -> Iterator[tuple[Expr, Expr]]:
        """A loop over the vectors of a lane's scores: yields the place of each, and its first key. Scores that read
        memory are computed from the products before."""
        p = self.program
        with p.loop("group", block.groups) as group:
            row = p.let("row", loops.simplify(group * _SQUARE + lane * GROUP))
            first = p.let("first", loops.simplify(block.start + group * GROUP))
            if self._reads:
                count = p.let("exist", loops.minimum(block.count - group * GROUP, GROUP))

                def element(j: Expr) -> tirx.BufferStore:
                    product = tirx.BufferLoad(self.scores, [row + j])
                    value = self.access.score(product, self.access.at_key(place, first + j))
                    return tirx.BufferStore(self.scores, value, [row + j])

                vector_loop(p, "j", count, _VECTOR, element)
            for half in range(2):
                yield loops.simplify(row + half * _VECTOR), loops.simplify(first + half * _VECTOR)

    @property
    def _reads(self) -> bool:
        """Do scores read memory, which has nothing for keys that do not exist?"""
        return len(list(s.loads_of(self.form.score))) > 0

    def _score(self, place: dict[Expr, Expr], at: Expr, first: Expr) -> Expr:
        """A vector of scores."""
        if self._reads or self.scale is not None:
            return loops.load(self.scores, at, _VECTOR)

        def element(j: Expr) -> Expr:
            product = tirx.BufferLoad(self.scores, [at + j])
            return self.access.score(product, self.access.at_key(place, first + j))

        value = vector_value(element, _VECTOR)
        assert value is not None, "lanes are neighbours in the products"
        return value

    def _weigh(self, first: Expr, lanes: Expr, block: _Block) -> None:
        """Add the block's values, weighted by their powers, to the sums of a part."""
        p, tiles = self.program, self.tiles
        for rows in self._rows_of_tiles(lanes):
            with p.loop("columns", self.columns // GROUP) as columns:
                sums = p.let("sums_at", loops.simplify(first * self.columns + columns * _SQUARE))
                tiles.load(p, rows, self.sums, sums)
                with p.loop("group", block.groups) as group:
                    right = columns * (BLOCK * GROUP) + group * (GROUP * GROUP)
                    self._multiply(rows, self.powers, group * GROUP, BLOCK, self.values, right)
                tiles.store(p, rows, self.sums, sums)

    def _weigh_seen(self, first: Expr, lanes: Expr, block: _Block) -> None:
        """The same for keys that a lane sees, one by one."""
        p, access, value = self.program, self.access, self.form.value
        with p.loop("lane", lanes) as lane, p.loop("j", block.count) as j:
            own = loops.simplify(first + lane)
            low, high = (loops.load(each, own) for each in (self.low, self.high))
            key = p.let("key", loops.simplify(block.start + j))
            with p.when(loops.both(low <= key, key < high)):
                row = self._row(value, self.value_line, block, j)
                word = loops.load(self.powers, loops.simplify(lane * BLOCK + j))
                bits = word.astype("uint32") << tirx.const(16, "uint32")
                weight = p.let(
                    "weight", loops.broadcast(tirx.reinterpret("float32", bits), _VECTOR)
                )
                line = loops.simplify(first * self.columns + lane * GROUP)
                with p.loop("columns", self.columns // GROUP) as columns:
                    for half in range(2):
                        at = loops.simplify(line + columns * _SQUARE + half * _VECTOR)
                        column = loops.simplify(row + columns * GROUP + half * _VECTOR)
                        new = access.read(value.buffer, column, _VECTOR) * weight
                        old = loops.load(self.sums, at, _VECTOR)
                        p.store(self.sums, at, old + new, _VECTOR)

    # After the keys

    def _finish(self, lane: Expr) -> None:
        """Divide the sums of a lane by their total, and store them."""
        p, access = self.program, self.access
        place = access.lane_place(self.task, lane)
        total = fold(p, loops.load(self.totals, lane * _VECTOR, _VECTOR), _VECTOR, _ADD)
        share = p.let("share", loops.broadcast(share_of(p.let("total", total), 1), _VECTOR))
        line = p.let("line", access.offset(self.form.out, place))
        part, row = loops.floordiv(lane, LANES), loops.floormod(lane, LANES)
        sums = p.let("sums_at", loops.simplify(part * (LANES * self.columns) + row * GROUP))
        with p.loop("columns", self.columns // GROUP) as columns:
            for half in range(2):
                at = loops.simplify(sums + columns * _SQUARE + half * _VECTOR)
                quotients = loops.load(self.sums, at, _VECTOR) * share
                column = loops.simplify(columns * GROUP + half * _VECTOR)
                access.store_quotients(quotients, _VECTOR, place, line, column)
