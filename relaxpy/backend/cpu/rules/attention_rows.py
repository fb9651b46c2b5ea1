"""Attention with vectors along heads' widths: for one query, or few, whose key head few heads share.

A task computes one query for all heads that share a key head: its lanes. Keys and values are read once, in order, which
takes most of the time. The products of as many pairs of lane and key as a register has lanes are summed across
registers together, so that their scores form one vector.
"""

from __future__ import annotations

from collections.abc import Iterator

from relaxpy.backend.cpu.rules.attention_access import LOWEST, Access, Task, power, share_of, splat
from relaxpy.backend.cpu.rules.transpose import summed
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, int64
from relaxpy.tir.programs.vectors import fold, vector_loop
from relaxpy.tir.recognise.contraction import Operand, substitute
from relaxpy.tir.recognise.stages import Combiner
from relaxpy.tir.tvm import tirx

BLOCK_VECTORS = 8
"""Vectors of keys per block."""
AHEAD_LEVEL = 2
"""The cache into which values and keys are prefetched. Of the first level, the lines that a core can wait for are few:
on Emerald Rapids, for keys and values that are in no cache, that took a tenth longer."""

_MAX = Combiner("max", tirx.FloatImm("float32", LOWEST))
_ADD = Combiner("add", tirx.FloatImm("float32", 0.0))


def has_row_program(access: Access, lanes: int) -> bool:
    """Are all factors and results contiguous and a whole number of vectors wide, and do the heads of one query see the
    same keys?"""
    form = access.form
    accesses = (
        (form.query, "depth"), (form.key, "depth"), (form.value, "column"), (form.out, "column"),
    )  # fmt: skip
    return access.heads_see_alike and all(
        access.is_contiguous(o, axis, lanes) for o, axis in accesses
    )


class RowWriter:
    """The base of the programs of one task: the places of its heads, its blocks of keys, and its memory."""

    scratch: Buffer
    """One allocation: each costs as much as some dozen keys."""

    def __init__(self, access: Access, task: Task, target: CpuTarget) -> None:
        self.access, self.task, self.form = access, task, access.form
        self.program, self.lanes = access.program, target.lanes(32)
        self.heads = 1 << (access.sharing - 1).bit_length()
        """Heads that share the key head, rounded up to a power of two; missing ones repeat the last."""
        self.depth, self.columns = self.form.depth, self.form.columns

    def blocks(self, size: int) -> Iterator[tuple[Expr, Expr, Expr, Expr]]:
        """The loop over blocks of so many keys: yields the first key of a block, the number of its keys, and the
        offsets of the key head's keys and values."""
        p, access, form = self.program, self.access, self.form
        place, low, high = self._place(0), int64(0), access.keys
        if form.seen is not None:
            ends = (form.seen.low, form.seen.high)
            low, high = (p.let("end", substitute(end, place)) for end in ends)
        key = p.let("key_line", access.offset(form.key, place))
        value = p.let("value_line", access.offset(form.value, place))
        number = loops.ceildiv(loops.maximum(high - low, 0), size)
        with p.loop("block", p.let("blocks", number)) as block:
            start = p.let("start", loops.simplify(low + block * size))
            yield start, p.let("count", loops.minimum(high - start, size)), key, value

    def _place(self, head: Expr | int) -> dict[Expr, Expr]:
        """The values of the axes for a head; missing heads are the last one."""
        return self.access.lane_place(self.task, loops.minimum(head, self.access.sharing - 1))

    def _get(self, at: Expr | int) -> Expr:
        return loops.load(self.scratch, loops.simplify(at), self.lanes)

    def _put(self, at: Expr | int, value: Expr) -> None:
        self.program.store(self.scratch, loops.simplify(at), value, self.lanes)

    def _at(self, operand: Operand, line: Expr, start: Expr) -> Expr:
        """The offset of a block's numbers."""
        step = self.access.stride(operand, "key")
        return self.program.let("line", loops.simplify(line + start * step))


