"""Attention with vectors across lanes: for many lanes that share a key head.

Lanes are the innermost dimension of all arrays (queries, transposed once; scores; sums). So no sum runs across a
register, and keys and values are read in place, one number at a time for all lanes:

    scores[j, lanes] = sum over d of key[j, d] * query[d, lanes]       tiles of 8 keys, in registers
    sums[c, lanes] += over j of value[j, c] * powers[j, lanes]         tiles of 8 columns, in registers

Blocks of keys that no lane sees are skipped; in those that only some lanes see, a key that is not seen takes no part in
any sum (0 times a value that is infinite or NaN would). Narrow floats are converted a block at a time.

Where the target has dot products of bfloat16 (`relaxpy.backend.cpu.arithmetic`), the number that is read at a time is a
word: two neighbours of a key, or the values of two neighbouring keys at one column, which are joined a block at a time.
Then powers are rounded, if results are: those of two keys are a word, and totals are theirs. A key that is not seen has
the least power, 2**-126, and values are looked at only where some lanes do not see a key: if they are finite, it needs
no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.narrowing import narrowed
from relaxpy.backend.cpu.rules.attention_access import (
    LOWEST,
    Access,
    Exponents,
    Rows,
    Task,
    as_numbers,
    as_words,
    ones,
    power,
    share_of,
    splat,
)
from relaxpy.backend.cpu.rules.powers import shares, weights
from relaxpy.backend.cpu.rules.transpose import strip_of, turned
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, Program, int64
from relaxpy.tir.programs.vectors import fold, joined, lanes_of, strips, vectorise
from relaxpy.tir.recognise.contraction import Operand
from relaxpy.tir.recognise.stages import Combiner
from relaxpy.tir.tvm import tirx

REGISTERS = 2
"""The most registers of lanes per task."""

BLOCK_TILES = 4
"""Tiles of keys per block. With 32 keys and heads of 64, the memory of a task (queries, scores, sums, converted keys
and values) is 36 KiB: less than an L1 cache of 48 KiB."""
ROUNDED_BLOCK_TILES = 8
"""The same where factors are words. With 64 keys and heads of 64, the memory of a task is 28 KiB: less than an L1 cache
of 32 KiB."""

_MOST = Combiner("max", tirx.const(0, "uint16"))


@dataclass(frozen=True, eq=False)
class _Block:
    """A block of keys that are processed together."""

    start: Expr
    count: Expr
    keys: Rows
    values: Rows
    by_all: Expr
    """How many of its first keys all lanes see."""
    plain: Expr
    """How many of its first keys need no mask where values are weighted."""


@dataclass(frozen=True, eq=False)
class _Seen:
    """The keys that each lane sees."""

    first: Buffer
    number: Buffer
    """For each lane, as unsigned numbers: the first key, and the number of keys."""
    by_some: tuple[Expr, Expr]
    by_all: tuple[Expr, Expr]
    """The keys that all lanes see: the first, and the one after the last."""


class LanesProgram:
    """Writes the program of one task: the work on a block of keys once for each number of registers, the rest once."""

    def __init__(self, access: Access, task: Task, target: CpuTarget) -> None:
        self.access, self.task, self.form = access, task, access.form
        self.program = p = access.program
        self.lanes = lanes = target.lanes(32)
        self.strip = strip_of(lanes, 32)
        self.width = REGISTERS * lanes
        needed = loops.ceildiv(access.lanes - task.first, lanes)
        self.registers = p.let("registers", loops.minimum(needed, REGISTERS))
        """The number of registers that the task's lanes fill."""
        self.used = p.let("used_lanes", loops.simplify(self.registers * lanes))
        self.starts = [lanes * register for register in range(REGISTERS)]
        """The offset of each register in a row of lanes."""
        self.rounds = access.weighing.group > 1
        """Are powers rounded, and their exponents scaled?"""
        self.height = 8 if target.vector_registers >= 32 else 6
        """Rows of a tile. With two registers across and their factors, they use all of 16 registers."""
        self.block = (ROUNDED_BLOCK_TILES if self.rounds else BLOCK_TILES) * self.height
        self.depth, self.columns = self.form.depth, self.form.columns
        self.words = self.depth // access.scoring.group
        """The number of words of a query and of a key."""
        self.exponents = Exponents.of(self.form)
        self.scale = self.exponents.scale if self.rounds else None
        self.place = access.shared_place(task)
        self.queries_at, self.sums_at = 0, self.words * self.width
        self.scores_at = self.sums_at + self.columns * self.width
        self.keys_at = self.scores_at + self.block * self.width
        has_keys = access.is_narrow and access.scoring.group == 1
        self.values_at = self.keys_at + self.block * self.depth * has_keys
        values = self.block // access.weighing.group * self.columns
        size = self.values_at + values * access.is_narrow
        # One allocation: each costs as much as some dozen keys.
        self.scratch = p.allocate("scratch", size, "float32")
        self.top = p.allocate("top", self.width, "float32")
        self.totals = p.allocate("totals", self.width, "float32")
        self.decay = p.allocate("decay", self.width, "float32")

    def write(self) -> None:
        """Write the whole program, from the queries to the results."""
        p, access = self.program, self.access
        self._prefetch_results()
        self._pack_queries()
        for at in self.starts:
            p.store(self.top, at, splat(LOWEST, self.lanes), self.lanes)
            p.store(self.totals, at, splat(0.0, self.lanes), self.lanes)
        with p.loop("c", self.columns, rolled=True) as c:
            for at in self.starts:
                self._put(self.sums_at + c * self.width + at, splat(0.0, self.lanes))
        seen = self._seen() if self.form.seen is not None else None
        low, high = (int64(0), access.keys) if seen is None else seen.by_some
        number = loops.ceildiv(loops.maximum(high - low, 0), self.block)
        with p.loop("block", p.let("blocks", number)) as block:
            start = p.let("start", loops.simplify(low + block * self.block))
            count = p.let("count", loops.minimum(high - start, self.block))
            self._block(start, count, seen)
        self._finish()

    def _get(self, at: Expr | int) -> Expr:
        return loops.load(self.scratch, loops.simplify(at), self.lanes)

    def _put(self, at: Expr | int, value: Expr) -> None:
        self.program.store(self.scratch, loops.simplify(at), value, self.lanes)

    def _put_words(self, at: Expr | int, words: Expr) -> None:
        """Store one word, or a vector of them."""
        numbers = as_numbers(words)
        self.program.store(self.scratch, loops.simplify(at), numbers, lanes_of(words))

    # Before the keys

    def _pack_queries(self) -> None:
        """Transpose the words of the queries of all lanes."""
        p, access, query = self.program, self.access, self.form.query
        scoring = access.scoring
        if access.is_contiguous(query, "depth", self.lanes):
            with p.loop("register", self.registers) as register:
                first = p.let("first", loops.simplify(register * self.lanes))
                lines = [self._line(query, first + n) for n in range(self.lanes)]
                with p.loop("part", self.words // self.strip, rolled=True) as part:
                    at = p.let("at", loops.simplify(part * self.strip))
                    rows = [loops.simplify(line + at * scoring.group) for line in lines]
                    registers = scoring.right_strips(access.words(query), rows, self.strip)
                    for n, column in enumerate(turned(p, registers)):
                        self._put_words(self.queries_at + (at + n) * self.width + first, column)
            return
        stride = access.stride(query, "depth")
        with p.loop("lane", self.used, rolled=True) as lane:
            line = self._line(query, lane)
            with p.loop("d", self.words, rolled=True) as d:
                at = [line + (d * scoring.group + n) * stride for n in range(scoring.group)]
                factors = [loops.load(access.view(query.buffer), each) for each in at]
                word = scoring.left_joined(factors, [True] * scoring.group)
                self._put_words(self.queries_at + d * self.width + lane, word)

    def _prefetch_results(self) -> None:
        """Prefetch the cache lines of the results, which are stored all at once at the end."""
        p, access, out = self.program, self.access, self.form.out
        if loops.constant(access.stride(out, "column")) != 1:
            return
        with p.loop("lane", self.used, rolled=True) as lane:
            line = self._line(out, lane)
            for at in range(0, self.columns, access.line_numbers(out)):
                access.prefetch(out, line + at, writing=True)

    def _line(self, operand: Operand, lane: Expr | int) -> Expr:
        """The offset of a lane's numbers."""
        place = self.access.lane_place(self.task, lane)
        return self.program.let("line", self.access.offset(operand, place))

    def _seen(self) -> _Seen:
        """The keys that the lanes see."""
        p = self.program
        first = p.allocate("seen_from", self.width, "uint32")
        number = p.allocate("seen_number", self.width, "uint32")

        def note(lane: Expr, low: Expr, high: Expr) -> None:
            p.store(first, lane, low.astype("uint32"))
            p.store(number, lane, loops.maximum(high - low, 0).astype("uint32"))

        return _Seen(first, number, *self.access.seen_keys(self.task, self.used, note))

    # One block of keys

    def _block(self, start: Expr, count: Expr, seen: _Seen | None) -> None:
        p = self.program
        by_all = count
        if seen is not None:
            from_, to = seen.by_all
            before = loops.minimum(loops.maximum(to - start, 0), count)
            by_all = p.let("by_all", loops.select(start >= from_, before, 0))
        keys, values = self._keys(start, count), self._values(start, count)
        plain = by_all
        if self.rounds and seen is not None:
            plain = self._plain(count, by_all)
        block = _Block(start, count, keys, values, by_all, plain)
        starts = self.starts
        for registers in range(1, REGISTERS + 1):
            self.starts = starts[:registers]
            with p.when(loops.equals(self.registers, registers)):
                self._update(block, seen)
        if self.rounds and seen is not None:
            self._weigh_seen(block, seen)

    def _update(self, block: _Block, seen: _Seen | None) -> None:
        """Add a block to the totals and sums of the lanes in `starts`."""
        p = self.program
        top = p.allocate("block_top", self.width, "float32")
        for at in self.starts:
            old = splat(LOWEST, self.lanes) if self.rounds else loops.load(self.top, at, self.lanes)
            p.store(top, at, old, self.lanes)
        self._scores(block, seen, top)
        if self.access.has_own_scores:
            self._own_scores(block, seen, top)
        if self.rounds:
            self._rounded_softmax(block, top)
        else:
            self._softmax(block, top)
        self._weigh(block, seen)

    def _keys(self, start: Expr, count: Expr) -> Rows:
        """A block's rows of keys: in place, or widened."""
        key, scoring = self.form.key, self.access.scoring
        if scoring.group == 1:
            return self._rows(key, "depth", start, count, self.keys_at)
        line = self._row(key, start)
        step = self.access.stride(key, "key")
        return Rows(self.access.words(key), line, step, int64(scoring.group))

    def _values(self, start: Expr, count: Expr) -> Rows:
        """A block's rows of values: in place, widened, or pairs of them joined to words."""
        p, access, value = self.program, self.access, self.form.value
        if not self.rounds:
            return self._rows(value, "column", start, count, self.values_at)
        step, stride = access.stride(value, "key"), access.stride(value, "column")
        line = self._row(value, start)
        lanes = self.lanes if access.is_contiguous(value, "column", self.lanes) else 1
        with p.loop("pair", loops.ceildiv(count, 2), rolled=True) as pair:
            second = p.let("second", loops.simplify(pair * 2 + 1))
            rows = [
                p.let("row", loops.simplify(line + j * step))
                for j in (pair * 2, loops.minimum(second, count - 1))
            ]
            with p.loop("part", self.columns // lanes) as part:
                at = part * lanes
                factors = [
                    loops.load(access.words(value), loops.simplify(row + at * stride), lanes)
                    for row in rows
                ]
                words = access.weighing.right_joined(factors, [True, True])
                self._put_words(self.values_at + pair * self.columns + at, words)
        return Rows(self.scratch, int64(self.values_at), int64(self.columns), int64(1))

    def _plain(self, count: Expr, by_all: Expr) -> Expr:
        """How many of a block's first keys need no mask where values are weighted: all, if values are finite, since the
        power of a key that is not seen is nearly 0; an even number, if some need one."""
        p, lanes = self.program, self.lanes
        plain = p.allocate("plain", 1, "int64")
        p.store(plain, 0, count)
        with p.when(by_all < count):
            width = 2 * lanes
            bits = loops.broadcast(tirx.const(0x7FFF, "uint16"), width)
            largest = p.allocate("largest_bits", width, "uint16")
            p.store(largest, 0, loops.zero("uint16", width), width)
            words = p.let("words", loops.simplify(loops.ceildiv(count, 2) * self.columns))
            with p.loop("n", loops.ceildiv(words, lanes)) as n:
                exist = loops.first_lanes((words - n * lanes).astype("int32"), lanes)
                at = loops.simplify(self.values_at + n * lanes)
                read = loops.load(self.scratch, at, lanes, exist)
                own = as_words(tirx.Select(exist, read, splat(0.0, lanes)), self.access.weighing)
                own = tirx.reinterpret(f"uint16x{width}", own) & bits
                p.store(largest, 0, tirx.Max(loops.load(largest, 0, width), own), width)
            most = fold(p, loops.load(largest, 0, width), width, _MOST)
            with p.when(most >= tirx.const(0x7F80, "uint16")):
                p.store(plain, 0, loops.simplify(loops.floordiv(by_all, 2) * 2))
        return p.let("plain", loops.load(plain, 0))

    def _row(self, operand: Operand, key: Expr) -> Expr:
        """The offset of a key's numbers."""
        line = self.access.offset(operand, self.place) + key * self.access.stride(operand, "key")
        return self.program.let("line", loops.simplify(line))

    def _rows(self, operand: Operand, axis: str, start: Expr, count: Expr, copy_at: int) -> Rows:
        """The rows of a block, in place or copied as float32."""
        p, access = self.program, self.access
        step, stride = access.stride(operand, "key"), access.stride(operand, axis)
        line = self._row(operand, start)
        if not access.is_narrow:
            return Rows(access.view(operand.buffer), line, step, stride)
        size = self.depth if axis == "depth" else self.columns
        lanes = self.lanes if access.is_contiguous(operand, axis, self.lanes) else 1
        with p.loop("j", count, rolled=True) as j:
            source = p.let("source", line + j * step)
            with p.loop("part", size // lanes) as part:
                at = part * lanes
                value = access.read(operand.buffer, loops.simplify(source + at * stride), lanes)
                p.store(self.scratch, loops.simplify(copy_at + j * size + at), value, lanes)
        return Rows(self.scratch, int64(copy_at), int64(size), int64(1))

    def _scores(self, block: _Block, seen: _Seen | None, top: Buffer) -> None:
        """Store the scores of all lanes with the block's keys, and raise `top` to the largest; only the products, where
        each lane has a formula of its own. Whole tiles are computed: keys past the end repeat the last one."""
        p, keys, scoring = self.program, block.keys, self.access.scoring
        with p.loop("tile", loops.ceildiv(block.count, self.height)) as tile:
            first = p.let("first", tile * self.height)
            numbers, lines = list[Expr](), list[Expr]()
            for r in range(self.height):
                j = p.let("j", loops.minimum(first + r, block.count - 1))
                numbers.append(j)
                lines.append(p.let("line", loops.simplify(keys.start + j * keys.step)))
            with self._tile(self.height, scoring) as sums, p.loop("d", self.words) as d:
                if not self.access.is_narrow:
                    self._prefetch(keys, first + self.height, d)
                    self._prefetch(block.values, first, d)
                queries = self._named("query", self.queries_at + d * self.width, scoring)
                for r, line in enumerate(lines):
                    at = loops.simplify(line + d * keys.stride)
                    if scoring.group == 1:
                        word = loops.load(keys.buffer, at)
                    else:
                        word = tirx.reinterpret("int32", loops.load(keys.buffer, at, scoring.group))
                    sums.add(r, word, queries)
            if not self.access.has_own_scores:
                own = [block.start + j for j in numbers]
                is_seen = first + self.height <= block.by_all
                if seen is not None:
                    with p.when(is_seen):
                        self._score(sums, own, None, top)
                    with p.otherwise(is_seen):
                        self._score(sums, own, seen, top)
                else:
                    self._score(sums, own, None, top)
            sums.store(self.scratch, self.scores_at + first * self.width, self.width)

    def _score(self, sums: _Sums, keys: Sequence[Expr], seen: _Seen | None, top: Buffer) -> None:
        """Convert a tile of products to scores, and raise `top` to the largest."""
        p, lanes = self.program, self.lanes
        for at in self.starts:
            scores = [loops.load(top, at, lanes)]
            for row, key in zip(sums.rows, keys, strict=True):
                place = self.access.at_key(self.place, key)

                def element(lane: Expr, row: Buffer = row, at: int = at, place: Any = place) -> Any:
                    product = tirx.BufferLoad(row, [at + lane])
                    return tirx.BufferStore(row, self.access.score(product, place), [at + lane])

                score = loops.load(row, at, lanes)
                if self.scale is None:
                    stmt = vectorise(element, lanes)
                    assert stmt is not None, "lanes are neighbours in the products"
                    score = stmt.value
                if seen is not None:
                    mask = self._mask(seen, key, at)
                    score = tirx.Select(mask, score, splat(-float("inf"), lanes))
                p.store(row, at, score, lanes)
                scores.append(loops.load(row, at, lanes))
            while len(scores) > 1:
                pairs = zip(scores[::2], scores[1::2], strict=False)
                rest = scores[-1:] if len(scores) % 2 else []
                scores = [tirx.Max(a, b) for a, b in pairs] + rest
            p.store(top, at, scores[0], lanes)

    def _prefetch(self, rows: Rows, first: Expr, step: Expr) -> None:
        """Prefetch a part of a tile of rows that are needed soon: steps as many as a row has numbers cover the tile.
        Rows are far apart, so the processor does not predict them; all at once, they would keep the units waiting."""
        if loops.constant(rows.stride) != 1:
            return
        row = first + loops.floormod(step, self.height)
        at = loops.floordiv(step, self.height) * self.height
        self.program.prefetch(rows.buffer, loops.simplify(rows.start + row * rows.step + at))

    def _own_scores(self, block: _Block, seen: _Seen | None, top: Buffer) -> None:
        """Convert products to scores, and raise `top`, if each lane has a formula of its own: a bias per query, say."""
        p, access = self.program, self.access
        with p.loop("lane", self.used) as lane:
            place = access.lane_place(self.task, lane)
            with p.loop("j", block.count) as j:
                at = p.let("at", loops.simplify(self.scores_at + j * self.width + lane))
                key = loops.simplify(block.start + j)
                score = access.score(loops.load(self.scratch, at), access.at_key(place, key))
                if seen is not None:
                    lowest = splat(-float("inf"), 1)
                    score = tirx.Select(self._mask(seen, key, lane, 1), score, lowest)
                p.store(self.scratch, at, score)
                score = loops.load(self.scratch, at)
                p.store(top, lane, tirx.Max(loops.load(top, lane), score))

    def _mask(self, seen: _Seen, key: Expr, first: Expr | int, lanes: int | None = None) -> Expr:
        """The mask of the lanes from `first` on that see a key: a register of them, if their number is not given."""
        lanes = lanes or self.lanes
        from_, number = (loops.load(b, first, lanes) for b in (seen.first, seen.number))
        # One comparison tests both ends: before the first key, the unsigned difference is large.
        return loops.broadcast(key.astype("uint32"), lanes) - from_ < number

    def _softmax(self, block: _Block, top: Buffer) -> None:
        """The online-softmax update for one block, whose largest scores and earlier ones are in `top`: replace its
        scores by their exponentials, and update the total. Stores the factor by which the earlier sums shrink."""
        p, lanes = self.program, self.lanes
        total = p.allocate("block_total", self.width, "float32")
        for at in self.starts:
            new = p.let("new", loops.load(top, at, lanes))
            decay = p.let("shrink", power(loops.load(self.top, at, lanes) - new, lanes))
            p.store(self.decay, at, decay, lanes)
            p.store(self.top, at, new, lanes)
            p.store(total, at, loops.load(self.totals, at, lanes) * decay, lanes)
        with p.loop("j", block.count) as j:
            for at in self.starts:
                place = self.scores_at + j * self.width + at
                own = p.let("power", power(self._get(place) - loops.load(top, at, lanes), lanes))
                self._put(place, own)
                p.store(total, at, loops.load(total, at, lanes) + own, lanes)
        for at in self.starts:
            p.store(self.totals, at, loops.load(total, at, lanes), lanes)

    def _rounded_softmax(self, block: _Block, top: Buffer) -> None:
        """The same with powers that are rounded: those of two keys are joined to words, in the place of the scores."""
        p, lanes, count, weighing = self.program, self.lanes, block.count, self.access.weighing
        with p.when(loops.equals(loops.floormod(count, 2), 1)):
            for at in self.starts:
                self._put(self.scores_at + count * self.width + at, splat(-float("inf"), lanes))
        total = p.allocate("block_total", self.width, "float32")
        exponents = self.exponents
        for at in self.starts:
            old = p.let("old", loops.load(self.top, at, lanes))
            new = p.let("new", tirx.Max(old, exponents.top(loops.load(top, at, lanes))))
            decay = p.let("shrink", weights(p, exponents.shrinking(old, new)))
            p.store(self.decay, at, decay, lanes)
            p.store(self.top, at, new, lanes)
            p.store(total, at, loops.load(self.totals, at, lanes) * decay, lanes)
        with p.loop("pair", loops.ceildiv(count, 2)) as pair:
            for at in self.starts:
                both = list[Expr]()
                for n in range(2):
                    place = self.scores_at + (pair * 2 + n) * self.width + at
                    largest = loops.load(self.top, at, lanes)
                    exponent = exponents.exponent(self._get(place), largest)
                    both.append(p.let("power", weights(p, exponent)))
                order = [tirx.IntImm("int32", n // 2 + n % 2 * lanes) for n in range(2 * lanes)]
                words = tirx.Shuffle([narrowed(*both)], order)
                words = tirx.reinterpret(f"int32x{lanes}", words)
                words = p.let("words", words)
                self._put_words(self.scores_at + pair * self.width + at, words)
                added = weighing.add_product(loops.load(total, at, lanes), words, ones(weighing))
                p.store(total, at, added, lanes)
        for at in self.starts:
            p.store(self.totals, at, loops.load(total, at, lanes), lanes)

    def _weigh(self, block: _Block, seen: _Seen | None) -> None:
        """Add the block's values, weighted by their exponentials, to the sums."""
        p = self.program
        whole, rest = divmod(self.columns, self.height)
        with p.loop("columns", whole, rolled=True) as n:
            first = p.let("first_column", n * self.height)
            self._weigh_tile(block, seen, first, self.height)
        if rest:
            self._weigh_tile(block, seen, int64(whole * self.height), rest)

    def _weigh_tile(self, block: _Block, seen: _Seen | None, first: Expr, rows: int) -> None:
        """The same for some contiguous columns."""
        p, values, weighing = self.program, block.values, self.access.weighing
        at_sums = p.let("at_sums", loops.simplify(self.sums_at + first * self.width))

        def before(r: int, at: int) -> Expr:
            decay = loops.load(self.decay, at, self.lanes)
            return self._get(at_sums + r * self.width + at) * decay

        origin = p.let("origin", loops.simplify(values.start + first * values.stride))

        def add(sums: _Sums, row: Expr, masks: Sequence[Expr] | None = None) -> None:
            line = p.let("line", loops.simplify(origin + row * values.step))
            powers = self._named("power", self.scores_at + row * self.width, weighing)
            for r in range(rows):
                number = loops.load(values.buffer, loops.simplify(line + r * values.stride))
                sums.add(r, as_words(number, weighing), powers, masks)

        with self._tile(rows, weighing, before) as sums:
            with p.loop("j", loops.ceildiv(block.plain, weighing.group)) as j:
                add(sums, j)
            if seen is not None and not self.rounds:
                with p.loop("j", p.let("masked", loops.simplify(block.count - block.plain))) as j:
                    key = p.let("masked_key", block.plain + j)
                    masks = [self._mask(seen, block.start + key, at) for at in self.starts]
                    add(sums, key, masks)
        sums.store(self.scratch, at_sums, self.width)

    def _weigh_seen(self, block: _Block, seen: _Seen) -> None:
        """Add rounded values that are not plain, for lanes that see them: rarely, and so one by one."""
        p, lanes = self.program, self.lanes

        def half(word: Expr, is_odd: Expr) -> Expr:
            """The first or the second number of words, as float32."""
            upper = word & loops.broadcast(tirx.const(-(1 << 16), "int32"), lanes)
            lower = word << loops.broadcast(tirx.const(16, "int32"), lanes)
            return tirx.reinterpret(f"float32x{lanes}", tirx.Select(is_odd, upper, lower))

        weighing, masked = self.access.weighing, loops.simplify(block.count - block.plain)
        with p.loop("j", masked) as j, p.loop("register", self.registers) as register:
            key, first = p.let("key", block.plain + j), p.let("first", register * lanes)
            pair = p.let("pair", loops.floordiv(key, 2))
            is_odd = loops.equals(loops.floormod(key, 2), 1)
            is_odd = p.let("is_odd", loops.broadcast(is_odd, lanes))
            words = as_words(self._get(self.scores_at + pair * self.width + first), weighing)
            powers = p.let("powers", half(words, is_odd))
            mask = p.let("mask", self._mask(seen, block.start + key, first))
            with p.loop("c", self.columns) as c:
                at = loops.simplify(self.values_at + pair * self.columns + c)
                word = loops.broadcast(loops.load(self.scratch, at), lanes)
                value = half(as_words(word, weighing), is_odd)
                to = self.sums_at + c * self.width + first
                self._put(to, tirx.Select(mask, self._get(to) + value * powers, self._get(to)))

    def _named(self, name: str, start: Expr, arithmetic: Arithmetic) -> list[Expr]:
        """Load a row of words of all lanes into registers."""
        return [
            self.program.let(name, as_words(self._get(start + at), arithmetic))
            for at in self.starts
        ]

    @contextmanager
    def _tile(
        self,
        rows: int,
        arithmetic: Arithmetic,
        before: Callable[[int, int], Expr] | None = None,
    ) -> Iterator[_Sums]:
        """Sums in registers: `rows` of all lanes, initialised with 0 or with the result of `before`."""
        p, lanes = self.program, self.lanes
        # One buffer per row: a single one would be too large for the stack, and so for registers.
        buffers = [p.allocate(f"sums{r}", self.width, "float32") for r in range(rows)]
        for r, buffer in enumerate(buffers):
            for at in self.starts:
                value = splat(0.0, lanes) if before is None else before(r, at)
                p.store(buffer, at, value, lanes)
        yield _Sums(p, buffers, self.starts, arithmetic)

    # After the keys

    def _finish(self) -> None:
        """Divide the sums by the totals, and store them."""
        p, access, out = self.program, self.access, self.form.out
        for at in self.starts:
            total = p.let("total", loops.load(self.totals, at, self.lanes))
            share = shares(total) if self.rounds else share_of(total, self.lanes)
            p.store(self.totals, at, share, self.lanes)
        if access.is_contiguous(out, "column", self.lanes):
            with p.loop("register", self.registers) as register:
                self._store_register(p.let("first", loops.simplify(register * self.lanes)))
            return
        stride = access.stride(out, "column")
        with p.loop("lane", self.used, rolled=True) as lane:
            place = access.lane_place(self.task, lane)
            line = p.let("line", access.offset(out, place))
            share = p.let("share", loops.load(self.totals, lane))
            with p.loop("c", self.columns, rolled=True) as c:
                sums = loops.load(self.scratch, self.sums_at + c * self.width + lane)
                quotient = p.let("quotient", sums * share)
                value = access.result(quotient, access.at_column(place, c))
                p.store(access.view(out.buffer), line + c * stride, value)

    def _store_register(self, first: Expr) -> None:
        """Transpose a register of lanes back and store its results. Lanes past the end repeat the last one and store
        the same values."""
        p, access, count = self.program, self.access, self.strip
        with p.loop("strip", self.lanes // count, rolled=True) as strip:
            lane = p.let("lane", loops.simplify(first + strip * count))
            places = [access.lane_place(self.task, lane + n) for n in range(count)]
            lines = [p.let("line", access.offset(self.form.out, place)) for place in places]
            share = p.let(
                "share", joined([loops.load(self.totals, lane, count)] * (self.lanes // count))
            )
            with p.loop("part", self.columns // self.lanes, rolled=True) as part:
                c = p.let("c", loops.simplify(part * self.lanes))
                at = p.let("at", loops.simplify(self.sums_at + c * self.width + lane))
                rows = [
                    loops.load(self.scratch, at + n * self.width, count) for n in range(self.lanes)
                ]
                columns = turned(p, [register * share for register in strips(rows, count)])
                if self.rounds and access.narrows_results:
                    self._store_narrowed(lines, columns, c)
                else:
                    for place, line, row in zip(places, lines, columns, strict=True):
                        access.store_quotients(row, self.lanes, place, line, c)

    def _store_narrowed(self, lines: Sequence[Expr], rows: Sequence[Expr], column: Expr) -> None:
        """Store rows of quotients from a column on, rounded two at a time."""
        p, lanes, out = self.program, self.lanes, self.access.words(self.form.out)
        for n in range(0, len(rows), 2):
            both = p.let("rows", narrowed(rows[n], rows[n + 1]))
            for half in range(2):
                order = [tirx.IntImm("int32", half * lanes + lane) for lane in range(lanes)]
                to = loops.simplify(lines[n + half] + column)
                p.store(out, to, tirx.Shuffle([both], order), lanes)


@dataclass(frozen=True, eq=False)
class _Sums:
    """A tile of sums in registers."""

    program: Program
    rows: Sequence[Buffer]
    starts: Sequence[int]
    arithmetic: Arithmetic

    def add(
        self, row: int, word: Expr, vectors: Sequence[Expr], masks: Sequence[Expr] | None = None
    ) -> None:
        """Add the products of a word and each of the vectors, in the lanes of the masks."""
        lanes = self.arithmetic.lanes
        number = loops.broadcast(self.program.let("number", word), lanes)
        for n, (at, vector) in enumerate(zip(self.starts, vectors, strict=True)):
            old = loops.load(self.rows[row], at, lanes)
            new = self.arithmetic.add_product(old, number, vector)
            if masks is not None:
                new = tirx.Select(masks[n], new, old)
            self.program.store(self.rows[row], at, new, lanes)

    def store(self, buffer: Buffer, start: Expr, step: int) -> None:
        """Store the rows from an offset on, each at a distance from the one before."""
        lanes = self.arithmetic.lanes
        for r, row in enumerate(self.rows):
            for at in self.starts:
                value = loops.load(row, at, lanes)
                place = loops.simplify(start + r * step + at)
                self.program.store(buffer, place, value, lanes)
