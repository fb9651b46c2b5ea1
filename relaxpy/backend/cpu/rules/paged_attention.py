"""Attention over a paged cache on CPUs: a task for each token and key head.

Applies to what `relaxpy.tir.forms.paged_attention` recognises, if the sizes of pages and heads are known and are whole
vectors, and scores are float32. A task computes all heads that share a key head (its *rows*), so that a key or value is
read from memory and converted to float32 once for all of them. Keys lie across lanes: a page's scores are whole
vectors, and no sum crosses lanes before the end. For each page, in the order of the sequence:

    scores = query @ keys of the page                       a tile of sums in registers
    new = max(top, max(scores)); decay = exp(top - new); top = new
    powers = exp(scores - top); totals = totals * decay + powers
    sums = sums * decay + powers @ values of the page       another tile

A row's operations and their order depend on its own sequence only. What a page has after the last key is never added,
since it may be anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu.rules.attention_access import LOWEST, power, share_of, splat
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.forms.paged_attention import PagedForm, paged_attention_of
from relaxpy.tir.forms.stages import Combiner
from relaxpy.tir.numerics import scalar
from relaxpy.tir.tvm import tirx
from relaxpy.tir.writer import loops
from relaxpy.tir.writer.elementary import value_written_out
from relaxpy.tir.writer.loops import Buffer, Expr, PrimFunc, Stmt, int64
from relaxpy.tir.writer.vectors import fold, vector_value

_MAX = Combiner("max", tirx.FloatImm("float32", LOWEST))
_ADD = Combiner("add", tirx.FloatImm("float32", 0.0))

LARGEST_TASK = 1 << 14
"""Numbers of queries, or of sums, that a task keeps: 64 KiB each."""


def paged_attention_program(func: PrimFunc, target: CpuTarget) -> Arrangement | None:
    """The function with its loops rewritten if it is paged attention, or None."""
    form = paged_attention_of(func) if target.kind == "llvm" else None
    if form is None or not _fits(form, target.lanes(32)):
        return None
    return Arrangement(lambda: loops.finished(func, _Program(form, target).body()))


def _fits(form: PagedForm, lanes: int) -> bool:
    """Are the sizes known, and whole vectors?"""
    heads, width = map(loops.constant, form.x.query.shape[1:])
    groups, _, size = map(loops.constant, form.x.key_pages.shape[1:])
    columns = loops.constant(form.out.shape[2])
    if not heads or not width or not groups or not size or not columns:
        return False
    if str(form.out.dtype) not in ("float32", "float16", "bfloat16"):
        return False
    rows = heads // groups
    whole = size % lanes == 0 and columns % lanes == 0 and heads % groups == 0
    return whole and rows * max(width, columns, size) <= LARGEST_TASK


class _Program:
    """Writes the whole program."""

    def __init__(self, form: PagedForm, target: CpuTarget) -> None:
        self.form, self.x = form, form.x
        self.program = p = loops.Program()
        self.lanes, self.registers = target.lanes(32), target.vector_registers
        sizes = [*form.x.query.shape[1:], *form.x.key_pages.shape[1:], form.out.shape[2]]
        heads, self.width, self.groups, _, self.size, self.columns = map(_known, sizes)
        self.rows = heads // self.groups
        self.heads = heads
        self.views = {b: p.flat_view(b) for b in (*form.x.given, form.out)}

    def body(self) -> Stmt:
        """The parallel loop over all tasks."""
        p = self.program
        tokens = self.form.out.shape[0]
        total = p.let("tasks", loops.simplify(tokens * self.groups))
        with p.loop("task", total, parallel=True) as task:
            self.token = p.let("token", loops.floordiv(task, self.groups))
            self.group = p.let("group", loops.floormod(task, self.groups))
            self.head = p.let("head", loops.simplify(self.group * self.rows))
            self._task()
        return p.body()

    def _read(self, buffer: Buffer, at: Expr, lanes: int = 1) -> Expr:
        """Numbers as float32."""
        value = loops.load(self.views[buffer], at, lanes)
        if str(buffer.dtype) == "float32":
            return value
        return value.astype("float32" if lanes == 1 else f"float32x{lanes}")

    def _integer(self, buffer: Buffer, at: Expr) -> Expr:
        return loops.load(self.views[buffer], at).astype("int64")

    def _task(self) -> None:
        p, lanes = self.program, self.lanes
        self.query = p.allocate("query", self.rows * self.width, "float32")
        self.scores = p.allocate("scores", self.rows * self.size, "float32")
        self.sums = p.allocate("sums", self.rows * self.columns, "float32")
        self.top = p.allocate("top", self.rows, "float32")
        self.decay = p.allocate("decay", self.rows, "float32")
        self.totals = p.allocate("totals", self.rows * lanes, "float32")
        line = p.let("line", (self.token * self.heads + self.head) * self.width)
        with p.loop("k", self.rows * self.width) as k:
            p.store(self.query, k, self._read(self.x.query, line + k))
        with p.loop("c", self.rows * self.columns // lanes) as c:
            p.store(self.sums, c * lanes, splat(0.0, lanes), lanes)
        with p.loop("row", self.rows) as row:
            p.store(self.top, row, tirx.FloatImm("float32", LOWEST))
            p.store(self.totals, row * lanes, splat(0.0, lanes), lanes)
        own = p.allocate("own", 1, "int64")
        p.store(own, 0, int64(-1))
        with p.loop("s", self.x.lengths.shape[0], about=4) as s:
            after = self._integer(self.x.starts, s) <= self.token
            before = self.token < self._integer(self.x.starts, s + 1)
            with p.when(loops.both(after, before)):
                p.store(own, 0, s)
        sequence = p.let("sequence", loops.load(own, 0))
        with p.when(loops.both(sequence >= 0, self.x.key_pages.shape[0] > int64(0))):
            self._sequence(sequence)
        with p.loop("row", self.rows) as row:
            self._finish(row)

    def _sequence(self, sequence: Expr) -> None:
        """All pages of a sequence, with the bounds that the program has."""
        p, x, size = self.program, self.x, self.size
        width = x.tables.shape[1]
        length = p.let("length", _between(self._integer(x.lengths, sequence), 0, width * size))
        left = p.let("left", self._integer(x.starts, sequence + 1) - self.token)
        place = p.let("place", _between(length - left, -1, length - 1))
        low = int64(0)
        if self.form.scoring.window:
            low = p.let("low", tirx.Max(place + 1 - self.form.scoring.window, int64(0)))
        high = p.let("high", place + 1) if self.form.scoring.causal else length
        first = p.let("first_page", loops.floordiv(low, size))
        last = loops.floordiv(high + (size - 1), size)
        row = p.let("row", sequence * width)
        with p.loop("step", p.let("count", tirx.Max(last - first, int64(0))), about=16) as step:
            page = p.let("page", first + step)
            start = p.let("start", tirx.Max(low - page * size, int64(0)))
            end = p.let("end", tirx.Min(high - page * size, int64(size)))
            following = p.let("following", tirx.Min(page + 1, width - 1))
            self._page(self._number(row + page), self._number(row + following), start, end)

    def _number(self, at: Expr) -> Expr:
        """The number of a page, clamped."""
        count = self.x.key_pages.shape[0]
        return self.program.let("number", _between(self._integer(self.x.tables, at), 0, count - 1))

    def _page(self, number: Expr, following: Expr, start: Expr, end: Expr) -> None:
        p, lanes = self.program, self.lanes
        place = p.let("place", number * self.groups + self.group)
        self.next = p.let("next", following * self.groups + self.group)
        vectors = self.size // lanes
        for rows in _parts(range(self.rows), self.registers // 2 // vectors):
            self._products(p.let("keys", place * (self.width * self.size)), rows)
        seen = [
            loops.lanes_between(*(_int32(x - n * lanes) for x in (start, end)), lanes)
            for n in range(vectors)
        ]
        with p.loop("row", self.rows) as row:
            self._softmax(row, p.let("scales", place * self.size), seen)
        values = p.let("values", place * (self.columns * self.size))
        width = self.registers // 2 // min(self.rows, 8)
        for columns in _parts(range(0, self.columns, lanes), width):
            for rows in _parts(range(self.rows), self.registers // 2 // len(columns)):
                self._weigh(values, rows, columns, start, end)

    def _products(self, keys: Expr, rows: Sequence[int]) -> None:
        """The products of some rows with all keys of a page."""
        p, lanes, vectors = self.program, self.lanes, self.size // self.lanes
        with p.scope():
            sums = [p.allocate("product", lanes, "float32") for _ in range(len(rows) * vectors)]
            for buffer in sums:
                p.store(buffer, 0, splat(0.0, lanes), lanes)
            with p.loop("k", self.width) as k:
                at = p.let("at", keys + k * self.size)
                own = [
                    p.let("key", self._read(self.x.key_pages, at + n * lanes, lanes))
                    for n in range(vectors)
                ]
                for n, row in enumerate(rows):
                    number = p.let("factor", loops.load(self.query, row * self.width + k))
                    factor = loops.broadcast(number, lanes)
                    for buffer, key in zip(sums[n * vectors :], own, strict=False):
                        p.store(buffer, 0, loops.load(buffer, 0, lanes) + key * factor, lanes)
            for n, row in enumerate(rows):
                for v in range(vectors):
                    value = loops.load(sums[n * vectors + v], 0, lanes)
                    p.store(self.scores, row * self.size + v * lanes, value, lanes)

    def _softmax(self, row: Expr, scales: Expr, seen: list[Expr]) -> None:
        """Replace the products of a row by the weights of the values, and update the running maximum and total."""
        p, x, lanes, scoring = self.program, self.x, self.lanes, self.form.scoring
        scale = scoring.scale if scoring.scale is not None else self.width**-0.5
        first = p.let("first", row * self.size)
        largest = p.allocate("largest", lanes, "float32")
        p.store(largest, 0, splat(LOWEST, lanes), lanes)
        for n, mask in enumerate(seen):
            score = loops.load(self.scores, first + n * lanes, lanes)
            if scoring.is_quantised:
                score = score * self._read(x.key_scales, scales + n * lanes, lanes)
            score = score * splat(scale, lanes)
            if scoring.soft_cap:
                score = _capped(p, score, scoring.soft_cap, lanes)
            score = tirx.Select(mask, score, splat(-float("inf"), lanes))
            p.store(self.scores, first + n * lanes, score, lanes)
            found = loops.load(self.scores, first + n * lanes, lanes)
            p.store(largest, 0, tirx.Max(loops.load(largest, 0, lanes), found), lanes)
        old = p.let("old", loops.load(self.top, row))
        new = p.let("new", tirx.Max(old, fold(p, loops.load(largest, 0, lanes), lanes, _MAX)))
        p.store(self.top, row, new)
        decay = p.let("decay", power(old - new, 1))
        p.store(self.decay, row, decay)
        total = p.allocate("total", lanes, "float32")
        before = loops.load(self.totals, row * lanes, lanes) * loops.broadcast(decay, lanes)
        p.store(total, 0, before, lanes)
        for n in range(len(seen)):
            distance = loops.load(self.scores, first + n * lanes, lanes) - loops.broadcast(
                new, lanes
            )
            own = p.let("power", power(distance, lanes))
            p.store(total, 0, loops.load(total, 0, lanes) + own, lanes)
            if scoring.is_quantised:
                own = own * self._read(x.value_scales, scales + n * lanes, lanes)
            p.store(self.scores, first + n * lanes, own, lanes)
        p.store(self.totals, row * lanes, loops.load(total, 0, lanes), lanes)

    def _weigh(
        self, values: Expr, rows: Sequence[int], columns: Sequence[int], start: Expr, end: Expr
    ) -> None:
        """Add some columns of a page's values to the sums of some rows."""
        p, lanes = self.program, self.lanes
        with p.scope():
            places = [(row, c) for row in rows for c in columns]
            sums = [p.allocate("sum", lanes, "float32") for _ in places]
            for buffer, (row, c) in zip(sums, places, strict=True):
                decay = loops.broadcast(loops.load(self.decay, row), lanes)
                old = loops.load(self.sums, row * self.columns + c, lanes)
                p.store(buffer, 0, old * decay, lanes)
            with p.loop("j", tirx.Max(end - start, int64(0)), about=self.size) as n:
                j = p.let("j", start + n)
                line = p.let("line", values + j * self.columns)
                own = [
                    p.let("value", self._read(self.x.value_pages, line + c, lanes)) for c in columns
                ]
                for r, row in enumerate(rows):
                    number = p.let("weight", loops.load(self.scores, row * self.size + j))
                    weight = loops.broadcast(number, lanes)
                    for buffer, value in zip(sums[r * len(own) :], own, strict=False):
                        p.store(buffer, 0, loops.load(buffer, 0, lanes) + value * weight, lanes)
            for buffer, (row, c) in zip(sums, places, strict=True):
                place = row * self.columns + c
                p.store(self.sums, place, loops.load(buffer, 0, lanes), lanes)

    def _finish(self, row: Expr) -> None:
        """Add the sink, divide the sums by their total, and store them."""
        p, lanes, out = self.program, self.lanes, self.form.out
        found = fold(p, loops.load(self.totals, row * lanes, lanes), lanes, _ADD)
        total = p.let("total", found)
        rescale = tirx.FloatImm("float32", 1.0)
        if self.form.scoring.has_sinks:
            sink = p.let("sink", self._read(self.x.sinks, self.head + row))
            old = p.let("old", loops.load(self.top, row))
            new = p.let("new", tirx.Max(old, sink))
            rescale = p.let("rescale", power(old - new, 1))
            # a row without keys has no sums, and no total but the sink's
            total = p.let("with_sink", total * rescale + power(sink - new, 1))
        share = p.let("share", share_of(total, 1) * rescale)
        line = p.let("line", (self.token * self.heads + self.head + row) * self.columns)
        with p.loop("c", self.columns // lanes) as part:
            c = p.let("c", part * lanes)
            value = loops.load(self.sums, row * self.columns + c, lanes)
            value = value * loops.broadcast(share, lanes)
            if str(out.dtype) != "float32":
                value = value.astype(f"{out.dtype}x{lanes}")
            p.store(self.views[out], line + c, value, lanes)


def _known(extent: Expr) -> int:
    value = loops.constant(extent)
    assert value is not None, "asked before"
    return value


def _parts(places: range, count: int) -> list[range]:
    """The places, that many at a time."""
    count = max(1, count)
    return [places[n : n + count] for n in range(0, len(places), count)]


def _between(value: Expr, low: Any, high: Any) -> Expr:
    """The value, clamped."""
    return tirx.Max(tirx.Min(value, int64(high)), int64(low))


def _int32(value: Expr) -> Expr:
    return value.astype("int32")


def _capped(p: loops.Program, score: Expr, cap: float, lanes: int) -> Expr:
    """The soft-capped scores."""
    kept = p.allocate("capped", lanes, "float32")
    p.store(kept, 0, score * splat(1.0 / cap, lanes), lanes)

    def element(lane: Expr) -> Expr:
        return value_written_out(scalar.tanh(tirx.BufferLoad(kept, [lane])))

    value = vector_value(element, lanes)
    assert value is not None, "tanh has vectors"
    return value * splat(cap, lanes)
