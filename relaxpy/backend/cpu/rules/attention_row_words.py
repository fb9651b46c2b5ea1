"""Attention of bfloat16 by dot products, for one query, or few, whose key head few heads share.

A task computes one query for all heads that share a key head: its lanes. A vector of scores has all heads, and some
keys of each: as many neighbours as the register has lanes for a head. As many words of each head's query make a vector,
and the same number of a key's words, repeated for every head, is multiplied by it:

    products[key] += words of the key * words of the heads' queries      then summed across the words of each head
    powers = exp(scores - top)                                           rounded, in words of two neighbouring keys
    sums[head, columns] += words of two keys' values * word of powers

All heads see the same keys. A key past the end has the least power, and the values of the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.backend.cpu.narrowing import narrowed
from relaxpy.backend.cpu.rules.attention_access import (
    LOWEST,
    Access,
    Exponents,
    Task,
    as_numbers,
    as_words,
    ones,
    splat,
)
from relaxpy.backend.cpu.rules.attention_rows import AHEAD_LEVEL, RowWriter, has_row_program
from relaxpy.backend.cpu.rules.powers import shares, weights
from relaxpy.backend.cpu.rules.transpose import summed
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, int64
from relaxpy.tir.programs.vectors import interleaved, joined, vector_loop
from relaxpy.tir.recognise.contraction import Operand
from relaxpy.tir.tvm import tirx

BLOCK = 128
"""Keys per block."""
SUMS = 16
"""Vectors that are summed at a time: half of the registers. A sum is ready for the next instruction after six."""
SETS = 2
"""Sets of heads, a vector each, that are multiplied by the same words of a key: broadcasting words takes as long as a
product."""


def has_row_words_program(access: Access, target: CpuTarget) -> bool:
    """Are factors and powers words of two bfloat16, and rows as `has_row_program` wants them, but for twice as many
    lanes?"""
    is_narrow = access.scoring.group == access.weighing.group == 2
    return is_narrow and has_row_program(access, 2 * target.lanes(32))


class RowWordsProgram(RowWriter):
    """Writes the program of one task."""

    def __init__(self, access: Access, task: Task, target: CpuTarget) -> None:
        super().__init__(access, task, target)
        p, lanes = self.program, self.lanes
        self.sets = min(SETS, max(1, self.heads // 2))
        self.together = self.heads // self.sets
        """Heads of a set, which share a vector."""
        self.part = lanes // self.together
        """Lanes of a head in a vector: words of its query, or keys."""
        self.keys = SUMS // self.sets
        """Keys whose products are computed at a time."""
        self.exponents = Exponents.of(self.form)
        self.queries_at = 0
        self.sums_at = self.heads * self.depth // 2
        self.scores_at = self.sums_at + self.heads * self.columns
        size = self.scores_at + self.heads * BLOCK
        self.scratch = p.allocate("scratch", size, "float32")
        width = self.sets * lanes
        self.top = p.allocate("top", width, "float32")
        """For each head what is subtracted from exponents (`Exponents.top`)."""
        self.totals = p.allocate("totals", width, "float32")
        """For each set the totals of words of powers: of two vectors of powers, one behind the other."""
        self.decay = p.allocate("decay", width, "float32")

    def write(self) -> None:
        """Write the whole program, from the queries to the results."""
        p, form = self.program, self.form
        self._begin()
        for start, count, key, value in self.blocks(BLOCK):
            values = self._at(form.value, value, start)
            self._products(self._at(form.key, key, start), values, count)
            if self.exponents.scale is None:
                self._scores(start, count)
            with p.loop("set", self.sets) as number:
                self._softmax(number, count)
            following = self._at(form.key, key, start + BLOCK)
            width = min(SUMS // self.heads * self.lanes, self.columns)
            with p.loop("columns", self.columns // width, rolled=True) as some:
                self._weigh(some * width, width, values, following, count)
            if rest := self.columns % width:
                self._weigh(int64(self.columns - rest), rest, values, following, count)
        self._finish()

    def _begin(self) -> None:
        """Put words of all heads' queries beside each other; nothing is summed yet."""
        p, access, query, part = self.program, self.access, self.form.query, self.part
        with p.loop("head", self.heads, rolled=True) as n:
            line = p.let("line", access.offset(query, self._place(n)))
            with p.loop("part", self.depth // 2 // part, rolled=True) as number:
                words = self._words(query, line + number * (2 * part), part)
                to = self.queries_at + number * (self.sets * self.lanes) + n * part
                p.store(self.scratch, loops.simplify(to), as_numbers(words), part)
        with p.loop("n", self.heads * self.columns // self.lanes, rolled=True) as n:
            self._put(self.sums_at + n * self.lanes, splat(0.0, self.lanes))
        for at in range(0, self.sets * self.lanes, self.lanes):
            p.store(self.top, at, splat(LOWEST, self.lanes), self.lanes)
            p.store(self.totals, at, splat(0.0, self.lanes), self.lanes)

    def _words(self, operand: Operand, at: Expr, count: int) -> Expr:
        """Words of contiguous numbers."""
        read = loops.load(self.access.words(operand), loops.simplify(at), 2 * count)
        return tirx.reinterpret(f"int32x{count}", read)

    # One block of keys

    def _products(self, line: Expr, values: Expr, count: Expr) -> None:
        """Compute the products of the queries with the block's keys, stored in the memory of the scores. Prefetches the
        block's values."""
        p, step = self.program, self.access.stride(self.form.key, "key")
        whole = p.let("whole", loops.floordiv(count, self.keys))
        with p.loop("tile", whole) as tile:
            first = p.let("first", tile * self.keys)
            base = p.let("line", loops.simplify(line + first * step))
            rows = [loops.simplify(base + n * step) for n in range(self.keys)]
            self._tile(first, rows, values)
        done = p.let("done", loops.simplify(whole * self.keys))
        with p.loop("rest", loops.simplify(count - done), rolled=True) as number:
            key = p.let("key_number", done + number)
            self._product_of_one(key, p.let("line", loops.simplify(line + key * step)))

    def _tile(self, first: Expr, rows: Sequence[Expr], values: Expr) -> None:
        """Compute the products with some keys, given the places of their numbers."""
        p, lanes, part = self.program, self.lanes, self.part
        sums = [[p.allocate("product", lanes, "float32") for _ in rows] for _ in range(self.sets)]
        for buffer in (buffer for own in sums for buffer in own):
            p.store(buffer, 0, splat(0.0, lanes), lanes)
        parts = self.depth // 2 // part
        with p.loop("part", parts) as number:
            self._prefetch_values(values, first, number, parts)
            self._multiply(number, rows, sums)
        for n, own in enumerate(sums):
            for at in range(0, len(rows), part):
                products = [loops.load(buffer, 0, lanes) for buffer in own[at : at + part]]
                to = self._scores_of(n) + (first + at) * self.together
                self._put(to, summed(p, products))

    def _product_of_one(self, key: Expr, row: Expr) -> None:
        """Compute the products with one key."""
        p, lanes, part = self.program, self.lanes, self.part
        sums = [[p.allocate("product", lanes, "float32")] for _ in range(self.sets)]
        for (buffer,) in sums:
            p.store(buffer, 0, splat(0.0, lanes), lanes)
        with p.loop("part", self.depth // 2 // part) as number:
            self._multiply(number, [row], sums)
        place = loops.floormod(key, part).astype("int32")
        own_lane = p.let("own_lane", tirx.EQ(self._places(), loops.broadcast(place, lanes)))
        for n, (buffer,) in enumerate(sums):
            at = p.let("at", loops.simplify(self._scores_of(n) + loops.floordiv(key, part) * lanes))
            product = self._across(loops.load(buffer, 0, lanes), self._steps(part), tirx.Add)
            self._put(at, tirx.Select(own_lane, product, self._get(at)))

    def _multiply(self, number: Expr, rows: Sequence[Expr], sums: Sequence[list[Buffer]]) -> None:
        """Add the products of a part of some keys and of the queries, for each set of heads."""
        p, scoring, lanes, part = self.program, self.access.scoring, self.lanes, self.part
        queries: list[Expr] = []
        for n in range(self.sets):
            query = self._get(self.queries_at + (number * self.sets + n) * lanes)
            queries.append(p.let("query", as_words(query, scoring)))
        for n, row in enumerate(rows):
            words = self._words(self.form.key, row + number * (2 * part), part)
            key = p.let("key", joined([words] * self.together))
            for own, query in zip(sums, queries, strict=True):
                new = scoring.add_product(loops.load(own[n], 0, lanes), query, key)
                p.store(own[n], 0, new, lanes)

    def _places(self) -> Expr:
        """For each lane, the place of its key among those of a head."""
        ramp = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), self.lanes)
        return ramp & loops.broadcast(tirx.const(self.part - 1, "int32"), self.lanes)

    def _scores_of(self, number: Expr | int) -> Expr | int:
        """The place of the scores of a set of heads."""
        return self.scores_at + number * (self.together * BLOCK)

    def _prefetch_values(self, line: Expr, first: Expr, number: Expr, parts: int) -> None:
        """Prefetch a share of the values of a tile's keys."""
        value = self.form.value
        numbers = self.access.line_numbers(value)
        for n in range(-(-self.keys * self.columns // numbers // parts)):
            place = number + n * parts
            row = first + loops.floormod(place, self.keys)
            at = row * self.access.stride(value, "key") + loops.floordiv(place, self.keys) * numbers
            self.access.prefetch(value, loops.simplify(line + at), level=AHEAD_LEVEL)

    def _scores(self, start: Expr, count: Expr) -> None:
        """Convert products to scores."""
        p, access, part = self.program, self.access, self.part
        with p.loop("head", self.heads) as head, p.loop("n", loops.ceildiv(count, part)) as n:
            own = self._place(head)
            first = p.let("first", loops.simplify(n * part))
            own_set, place = (
                loops.floordiv(head, self.together),
                loops.floormod(head, self.together),
            )
            at = self._scores_of(own_set) + n * self.lanes + place * part
            at = p.let("at", loops.simplify(at))

            def element(j: Expr) -> tirx.BufferStore:
                place = access.at_key(own, start + first + j)
                value = access.score(tirx.BufferLoad(self.scratch, [at + j]), place)
                return tirx.BufferStore(self.scratch, value, [at + j])

            vector_loop(p, "j", loops.minimum(count - first, part), part, element)

    def _softmax(self, number: Expr, count: Expr) -> None:
        """The online-softmax update for one block and set of heads: replace its scores by rounded powers, in words of
        those of two keys, and update the running maximum and the totals. Stores the factor by which the earlier sums
        shrink."""
        p, lanes, part, weighing = self.program, self.lanes, self.part, self.access.weighing
        scores_at, here = self._scores_of(number), p.let("here", number * lanes)
        pairs = p.let("pairs", loops.ceildiv(count, 2 * part))
        largest = p.allocate("largest", lanes, "float32")
        p.store(largest, 0, splat(LOWEST, lanes), lanes)
        places = p.let("places", self._places())
        with p.loop("n", loops.simplify(pairs * 2)) as n:
            at = scores_at + n * lanes
            exist = places < loops.broadcast((count - n * part).astype("int32"), lanes)
            score = tirx.Select(exist, self._get(at), splat(-float("inf"), lanes))
            self._put(at, score)
            p.store(largest, 0, tirx.Max(loops.load(largest, 0, lanes), self._get(at)), lanes)
        own = self._across(loops.load(largest, 0, lanes), self._steps(part), tirx.Max)
        old = p.let("old", loops.load(self.top, here, lanes))
        exponents = self.exponents
        new = p.let("new", tirx.Max(old, exponents.top(own)))
        p.store(self.top, here, new, lanes)
        decay = p.let("shrink", weights(p, exponents.shrinking(old, new)))
        p.store(self.decay, here, decay, lanes)
        total = p.allocate("total", lanes, "float32")
        places = [n % (lanes // 2) // (part // 2) * part for n in range(lanes)]
        order = [tirx.IntImm("int32", place) for place in places]
        shrunk = loops.load(self.totals, here, lanes) * tirx.Shuffle([decay], order)
        p.store(total, 0, shrunk, lanes)
        with p.loop("pair", pairs) as n:
            values: list[Expr] = []
            for half in range(2):
                score = self._get(scores_at + n * (2 * lanes) + half * lanes)
                values.append(p.let("power", weights(p, exponents.exponent(score, new))))
            words = tirx.reinterpret(f"int32x{lanes}", narrowed(*values))
            words = p.let("words", words)
            self._put(scores_at + n * lanes, as_numbers(words))
            added = weighing.add_product(loops.load(total, 0, lanes), words, ones(weighing))
            p.store(total, 0, added, lanes)
        p.store(self.totals, here, loops.load(total, 0, lanes), lanes)

    def _steps(self, width: int) -> list[int]:
        """The powers of two below a width."""
        return [1 << n for n in range(width.bit_length() - 1)]

    def _across(self, vector: Expr, steps: Sequence[int], join: type[tirx.Max | tirx.Add]) -> Expr:
        """In each lane what `join` makes of all lanes of a head, whose numbers differ by these powers of two."""
        p = self.program
        current = p.let("own", vector)
        for step in steps:
            order = [tirx.IntImm("int32", lane ^ step) for lane in range(self.lanes)]
            current = p.let("own", join(current, tirx.Shuffle([current], order)))
        return current

    def _weigh(self, first: Expr, width: int, line: Expr, following: Expr, count: Expr) -> None:
        """Add some columns of the block's values, weighted by their powers, to the sums. Prefetches as much of the
        following keys."""
        p, lanes, weighing = self.program, self.lanes, self.access.weighing
        columns = range(0, width, lanes)
        start = p.let("sums_at", loops.simplify(self.sums_at + first))
        places = [start + n * self.columns + at for n in range(self.heads) for at in columns]
        sums = [p.allocate("sum", lanes, "float32") for _ in places]
        for n, (buffer, place) in enumerate(zip(sums, places, strict=True)):
            head = n // len(columns)
            decay = loops.broadcast(loops.load(self.decay, head * self.part), lanes)
            p.store(buffer, 0, self._get(place) * decay, lanes)
        half = self.part // 2
        with p.loop("pair", loops.ceildiv(count, 2)) as pair:
            self._prefetch_keys(following + first, pair, width)
            parts = self._value_words(line + first, pair, count, columns)
            group = loops.floordiv(pair, half) * (lanes // 2) + loops.floormod(pair, half)
            group = p.let("group", loops.simplify(group))
            for n in range(self.heads):
                own_set, place = divmod(n, self.together)
                at = loops.simplify(self._scores_of(own_set) + group + place * half)
                word = as_words(loops.load(self.scratch, at), weighing)
                own = loops.broadcast(p.let("power", word), lanes)
                for buffer, part in zip(sums[n * len(parts) :], parts, strict=False):
                    new = weighing.add_product(loops.load(buffer, 0, lanes), part, own)
                    p.store(buffer, 0, new, lanes)
        for buffer, place in zip(sums, places, strict=True):
            self._put(place, loops.load(buffer, 0, lanes))

    def _prefetch_keys(self, line: Expr, pair: Expr, width: int) -> None:
        """Prefetch so many numbers of two following keys. Past the end of a key are others."""
        key = self.form.key
        for n in range(2):
            row = line + (pair * 2 + n) * self.access.stride(key, "key")
            for at in range(0, width, self.access.line_numbers(key)):
                self.access.prefetch(key, loops.simplify(row + at), level=AHEAD_LEVEL)

    def _value_words(self, line: Expr, pair: Expr, count: Expr, columns: range) -> list[Expr]:
        """Vectors of words of some columns of the values of two keys."""
        p, value, lanes = self.program, self.form.value, self.lanes
        step, source = self.access.stride(value, "key"), self.access.words(value)
        second = loops.minimum(pair * 2 + 1, count - 1)
        rows = [p.let("row", loops.simplify(line + key * step)) for key in (pair * 2, second)]
        parts: list[Expr] = []
        for c in columns[::2]:
            both = [p.let("values", loops.load(source, row + c, 2 * lanes)) for row in rows]
            for words in interleaved(*both, 2 * lanes):
                parts.append(p.let("words", tirx.reinterpret(f"int32x{lanes}", words)))
        return parts

    # After the keys

    def _finish(self) -> None:
        """Divide the sums of all heads by their totals, and store them."""
        p, access, lanes = self.program, self.access, self.lanes
        for at in range(0, self.sets * lanes, lanes):
            steps = [*self._steps(self.part // 2), lanes // 2]
            total = self._across(loops.load(self.totals, at, lanes), steps, tirx.Add)
            p.store(self.decay, at, shares(total), lanes)
        with p.loop("head", self.heads) as head:
            place = self._place(head)
            line = p.let("line", access.offset(self.form.out, place))
            own_set, number = (
                loops.floordiv(head, self.together),
                loops.floormod(head, self.together),
            )
            at_share = own_set * lanes + number * (self.part // 2)
            share = loops.load(self.decay, loops.simplify(at_share))
            share = p.let("share", loops.broadcast(share, lanes))
            for at in range(0, self.columns, 2 * lanes):
                sums_at = self.sums_at + head * self.columns + at
                quotients = [self._get(sums_at + half * lanes) * share for half in range(2)]
                access.store_neighbours(quotients, place, line, int64(at))
