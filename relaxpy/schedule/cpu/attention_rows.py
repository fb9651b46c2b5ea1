"""Attention of one lane, with vectors along heads' widths: for few lanes that share a key head.

Keys and values are read once, in order, which is all that takes time here. The products of as many keys as a register
has lanes are summed across registers together, so that their scores come out as one vector.
"""

from __future__ import annotations

from relaxpy.schedule.cpu.attention_access import LOWEST, Access, Task, power, share_of, splat
from relaxpy.schedule.cpu.transpose import summed
from relaxpy.tir import loops
from relaxpy.tir._tvm import tirx
from relaxpy.tir.contraction import Operand, substitute
from relaxpy.tir.loops import Expr, int64
from relaxpy.tir.stages import Combiner
from relaxpy.tir.vectors import fold, vector_loop

BLOCK_VECTORS = 8
"""Vectors of keys in a block."""

SUM_VECTORS = 8
"""Vectors of columns that are summed at a time."""

_MAX = Combiner("max", tirx.FloatImm("float32", LOWEST))
_ADD = Combiner("add", tirx.FloatImm("float32", 0.0))


def has_row_program(access: Access, lanes: int) -> bool:
    """Do queries, keys, values and results fill whole vectors of neighbours?"""
    form = access.form
    return all(
        access.is_contiguous(operand, axis, lanes)
        for operand, axis in (
            (form.query, "depth"), (form.key, "depth"), (form.value, "column"), (form.out, "column")
        )
    )  # fmt: skip