class RowProgram(RowWriter):
    """Writes the program of one task."""

    def __init__(self, access: Access, task: Task, target: CpuTarget) -> None:
        super().__init__(access, task, target)
        p, lanes = self.program, self.lanes
        self.keys_a_tile = max(1, lanes // self.heads)
        self.parts = max(1, target.vector_registers // 2 // self.heads)
        """Vectors of columns that are summed at a time: half of the registers hold sums."""
        self.block = BLOCK_VECTORS * lanes
        self.queries_at, self.sums_at = 0, self.heads * self.depth
        self.scores_at = self.sums_at + self.heads * self.columns
        size = self.scores_at + self.heads * self.block
        self.scratch = p.allocate("scratch", size, "float32")
        self.top = p.allocate("top", self.heads, "float32")
        self.totals = p.allocate("totals", self.heads * lanes, "float32")

    def write(self) -> None:
        """Write the whole program, from the queries to the results."""
        p, access, form = self.program, self.access, self.form
        with p.loop("head", self.heads) as n:
            line = p.let("line", access.offset(form.query, self._place(n)))
            for at in range(0, self.depth, self.lanes):
                value = access.read(form.query.buffer, line + at, self.lanes)
                self._put(self.queries_at + n * self.depth + at, value)
            for at in range(0, self.columns, self.lanes):
                self._put(self.sums_at + n * self.columns + at, splat(0.0, self.lanes))
            p.store(self.top, n, tirx.FloatImm("float32", LOWEST))
            p.store(self.totals, n * self.lanes, splat(0.0, self.lanes), self.lanes)
        for start, count, key, value in self.blocks(self.block):
            values = self._at(form.value, value, start)
            self._products(self._at(form.key, key, start), values, count)
            with p.loop("head", self.heads) as n:
                self._scores(n, start, count)
                self._softmax(n, count)
            following = self._at(form.key, key, start + self.block)
            for first in range(0, self.columns, self.parts * self.lanes):
                self._weigh(first, values, following, count)
        with p.loop("head", self.heads) as n:
            self._finish(n)

    def _products(self, line: Expr, values: Expr, count: Expr) -> None:
        """Compute the products of the queries with the block's keys, stored in the memory of the scores. Whole tiles of
        keys are computed; keys past the end repeat the last one. Prefetches the block's values."""
        p, access, key, lanes = self.program, self.access, self.form.key, self.lanes
        step, keys = access.stride(key, "key"), self.keys_a_tile
        with p.loop("tile", loops.ceildiv(count, keys)) as tile:
            first = p.let("first", tile * keys)
            lines: list[Expr] = []
            for n in range(keys):
                j = loops.minimum(first + n, count - 1)
                lines.append(p.let("line", loops.simplify(line + j * step)))
            sums = [p.allocate("product", lanes, "float32") for _ in range(self.heads * keys)]
            for buffer in sums:
                p.store(buffer, 0, splat(0.0, lanes), lanes)
            with p.loop("part", self.depth // lanes) as part:
                at = p.let("at", part * lanes)
                self._prefetch(self.form.value, values, first, keys, part)
                rows = [p.let("key", access.read(key.buffer, start + at, lanes)) for start in lines]
                for n in range(self.heads):
                    query = p.let("query", self._get(self.queries_at + n * self.depth + at))
                    for buffer, row in zip(sums[n * keys :], rows, strict=False):
                        p.store(buffer, 0, loops.load(buffer, 0, lanes) + row * query, lanes)
            self._store_products(first, [loops.load(buffer, 0, lanes) for buffer in sums])

    def _prefetch(self, operand: Operand, line: Expr, first: Expr, number: int, part: Expr) -> None:
        """Prefetch a part of some rows, as wide as a register. Each of the parts that share a cache line prefetches it
        for a share of the rows."""
        step, numbers = self.access.stride(operand, "key"), self.access.line_numbers(operand)
        shares = min(numbers // self.lanes, number)
        share, line_part = loops.floormod(part, shares), loops.floordiv(part, shares)
        for n in range(number // shares):
            row = first + share * (number // shares) + n
            at = line + row * step + line_part * (shares * self.lanes)
            self.access.prefetch(operand, loops.simplify(at), level=AHEAD_LEVEL)

    def _store_products(self, first: Expr, sums: list[Expr]) -> None:
        """Sum the vectors across lanes, a register of them at a time, and store the results of each head."""
        p, lanes, keys = self.program, self.lanes, self.keys_a_tile
        for start in range(0, len(sums), lanes):
            total = summed(p, sums[start : start + lanes])
            for at in range(0, lanes, keys):
                head = (start + at) // keys
                place = loops.simplify(self.scores_at + head * self.block + first)
                part = [tirx.IntImm("int32", n) for n in range(at, at + keys)]
                own = total if keys == lanes else tirx.Shuffle([total], part)
                p.store(self.scratch, place, own, keys)

    def _scores(self, head: Expr, start: Expr, count: Expr) -> None:
        """Convert products to scores."""
        access, own = self.access, self._place(head)
        first = loops.simplify(self.scores_at + head * self.block)

        def element(j: Expr) -> tirx.BufferStore:
            place = access.at_key(own, start + j)
            value = access.score(tirx.BufferLoad(self.scratch, [first + j]), place)
            return tirx.BufferStore(self.scratch, value, [first + j])

        vector_loop(self.program, "j", count, self.lanes, element)

    def _softmax(self, head: Expr, count: Expr) -> None:
        """The online-softmax update for one block: replace its scores by their exponentials, and update the running
        maximum, the total and the sums so far."""
        p, lanes, first = self.program, self.lanes, self.scores_at + head * self.block
        vectors = p.let("vectors", loops.ceildiv(count, lanes))
        largest = p.allocate("largest", lanes, "float32")
        p.store(largest, 0, splat(LOWEST, lanes), lanes)
        with p.loop("vector", vectors) as n:
            at = p.let("at", n * lanes)
            exists = loops.first_lanes((count - at).astype("int32"), lanes)
            score = tirx.Select(exists, self._get(first + at), splat(-float("inf"), lanes))
            self._put(first + at, score)
            own = self._get(first + at)
            p.store(largest, 0, tirx.Max(loops.load(largest, 0, lanes), own), lanes)
        old = p.let("old", loops.load(self.top, head))
        new = p.let("new", tirx.Max(old, fold(p, loops.load(largest, 0, lanes), lanes, _MAX)))
        p.store(self.top, head, new)
        decay = p.let("decay", loops.broadcast(power(old - new, 1), lanes))
        for at in range(0, self.columns, lanes):
            place = self.sums_at + head * self.columns + at
            self._put(place, self._get(place) * decay)
        total = p.allocate("total", lanes, "float32")
        p.store(total, 0, loops.load(self.totals, head * lanes, lanes) * decay, lanes)
        with p.loop("vector", vectors) as n:
            at = p.let("at", n * lanes)
            distance = self._get(first + at) - loops.broadcast(new, lanes)
            own = p.let("power", power(distance, lanes))
            self._put(first + at, own)
            p.store(total, 0, loops.load(total, 0, lanes) + own, lanes)
        p.store(self.totals, head * lanes, loops.load(total, 0, lanes), lanes)

    def _weigh(self, first: int, line: Expr, following: Expr, count: Expr) -> None:
        """Add some columns of the block's values, weighted by their exponentials, to the sums. Prefetches the
        following keys."""
        p, access, value, lanes = self.program, self.access, self.form.value, self.lanes
        step = access.stride(value, "key")
        columns = range(first, min(first + self.parts * lanes, self.columns), lanes)
        places = [self.sums_at + n * self.columns + at for n in range(self.heads) for at in columns]
        sums = [p.allocate("sum", lanes, "float32") for _ in places]
        for buffer, place in zip(sums, places, strict=True):
            p.store(buffer, 0, self._get(place), lanes)
        with p.loop("j", count) as j:
            start = p.let("start", loops.simplify(line + j * step))
            ahead = loops.simplify(following + j * access.stride(self.form.key, "key"))
            for at in range(
                first, min(columns.stop, self.depth), access.line_numbers(self.form.key)
            ):
                access.prefetch(self.form.key, ahead + at, level=AHEAD_LEVEL)
            parts = [p.let("value", access.read(value.buffer, start + c, lanes)) for c in columns]
            for n in range(self.heads):
                at = loops.simplify(self.scores_at + n * self.block + j)
                own = loops.broadcast(p.let("power", loops.load(self.scratch, at)), lanes)
                for buffer, part in zip(sums[n * len(parts) :], parts, strict=False):
                    p.store(buffer, 0, loops.load(buffer, 0, lanes) + part * own, lanes)
        for buffer, place in zip(sums, places, strict=True):
            self._put(place, loops.load(buffer, 0, lanes))

    def _finish(self, head: Expr) -> None:
        """Divide the sums by their total, and store them."""
        p, access, lanes, place = self.program, self.access, self.lanes, self._place(head)
        total = fold(p, loops.load(self.totals, head * lanes, lanes), lanes, _ADD)
        share = p.let("share", loops.broadcast(share_of(p.let("total", total), 1), lanes))
        line = p.let("line", access.offset(self.form.out, place))
        for at in range(0, self.columns, lanes):
            quotients = self._get(self.sums_at + head * self.columns + at) * share
            access.store_quotients(quotients, lanes, place, line, int64(at))
