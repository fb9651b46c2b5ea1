"""Attention with vectors across lanes: for many lanes that share a key head.

Lanes are the innermost dimension of all arrays (queries, transposed once; scores; sums). So no sum runs across a
register, and keys and values are read in place, one number at a time for all lanes:

    scores[j, lanes] = sum over d of key[j, d] * query[d, lanes]       tiles of 8 keys, in registers
    sums[c, lanes] += over j of value[j, c] * powers[j, lanes]         tiles of 8 columns, in registers

Blocks of keys that no lane sees are skipped; in those that only some lanes see, a key that is not seen takes no part in
any sum (0 times a value that is infinite or NaN would). Narrow floats are converted a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from relaxpy.backend.cpu.rules.attention_access import (
    LOWEST,
    Access,
    Rows,
    Task,
    power,
    share_of,
    splat,
)
from relaxpy.backend.cpu.rules.transpose import strip_of, turned
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.forms.contraction import Operand
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer import loops
from relaxpy.tir.writer.loops import Buffer, Expr, Program, int64
from relaxpy.tir.writer.vectors import joined, strips, vectorise

REGISTERS = 2
"""The most registers of lanes per task."""

BLOCK_TILES = 4
"""Tiles of keys per block. With 32 keys and heads of 64, the memory of a task (queries, scores, sums, converted keys
and values) is 36 KiB: less than an L1 cache of 48 KiB."""


@dataclass(frozen=True, eq=False)
class _Block:
    """A block of keys that are processed together, and which of them the lanes see."""

    start: Expr
    count: Expr
    keys: Rows
    values: Rows


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
        self.height = 8 if target.vector_registers >= 32 else 6
        """Rows of a tile. With two registers across and their factors, they use all of 16 registers."""
        self.block = BLOCK_TILES * self.height
        self.depth, self.columns = self.form.depth, self.form.columns
        self.place = access.shared_place(task)
        self.queries_at, self.sums_at = 0, self.depth * self.width
        self.scores_at = self.sums_at + self.columns * self.width
        self.keys_at = self.scores_at + self.block * self.width
        self.values_at = self.keys_at + self.block * self.depth * access.is_narrow
        size = self.values_at + self.block * self.columns * access.is_narrow
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

    # Before the keys

    def _pack_queries(self) -> None:
        """Transpose the queries of all lanes."""
        p, access, query = self.program, self.access, self.form.query
        if access.is_contiguous(query, "depth", self.lanes):
            with p.loop("register", self.registers) as register:
                first = p.let("first", loops.simplify(register * self.lanes))
                lines = [self._line(query, first + n) for n in range(self.lanes)]
                with p.loop("part", self.depth // self.strip, rolled=True) as part:
                    at = p.let("at", loops.simplify(part * self.strip))
                    rows = [loops.simplify(line + at) for line in lines]
                    registers = access.read_strips(query, rows, self.strip)
                    for n, column in enumerate(turned(p, registers)):
                        self._put(self.queries_at + (at + n) * self.width + first, column)
            return
        stride = access.stride(query, "depth")
        with p.loop("lane", self.used, rolled=True) as lane:
            line = self._line(query, lane)
            with p.loop("d", self.depth, rolled=True) as d:
                value = access.read(query.buffer, line + d * stride)
                p.store(self.scratch, self.queries_at + d * self.width + lane, value)

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
        p, form = self.program, self.form
        keys = self._rows(form.key, "depth", start, count, self.keys_at)
        values = self._rows(form.value, "column", start, count, self.values_at)
        block = _Block(start, count, keys, values)
        starts = self.starts
        for registers in range(1, REGISTERS + 1):
            self.starts = starts[:registers]
            with p.when(loops.equals(self.registers, registers)):
                self._update(block, seen)

    def _update(self, block: _Block, seen: _Seen | None) -> None:
        """Add a block to the totals and sums of the lanes in `starts`."""
        p = self.program
        top = p.allocate("block_top", self.width, "float32")
        for at in self.starts:
            p.store(top, at, loops.load(self.top, at, self.lanes), self.lanes)
        self._scores(block, seen, top)
        if self.access.has_own_scores:
            self._own_scores(block, seen, top)
        self._softmax(block, top)
        self._weigh(block, seen)

    def _rows(self, operand: Operand, axis: str, start: Expr, count: Expr, copy_at: int) -> Rows:
        """The rows of a block, in place or copied as float32."""
        p, access = self.program, self.access
        step, stride = access.stride(operand, "key"), access.stride(operand, axis)
        line = access.offset(operand, self.place) + start * step
        line = p.let("line", loops.simplify(line))
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
        p, keys = self.program, block.keys
        with p.loop("tile", loops.ceildiv(block.count, self.height)) as tile:
            first = p.let("first", tile * self.height)
            numbers, lines = list[Expr](), list[Expr]()
            for r in range(self.height):
                j = p.let("j", loops.minimum(first + r, block.count - 1))
                numbers.append(j)
                lines.append(p.let("line", loops.simplify(keys.start + j * keys.step)))
            with self._tile(self.height) as sums, p.loop("d", self.depth) as d:
                if not self.access.is_narrow:
                    self._prefetch(keys, first + self.height, d)
                    self._prefetch(block.values, first, d)
                queries = self._named("query", self.queries_at + d * self.width)
                for r, line in enumerate(lines):
                    at = loops.simplify(line + d * keys.stride)
                    sums.add(r, loops.load(keys.buffer, at), queries)
            if not self.access.has_own_scores:
                self._score(sums, [block.start + j for j in numbers], seen, top)
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

    def _weigh(self, block: _Block, seen: _Seen | None) -> None:
        """Add the block's values, weighted by their exponentials, to the sums."""
        p = self.program
        masked_from = block.count
        if seen is not None:
            from_, to = seen.by_all
            by_all = loops.minimum(loops.maximum(to - block.start, 0), block.count)
            masked_from = p.let("by_all", loops.select(block.start >= from_, by_all, 0))
        whole, rest = divmod(self.columns, self.height)
        with p.loop("columns", whole, rolled=True) as n:
            first = p.let("first_column", n * self.height)
            self._weigh_tile(block, seen, masked_from, first, self.height)
        if rest:
            self._weigh_tile(block, seen, masked_from, int64(whole * self.height), rest)

    def _weigh_tile(
        self, block: _Block, seen: _Seen | None, masked_from: Expr, first: Expr, rows: int
    ) -> None:
        """The same for some contiguous columns. All lanes see the keys before `masked_from`."""
        p, values = self.program, block.values
        at_sums = p.let("at_sums", loops.simplify(self.sums_at + first * self.width))

        def before(r: int, at: int) -> Expr:
            decay = loops.load(self.decay, at, self.lanes)
            return self._get(at_sums + r * self.width + at) * decay

        origin = p.let("origin", loops.simplify(values.start + first * values.stride))

        def add(sums: _Sums, j: Expr, seen: _Seen | None) -> None:
            line = p.let("line", loops.simplify(origin + j * values.step))
            powers = self._named("power", self.scores_at + j * self.width)
            masks = None
            if seen is not None:
                masks = [self._mask(seen, block.start + j, at) for at in self.starts]
            for r in range(rows):
                at = loops.simplify(line + r * values.stride)
                sums.add(r, loops.load(values.buffer, at), powers, masks)

        with self._tile(rows, before) as sums:
            with p.loop("j", masked_from) as j:
                add(sums, j, None)
            if seen is not None:
                with p.loop("j", p.let("masked", loops.simplify(block.count - masked_from))) as j:
                    add(sums, p.let("masked_key", masked_from + j), seen)
        sums.store(self.scratch, at_sums, self.width)

    def _named(self, name: str, start: Expr) -> list[Expr]:
        """Load a row of all lanes into registers."""
        return [self.program.let(name, self._get(start + at)) for at in self.starts]

    @contextmanager
    def _tile(self, rows: int, before: Callable[[int, int], Expr] | None = None) -> Iterator[_Sums]:
        """Sums in registers: `rows` of all lanes, initialised with 0 or with the result of `before`."""
        p, lanes = self.program, self.lanes
        # One buffer per row: a single one would be too large for the stack, and so for registers.
        buffers = [p.allocate(f"sums{r}", self.width, "float32") for r in range(rows)]
        for r, buffer in enumerate(buffers):
            for at in self.starts:
                value = splat(0.0, lanes) if before is None else before(r, at)
                p.store(buffer, at, value, lanes)
        yield _Sums(p, buffers, self.starts, lanes)

    # After the keys

    def _finish(self) -> None:
        """Divide the sums by the totals, and store them."""
        p, access, out = self.program, self.access, self.form.out
        for at in self.starts:
            total = p.let("total", loops.load(self.totals, at, self.lanes))
            p.store(self.totals, at, share_of(total, self.lanes), self.lanes)
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
                for place, line, row in zip(places, lines, columns, strict=True):
                    access.store_quotients(row, self.lanes, place, line, c)


@dataclass(frozen=True, eq=False)
class _Sums:
    """A tile of sums in registers."""

    program: Program
    rows: Sequence[Buffer]
    starts: Sequence[int]
    lanes: int

    def add(
        self, row: int, factor: Expr, vectors: Sequence[Expr], masks: Sequence[Expr] | None = None
    ) -> None:
        """Add a number times each of the vectors, in the lanes of the masks."""
        number = loops.broadcast(self.program.let("number", factor), self.lanes)
        for n, (at, vector) in enumerate(zip(self.starts, vectors, strict=True)):
            old = loops.load(self.rows[row], at, self.lanes)
            new = old + number * vector
            if masks is not None:
                new = tirx.Select(masks[n], new, old)
            self.program.store(self.rows[row], at, new, self.lanes)

    def store(self, buffer: Buffer, start: Expr, step: int) -> None:
        """Store the rows from an offset on, each at a distance from the one before."""
        for r, row in enumerate(self.rows):
            for at in self.starts:
                value = loops.load(row, at, self.lanes)
                place = loops.simplify(start + r * step + at)
                self.program.store(buffer, place, value, self.lanes)