class RowProgram:
    """Writes the program of one task."""

    def __init__(self, access: Access, task: Task, lanes: int) -> None:
        self.access, self.form = access, access.form
        self.program = p = access.program
        self.lanes, self.block = lanes, BLOCK_VECTORS * lanes
        self.depth, self.columns = self.form.depth, self.form.columns
        self.place = access.lane_place(task, 0)
        self.query = p.allocate("query", self.depth, "float32")
        self.sums = p.allocate("sums", self.columns, "float32")
        self.scores = p.allocate("scores", self.block, "float32")
        self.top = p.allocate("top", 1, "float32")
        self.totals = p.allocate("totals", lanes, "float32")

    def write(self) -> None:
        """Everything from the query to the result."""
        p, access, form = self.program, self.access, self.form
        line = p.let("line", access.offset(form.query, self.place))
        for at in range(0, self.depth, self.lanes):
            value = access.read(form.query.buffer, line + at, self.lanes)
            p.store(self.query, at, value, self.lanes)
        for at in range(0, self.columns, self.lanes):
            p.store(self.sums, at, splat(0.0, self.lanes), self.lanes)
        p.store(self.top, 0, tirx.FloatImm("float32", LOWEST))
        p.store(self.totals, 0, splat(0.0, self.lanes), self.lanes)
        low, high = int64(0), access.keys
        if form.seen is not None:
            ends = (form.seen.low, form.seen.high)
            low, high = (p.let("end", substitute(end, self.place)) for end in ends)
        key = p.let("key_line", access.offset(form.key, self.place))
        value = p.let("value_line", access.offset(form.value, self.place))
        number = loops.ceildiv(loops.maximum(high - low, 0), self.block)
        with p.loop("block", p.let("blocks", number)) as block:
            start = p.let("start", loops.simplify(low + block * self.block))
            count = p.let("count", loops.minimum(high - start, self.block))
            self._products(self._at(form.key, key, start), count)
            self._scores(start, count)
            self._softmax(count)
            self._weigh(self._at(form.value, value, start), count)
        self._finish()

    def _at(self, operand: Operand, line: Expr, start: Expr) -> Expr:
        """Where the numbers of a block begin."""
        step = self.access.stride(operand, "key")
        return self.program.let("line", loops.simplify(line + start * step))

    def _products(self, line: Expr, count: Expr) -> None:
        """The products of the query with the block's keys, in the place of scores; up to a whole vector of them, those
        behind the last key are its own."""
        p, access, key, lanes = self.program, self.access, self.form.key, self.lanes
        step = access.stride(key, "key")
        with p.loop("tile", loops.ceildiv(count, lanes)) as tile:
            first = p.let("first", tile * lanes)
            sums = [p.allocate("product", lanes, "float32") for _ in range(lanes)]
            lines: list[Expr] = []
            for n, buffer in enumerate(sums):
                j = loops.minimum(first + n, count - 1)
                lines.append(p.let("line", loops.simplify(line + j * step)))
                p.store(buffer, 0, splat(0.0, lanes), lanes)
            with p.loop("part", self.depth // lanes) as part:
                at = p.let("at", part * lanes)
                query = p.let("query", loops.load(self.query, at, lanes))
                for buffer, start in zip(sums, lines, strict=True):
                    product = access.read(key.buffer, start + at, lanes) * query
                    p.store(buffer, 0, loops.load(buffer, 0, lanes) + product, lanes)
            total = summed(p, [loops.load(buffer, 0, lanes) for buffer in sums])
            p.store(self.scores, first, total, lanes)

    def _scores(self, start: Expr, count: Expr) -> None:
        """Make scores of products."""
        access = self.access

        def element(j: Expr) -> tirx.BufferStore:
            place = access.at_key(self.place, start + j)
            value = access.score(tirx.BufferLoad(self.scores, [j]), place)
            return tirx.BufferStore(self.scores, value, [j])

        vector_loop(self.program, "j", count, self.lanes, element)

    def _softmax(self, count: Expr) -> None:
        """Scores of the block to powers; the largest score, the totals and the sums so far follow."""
        p, lanes = self.program, self.lanes
        vectors = p.let("vectors", loops.ceildiv(count, lanes))
        largest = p.allocate("largest", lanes, "float32")
        p.store(largest, 0, splat(LOWEST, lanes), lanes)
        with p.loop("vector", vectors) as n:
            at = p.let("at", n * lanes)
            exists = loops.first_lanes((count - at).astype("int32"), lanes)
            score = tirx.Select(
                exists, loops.load(self.scores, at, lanes), splat(-float("inf"), lanes)
            )
            p.store(self.scores, at, score, lanes)
            own = loops.load(self.scores, at, lanes)
            p.store(largest, 0, tirx.Max(loops.load(largest, 0, lanes), own), lanes)
        old = p.let("old", loops.load(self.top, 0))
        new = p.let("new", tirx.Max(old, fold(p, loops.load(largest, 0, lanes), lanes, _MAX)))
        p.store(self.top, 0, new)
        decay = p.let("decay", loops.broadcast(power(old - new, 1), lanes))
        for buffer, size in ((self.totals, lanes), (self.sums, self.columns)):
            for at in range(0, size, lanes):
                p.store(buffer, at, loops.load(buffer, at, lanes) * decay, lanes)
        with p.loop("vector", vectors) as n:
            at = p.let("at", n * lanes)
            score = loops.load(self.scores, at, lanes)
            own = p.let("power", power(score - loops.broadcast(new, lanes), lanes))
            p.store(self.scores, at, own, lanes)
            p.store(self.totals, 0, loops.load(self.totals, 0, lanes) + own, lanes)

    def _weigh(self, line: Expr, count: Expr) -> None:
        """Add the block's values by their powers to the sums."""
        p, access, value, lanes = self.program, self.access, self.form.value, self.lanes
        step = access.stride(value, "key")
        size = SUM_VECTORS * lanes
        for first in range(0, self.columns, size):
            parts = range(first, min(first + size, self.columns), lanes)
            sums = [p.allocate("sum", lanes, "float32") for _ in parts]
            for buffer, at in zip(sums, parts, strict=True):
                p.store(buffer, 0, loops.load(self.sums, at, lanes), lanes)
            with p.loop("j", count) as j:
                own = p.let("power", loops.broadcast(loops.load(self.scores, j), lanes))
                start = p.let("start", loops.simplify(line + j * step))
                for buffer, at in zip(sums, parts, strict=True):
                    product = access.read(value.buffer, start + at, lanes) * own
                    p.store(buffer, 0, loops.load(buffer, 0, lanes) + product, lanes)
            for buffer, at in zip(sums, parts, strict=True):
                p.store(self.sums, at, loops.load(buffer, 0, lanes), lanes)

    def _finish(self) -> None:
        """Divide the sums by their total, and store them."""
        p, access, lanes = self.program, self.access, self.lanes
        total = fold(p, loops.load(self.totals, 0, lanes), lanes, _ADD)
        share = p.let("share", loops.broadcast(share_of(p.let("total", total), 1), lanes))
        line = p.let("line", access.offset(self.form.out, self.place))
        for at in range(0, self.columns, lanes):
            quotients = loops.load(self.sums, at, lanes) * share
            access.store_quotients(quotients, lanes, self.place, line, int64(at))
