"""Attention over a paged cache on CPUs: a task for some tokens and a key head.

Applies to what `relaxpy.tir.recognise.paged_attention` recognises, if the sizes of pages and heads are known and are
whole vectors, and scores are float32. A task computes all heads that share a key head. It goes through the keys of its
tokens in *blocks* of some neighbouring pages (`relaxpy.backend.cpu.rules.paged_tile`), and through those in *segments*
of some blocks. Every segment has a softmax of its own, whose sums are merged with those of the segments before it.
Blocks and segments begin at multiples of their sizes in the sequence, so a row's operations and their order depend on
its own sequence only.

* Few rows (decoding) read the pages as they are.
* Many rows, tokens of the same sequence (prefill), share a copy of a block, in words as they are multiplied: float32,
  or pairs of bfloat16.
* If there are few tasks, the segments are tasks. The sums are merged in a second step, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.cpu import narrowing
from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.rules.attention_access import LOWEST, as_numbers, as_words, share_of, splat
from relaxpy.backend.cpu.rules.paged_bias import MOST_REACH, Biases
from relaxpy.backend.cpu.rules.paged_tile import (
    LOG2_E,
    Ahead,
    Block,
    Numbers,
    Products,
    Sizes,
    Tiles,
    Tiling,
    power,
)
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.lowering.definitions import with_definitions
from relaxpy.tir.numerics import scalar
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Buffer, Expr, PrimFunc, Stmt, int64
from relaxpy.tir.programs.vectors import fold
from relaxpy.tir.recognise.paged_attention import PagedForm, paged_attention_of
from relaxpy.tir.recognise.stages import Combiner
from relaxpy.tir.tvm import tirx

LARGEST_TASK = 1 << 14
"""Numbers of queries, or of sums, that a task keeps: 64 KiB each."""
ROWS = 64
"""Rows of a task with many tokens."""
MANY_ROWS = 24
"""Rows that share a copy of their keys and values: for fewer, it costs more than it saves."""
BLOCK, SEGMENT = 64, 512
"""Keys of a block and of a segment, if pages are not larger."""
FEW_TASKS = 32
"""Tasks below which segments are tasks, and which batches with many tokens are divided into."""
_ADD = Combiner("add", tirx.FloatImm("float32", 0.0))


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
    reach = 1 if form.x.bias is None else loops.constant(form.x.bias.shape[1])
    if reach is None or reach > MOST_REACH:
        return False
    rows = heads // groups
    whole = size % lanes == 0 and columns % lanes == 0 and heads % groups == 0
    return whole and rows * max(width, columns, size) <= LARGEST_TASK


@dataclass(eq=False)
class _Run:
    """Neighbouring tokens of a sequence, in the same task."""

    token: Expr
    end: Expr
    """The token after the last one."""
    length: Expr
    """Keys of the sequence."""
    shift: Expr
    """The place of a token in its sequence is its number plus this."""
    table: Expr
    """Where the row of the table begins."""
    base: Expr
    """The number of the first row among those of the task."""
    rows: Expr
    pages: tuple[Expr, Expr] = (int64(0), int64(0))
    """The pages that it needs: the first, and that after the last one."""


@dataclass(frozen=True, eq=False)
class _Pages:
    """The pages of a block, given their numbers in it."""

    exists: Callable[[Expr], Expr]
    """Is it one that the run needs?"""
    place: Callable[[Expr], Expr]
    """The number of the page and the task's key head among those of all pages."""
    following: Callable[[Expr], Expr]
    """That of the page of the next block."""
    size: int

    def scales(self, page: Expr) -> Expr:
        """Where its scales begin."""
        return self.place(page) * self.size


class _Program:
    """Writes the whole program."""

    def __init__(self, form: PagedForm, target: CpuTarget) -> None:
        self.form, self.x = form, form.x
        self.program = p = loops.Program()
        lanes = target.lanes(32)
        given = [*form.x.query.shape[1:], *form.x.key_pages.shape[1:], form.out.shape[2]]
        self.heads, width, self.groups, _, page, columns = map(_known, given)
        self.sizes = Sizes(
            self.heads // self.groups, width, columns, page, max(1, BLOCK // page), lanes,
            target.vector_registers,
        )  # fmt: skip
        self.blocks = max(1, SEGMENT // self.sizes.block)
        """Blocks of a segment."""
        largest = LARGEST_TASK // (self.sizes.rows * max(width, columns))
        self.most_tokens = max(1, min(ROWS // self.sizes.rows, largest))
        """Tokens of a task."""
        x = form.x
        integers = (x.starts, x.tables, x.lengths)
        self.views = {b: p.flat_view(b) for b in (x.query, *integers, form.out)}
        if x.sinks is not None:
            self.views[x.sinks] = p.flat_view(x.sinks)
        if x.lasts is not None:
            self.views[x.lasts] = p.flat_view(x.lasts)
        self.keys = Numbers(p, x.key_pages, lanes, page)
        self.values = Numbers(p, x.value_pages, lanes, columns)
        self.products = self._products(target)
        self.weighing = self._weighing(target)
        self.scales = None
        if x.key_scales is not None:
            made = [Numbers(p, b, lanes, lanes) for b in (x.key_scales, x.value_scales)]
            self.scales = made[0], made[1]
        self.tokens = form.out.shape[0]
        self.sequences = x.lengths.shape[0]
        self.table_width = x.tables.shape[1]

    def _products(self, target: CpuTarget) -> Products:
        """How queries and keys are multiplied: with the arithmetic of their types, if neighbours along the width are
        words, and keys fill pairs of vectors; the scale is that of the products then. Else they are widened, and
        queries scaled."""
        scoring, width = self.form.scoring, self.sizes.width
        scale = scoring.scale if scoring.scale is not None else width**-0.5
        self.scale = scale / scoring.soft_cap if scoring.soft_cap else scale * LOG2_E
        query, key = str(self.x.query.dtype), str(self.x.key_pages.dtype)
        own = Arithmetic.of(query, key, "float32", target)
        if own.group == 2 and width % 2 == 0 and self.keys.is_paired:
            self.query_words = self.program.flat_view(self.x.query, "uint16")
            return Products(own, width // 2, self.scale)
        return Products(_widened(target), width, None)

    def _weighing(self, target: CpuTarget) -> Arithmetic:
        """The arithmetic of weights and values: of words of two keys, if results are as narrow as values, and lines of
        these fill pairs of vectors."""
        dtype = str(self.x.value_pages.dtype)
        own = Arithmetic.of(dtype, dtype, "float32", target)
        is_rounded = str(self.form.out.dtype) == dtype and self.values.is_paired
        return own if own.group == 2 and is_rounded else _widened(target)

    def body(self) -> Stmt:
        """The whole program."""
        body = self.products.arithmetic.around(self._body())
        if self.weighing.group == 1:
            return body
        return with_definitions(narrowing.DEFINITION, self.weighing.around(body))

    def _body(self) -> Stmt:
        """The parallel loop over all tasks, and that which merges segments."""
        p = self.program
        rows = p.let("rows", loops.simplify(self.tokens * self.groups))
        self.can_split = self.groups < FEW_TASKS
        self.is_split: Expr | bool = False
        parts: Expr = int64(1)
        if self.can_split:
            self._allocate_parts()
            parts = p.let("parts", self._parts(rows))
            self.is_split = parts > 1
        span = tirx.Min(
            loops.floordiv(rows, FEW_TASKS),
            tirx.Div(self.tokens, tirx.Max(self.sequences, int64(1))),
        )
        span = p.let("span", _between(span, 1, self.most_tokens))
        if self.can_split:
            span = p.let("tokens_of_task", tirx.Select(self.is_split, int64(1), span))
        self.span, self.parts = span, parts
        blocks = p.let("blocks", _quotient(self.tokens + span - 1, span))
        total = p.let("tasks", blocks * self.groups * parts)
        with p.loop("task", total, parallel=True, about=self.tokens * self.groups) as task:
            # One from the front, one from the back: later tokens have more keys, so each thread has as many.
            half = p.let("half", task >> int64(1))
            number = tirx.Select(tirx.EQ(task & int64(1), int64(0)), half, total - 1 - half)
            number = p.let("number", number)
            self.part = p.let("part", _remainder(number, parts))
            number = p.let("place", _quotient(number, parts))
            self.group = p.let("group", _quotient(number, blocks))
            first = p.let("first", _remainder(number, blocks) * span)
            self._task(first, p.let("stop", tirx.Min(first + span, self.tokens)))
        if self.can_split:
            with (
                p.when(self.is_split),
                p.loop("row", rows, parallel=True, about=self.groups) as row,
            ):
                self._merge_parts(row)
        return p.body()

    # Segments as tasks

    @property
    def _line(self) -> int:
        """Numbers of a row's state in memory: its sums, top and total."""
        return self.sizes.columns + 2

    def _allocate_parts(self) -> None:
        """Memory for the state of all rows after each of their segments, if segments are tasks."""
        p = self.program
        tokens = loops.minimum(self.tokens, FEW_TASKS // self.groups)
        segments = loops.ceildiv(self.table_width * self.sizes.page, self._segment)
        size = loops.simplify(tokens * segments * (self.heads * self._line))
        self.memory = tirx.decl_buffer([size], "float32", "parts", scope="global", layout=None)
        p.add(tirx.AllocBuffer(self.memory))

    @property
    def _segment(self) -> int:
        """Keys of a segment."""
        return self.sizes.block * self.blocks

    def _parts(self, rows: Expr) -> Expr:
        """The number of segments of the longest sequence if they are tasks, else 1."""
        p = self.program
        longest = p.allocate("longest", 1, "int64")
        p.store(longest, 0, int64(0))
        has_memory = loops.both(rows < FEW_TASKS, self.tokens <= FEW_TASKS // self.groups)
        with p.when(has_memory), p.loop("s", self.sequences, about=4) as s:
            p.store(longest, 0, tirx.Max(loops.load(longest, 0), self._length(s)))
        segments = tirx.Div(loops.load(longest, 0) + (self._segment - 1), int64(self._segment))
        return tirx.Max(segments, int64(1))

    def _place(self, row: Expr, part: Expr, of_row: Expr | int) -> Expr:
        """Where the state of a row after a segment is; `row` counts tokens and key heads."""
        return ((row * self.parts + part) * self.sizes.rows + of_row) * self._line

    def _store_part(self, token: Expr) -> None:
        """Keep the state of a task's only token."""
        p, sizes, lanes, tiles = self.program, self.sizes, self.sizes.lanes, self.tiles
        row = p.let("row", token * self.groups + self.group)
        with p.loop("r", sizes.rows) as r:
            at = p.let("at", self._place(row, self.part, r))
            with p.loop("c", sizes.columns // lanes) as c:
                sums = loops.load(tiles.sums, r * sizes.columns + c * lanes, lanes)
                p.store(self.memory, at + c * lanes, sums, lanes)
            p.store(self.memory, at + sizes.columns, loops.load(tiles.tops, r))
            p.store(self.memory, at + (sizes.columns + 1), self._total(r))

    def _merge_parts(self, row: Expr) -> None:
        """Merge the segments of a token and key head, and store the result."""
        p, sizes = self.program, self.sizes
        self._allocate_results(sizes.rows)
        token = p.let("token", _quotient(row, int64(self.groups)))
        self.group = p.let("group", _remainder(row, int64(self.groups)))
        with p.loop("r", sizes.rows) as r:
            self._begin(r)
            with p.loop("part", self.parts, about=2) as part:
                at = p.let("at", self._place(row, part, r))
                top = p.let("own_top", loops.load(self.memory, at + sizes.columns))
                total = p.let("own_total", loops.load(self.memory, at + (sizes.columns + 1)))
                self._merge(r, self.memory, at, top, total)
            self._finish(token, r, r)

    # Tasks

    def _task(self, first: Expr, stop: Expr) -> None:
        """The tokens from `first` up to, not including, `stop`."""
        p, sizes = self.program, self.sizes
        rows = self.most_tokens * sizes.rows
        self.first = first
        # the last tile may have rows that there are not
        state = rows + sizes.most_rows
        scoring, products = self.form.scoring, self.products
        self.tiles = Tiles(
            p, sizes, scoring, self.keys, products, self.weighing, self.scales, state
        )
        self._allocate_results(rows)
        self.biases = None
        if self.x.bias is not None:
            self.biases = Biases(p, sizes, self.x.bias, self.group * sizes.rows)
        self.key_copy = self.value_copy = None
        if rows >= MANY_ROWS:
            self.key_copy = p.allocate("keys", products.words * sizes.block, "float32")
            lines = sizes.block // self.weighing.group
            self.value_copy = p.allocate("values", lines * sizes.columns, "float32")
        count = p.let("count", stop - first)
        with p.loop("t", count, about=1) as t:
            self._load_queries(t)
        with p.loop("row", count * sizes.rows, about=sizes.rows) as row:
            self.tiles.begin(row)
            self._begin(row)
        cursor = p.allocate("cursor", 1, "int64")
        p.store(cursor, 0, first)
        with p.loop("run", count, about=1):
            token = p.let("token", loops.load(cursor, 0))
            with p.when(token < stop):
                sequence, end = self._run_from(token, stop)
                is_any = loops.both(sequence >= 0, self.x.key_pages.shape[0] > int64(0))
                with p.when(is_any):
                    self._run(token, end, sequence)
                p.store(cursor, 0, end)
        if self.can_split:
            with p.when(self.is_split):
                self._store_part(first)
        with (
            p.otherwise(self.is_split),
            p.loop("t", count, about=1) as t,
            p.loop("r", sizes.rows) as r,
        ):
            self._finish(first + t, r, t * sizes.rows + r)

    def _load_queries(self, t: Expr) -> None:
        """The words of the queries of a token; if they are numbers, with the factor of its scores."""
        p, sizes, arithmetic = self.program, self.sizes, self.products.arithmetic
        token = (self.first + t) * self.heads + self.group * sizes.rows
        size = sizes.rows * self.products.words
        lanes = sizes.lanes if size % sizes.lanes == 0 else 1
        line, own = p.let("line", token * sizes.width), p.let("own", t * size)
        with p.loop("k", size // lanes) as k:
            at = line + k * (lanes * arithmetic.group)
            if arithmetic.group == 1:
                value = self._float(self.x.query, at, lanes) * splat(self.scale, lanes)
            else:
                kind = "int32" if lanes == 1 else f"int32x{lanes}"
                value = loops.load(self.query_words, at, lanes * arithmetic.group)
                value = as_numbers(tirx.reinterpret(kind, value))
            p.store(self.tiles.query, own + k * lanes, value, lanes)

    def _run_from(self, token: Expr, stop: Expr) -> tuple[Expr, Expr]:
        """The sequence of a token (the last one that has it; -1: none), and a token after it up to which all are in
        that sequence."""
        p = self.program
        own, end = p.allocate("own", 1, "int64"), p.allocate("end", 1, "int64")
        p.store(own, 0, int64(-1))
        p.store(end, 0, stop)
        with p.loop("s", self.sequences, about=4) as s:
            begin = p.let("begin", self._integer(self.x.starts, s))
            after = p.let("after", self._integer(self.x.starts, s + 1))
            with p.when(loops.both(begin <= token, token < after)):
                p.store(own, 0, s)
            for edge in (begin, after):
                with p.when(token < edge):
                    p.store(end, 0, tirx.Min(loops.load(end, 0), edge))
        return p.let("sequence", loops.load(own, 0)), p.let("end_of_run", loops.load(end, 0))

    def _length(self, sequence: Expr) -> Expr:
        """The number of keys of a sequence, at most as many as its table has."""
        room = self.table_width * self.sizes.page
        return _between(self._integer(self.x.lengths, sequence), 0, room)

    def _run(self, token: Expr, end: Expr, sequence: Expr) -> None:
        """All keys of neighbouring tokens of a sequence."""
        p, sizes = self.program, self.sizes
        length = p.let("length", self._length(sequence))
        after = p.let("after", self._integer(self.x.starts, sequence + 1))
        run = _Run(
            token, end, length, p.let("shift", length - after),
            p.let("table", sequence * self.table_width),
            p.let("base", (token - self.first) * sizes.rows),
            p.let("rows", (end - token) * sizes.rows),
        )  # fmt: skip
        low, high = self._bounds(run, token)[0], self._bounds(run, end - 1)[1]
        run.pages = (
            p.let("first_page", _part(low, sizes.page)),
            p.let("end_page", _part(high + (sizes.page - 1), sizes.page)),
        )
        first = p.let("first_block", _part(run.pages[0], sizes.pages))
        last = p.let("end_block", _part(run.pages[1] + (sizes.pages - 1), sizes.pages))
        from_, to = _part(first, self.blocks), _part(last + (self.blocks - 1), self.blocks)
        if self.can_split:
            from_ = tirx.Select(self.is_split, tirx.Max(from_, self.part), from_)
            to = tirx.Select(self.is_split, tirx.Min(to, self.part + 1), to)
        from_ = p.let("first_segment", from_)
        with p.loop("n", p.let("segments", tirx.Max(to - from_, int64(0))), about=2) as n:
            segment = p.let("segment", from_ + n)
            with p.loop("row", run.rows, about=sizes.rows) as row:
                self.tiles.begin(run.base + row)
            begin = p.let("begin", tirx.Max(first, segment * self.blocks))
            until = tirx.Min(last, (segment + 1) * self.blocks)
            with p.loop("b", p.let("blocks", tirx.Max(until - begin, int64(0))), about=4) as b:
                self._block(p.let("block", begin + b), run)
            with p.otherwise(self.is_split), p.loop("row", run.rows, about=sizes.rows) as r:
                row = p.let("own_row", run.base + r)
                top = p.let("own_top", loops.load(self.tiles.tops, row))
                total = p.let("own_total", self._total(row))
                self._merge(row, self.tiles.sums, row * sizes.columns, top, total)

    def _bounds(self, run: _Run, token: Expr) -> tuple[Expr, Expr]:
        """The keys that a token of a run attends to: from the first up to, not including, the second."""
        p, scoring = self.program, self.form.scoring
        place = p.let("place", _between(run.shift + token, -1, run.length - 1))
        low = int64(0)
        if scoring.window:
            low = p.let("low", tirx.Max(place + 1 - scoring.window, int64(0)))
        if self.x.lasts is not None:
            last = tirx.Min(self._integer(self.x.lasts, token), run.length - 1)
            return low, p.let("high", tirx.Max(place, last) + 1)
        return low, p.let("high", place + 1) if scoring.causal else run.length

    # Blocks

    def _block(self, block: Expr, run: _Run) -> None:
        """A block of a run."""
        p, sizes = self.program, self.sizes
        start = p.let("start", block * sizes.block)
        pages = self._pages(block, run)
        # The tokens that attend to a key of the block.
        end = run.end
        if self.form.scoring.window:
            seen = start + (sizes.block + self.form.scoring.window - 1)
            end = p.let("end_token", tirx.Min(end, seen - run.shift))

        def first(key: Expr) -> Expr:
            """The first token that attends to a key of the block from a number on; the end if there is none."""
            if not self.form.scoring.causal or self.x.lasts is not None:
                return run.token
            found = tirx.Max(run.token, start + key - run.shift)
            return p.let("first_token", tirx.Min(found, end))

        is_copied = run.rows >= MANY_ROWS if self.key_copy is not None else False

        def bounds(row: Expr) -> tuple[Expr, Expr]:
            token = run.token + _part(row - run.base, sizes.rows)
            low, high = self._bounds(run, p.let("token", tirx.Min(token, run.end - 1)))
            return low - start, high - start

        def bias(row: Expr, key: Expr) -> Expr:
            assert self.biases is not None
            token, head = (
                _part(row - run.base, sizes.rows),
                _remainder(row - run.base, int64(sizes.rows)),
            )
            return self.biases.of_keys(head, run.shift + run.token + token - start - key)

        biases = None if self.biases is None else bias
        tilings, rows = self._few_rows(run, first, end)
        source = self._in_pages(pages)
        if is_copied is False:
            self._prefetch_scales(pages)
            self.tiles.score(source, tilings, biases)
            self.tiles.weigh(rows, bounds, pages.scales)
            self.tiles.gather(source, tilings)
            return
        shared, all_rows = self._many_rows(run, first, end)
        copy = self._in_copy(pages)
        low, high = (tirx.Select(is_copied, *ends) for ends in zip(all_rows, rows, strict=True))
        rows = p.let("first_row", low), p.let("end_row", high)
        with p.when(is_copied):
            self._copy(pages)
            self.tiles.score(copy, shared, biases)
        with p.otherwise(is_copied):
            self._prefetch_scales(pages)
            self.tiles.score(source, tilings, biases)
        self.tiles.weigh(rows, bounds, pages.scales)
        with p.when(is_copied):
            self.tiles.gather(copy, shared)
        with p.otherwise(is_copied):
            self.tiles.gather(source, tilings)

    def _pages(self, block: Expr, run: _Run) -> _Pages:
        """Look up the pages of a block, and those of the next one, which are prefetched."""
        p, count = self.program, self.sizes.pages
        places = p.allocate("places", 2 * count, "int64")
        with p.loop("page", count, rolled=True) as n:
            page = p.let("page", block * count + n)
            after = tirx.Max(tirx.Min(page + count, run.pages[1] - 1), page)
            p.store(places, n, self._place_of(run, page))
            p.store(places, n + count, self._place_of(run, after))

        def exists(n: Expr) -> Expr:
            page = block * count + n
            return loops.both(run.pages[0] <= page, page < run.pages[1])

        return _Pages(
            exists,
            lambda n: loops.load(places, n),
            lambda n: loops.load(places, n + count),
            self.sizes.page,
        )

    def _place_of(self, run: _Run, page: Expr) -> Expr:
        """The number of a page of a run and the task's key head among those of all pages. A page beyond the table is
        its last one."""
        entry = tirx.Min(page, self.table_width - 1)
        number = self._integer(self.x.tables, run.table + entry)
        number = _between(number, 0, self.x.key_pages.shape[0] - 1)
        return self.program.let("place", number * self.groups + self.group)

    def _few_rows(
        self, run: _Run, first: Callable[[Expr], Expr], end: Expr
    ) -> tuple[list[Tiling], tuple[Expr, Expr]]:
        """Tiles of the rows of tokens: each token's of its own."""
        p, sizes = self.program, self.sizes
        tiles = -(-sizes.rows // sizes.most_rows)
        height = -(-sizes.rows // tiles)
        whole = sizes.rows // height

        def rows_of(key: Expr) -> tuple[Expr, Expr]:
            """The first row, and the number of tokens."""
            token = first(key)
            begin = p.let("begin", run.base + (token - run.token) * sizes.rows)
            return begin, p.let("tokens", end - token)

        def tiles_of(key: Expr, tile: Callable[[Expr], None]) -> None:
            begin, count = rows_of(key)
            with p.loop("t", count, about=1) as t, p.loop("tile", whole) as n:
                tile(p.let("row", begin + t * sizes.rows + n * height))

        def rest_of(key: Expr, tile: Callable[[Expr], None]) -> None:
            begin, count = rows_of(key)
            with p.loop("t", count, about=1) as t:
                tile(p.let("row", begin + t * sizes.rows + whole * height))

        tilings = [Tiling(height, tiles_of, is_even=True)]
        if sizes.rows > whole * height:
            tilings.append(Tiling(sizes.rows - whole * height, rest_of, is_even=True))
        begin, count = rows_of(int64(0))
        return tilings, (begin, p.let("rows_end", begin + count * sizes.rows))

    def _many_rows(
        self, run: _Run, first: Callable[[Expr], Expr], end: Expr
    ) -> tuple[list[Tiling], tuple[Expr, Expr]]:
        """Tiles of all rows of a run. The last one may have rows after them, whose state is never used."""
        p, sizes = self.program, self.sizes
        height = _height(sizes)
        to = p.let("end_tile", _part((end - run.token) * sizes.rows + (height - 1), height))

        def first_row(key: Expr) -> tuple[Expr, Expr]:
            """That of the first tile, and the tile."""
            token = first(key)
            tile = p.let("first_tile", _part((token - run.token) * sizes.rows, height))
            return p.let("begin", run.base + tile * height), tile

        def tiles_of(key: Expr, tile: Callable[[Expr], None]) -> None:
            begin, number = first_row(key)
            with p.loop("tile", to - number, about=8) as n:
                tile(p.let("row", begin + n * height))

        tiling = Tiling(height, tiles_of, sizes.rows % height == 0)
        return [tiling], (first_row(int64(0))[0], p.let("rows_end", run.base + to * height))

    def _in_pages(self, pages: _Pages) -> Block:
        """The block in its pages."""
        sizes, lanes = self.sizes, self.sizes.lanes
        all_keys, all_values = sizes.width * sizes.page, sizes.columns * sizes.page

        def value(line: Expr, part: Expr, count: int) -> list[Expr]:
            return self._values(line * sizes.columns + part * (count * lanes), count)

        ahead = Ahead(
            self.keys,
            self.values,
            lambda page: pages.following(page) * all_keys,
            lambda page: pages.following(page) * all_values,
        )
        return Block(
            pages.exists, pages.scales, lambda page: pages.place(page) * all_keys, self._keys, value,
            lambda page: pages.place(page) * sizes.page, sizes.pages, ahead,
        )  # fmt: skip

    def _keys(self, begin: Expr, k: Expr, first: int, count: int) -> list[Expr]:
        """Vectors of words of a page's keys."""
        page, group = self.sizes.page, self.products.arithmetic.group
        at = begin + k * (page * group) + first * self.sizes.lanes
        return self.keys.read(at, count) if group == 1 else self.keys.read_words(at, page, count)

    def _values(self, at: Expr, count: int) -> list[Expr]:
        """Vectors of words of values, from a place in a line on."""
        if self.weighing.group == 1:
            return self.values.read(at, count)
        return self.values.read_words(at, self.sizes.columns, count)

    def _prefetch_scales(self, pages: _Pages) -> None:
        """Prefetch the scales of the next block."""
        size = self.sizes.page
        for numbers in self.scales or ():
            with self.program.loop("page", self.sizes.pages, rolled=True) as page:
                numbers.prefetch(pages.following(page) * size, int64(0), size)

    def _in_copy(self, pages: _Pages) -> Block:
        """The block in its copy, in the order in which tiles read it."""
        p, lanes, group = self.program, self.sizes.lanes, self.weighing.group
        key_copy, value_copy = self.key_copy, self.value_copy
        assert key_copy is not None
        assert value_copy is not None

        def key(begin: Expr, k: Expr, first: int, count: int) -> list[Expr]:
            at = self._key_place(begin, k, first)
            read = [loops.load(key_copy, at + n * lanes, lanes) for n in range(count)]
            return [p.let("key", as_words(each, self.products.arithmetic)) for each in read]

        def value(line: Expr, part: Expr, count: int) -> list[Expr]:
            at = self._value_place(tirx.Div(line, int64(group)) if group > 1 else line, part)
            read = [loops.load(value_copy, at + n * lanes, lanes) for n in range(count)]
            return [p.let("value", as_words(each, self.weighing)) for each in read]

        return Block(
            pages.exists, pages.scales, self._copy_begin, key, value, lambda _: int64(0), 1
        )

    def _copy_begin(self, page: Expr) -> Expr:
        """Where the keys of a page begin in the copy."""
        return page * (self.products.words * self.sizes.page)

    def _key_place(self, begin: Expr, k: Expr, first: int) -> Expr:
        """Where keys of a page are in the copy: of some vectors across that of the first of those, all along the width,
        then of the next."""
        sizes, lanes = self.sizes, self.sizes.lanes
        across = sizes.across(_height(sizes), sizes.vectors)
        return k * (across * lanes) + (begin + first * (self.products.words * lanes))

    def _value_place(self, line: Expr, part: Expr) -> Expr:
        """Where a part of a line of words of values is in the copy."""
        sizes, width = self.sizes, self._values_across * self.sizes.lanes
        return line * width + part * (sizes.block // self.weighing.group * width)

    @property
    def _values_across(self) -> int:
        """The vectors of a part of a line of values."""
        return self.sizes.across(_height(self.sizes), self.sizes.columns // self.sizes.lanes)

    def _copy(self, pages: _Pages) -> None:
        """Copy the words of the block's keys and values."""
        p, sizes, lanes = self.program, self.sizes, self.sizes.lanes
        key_copy, value_copy = self.key_copy, self.value_copy
        assert key_copy is not None
        assert value_copy is not None
        across, along = sizes.across(_height(sizes), sizes.vectors), self._values_across
        all_keys, all_values = sizes.width * sizes.page, sizes.columns * sizes.page
        with p.loop("page", sizes.pages, rolled=True) as page, p.when(pages.exists(page)):
            begin = p.let("begin", pages.place(page) * all_keys)
            following = p.let("next", pages.following(page) * all_keys)
            own = p.let("copy", self._copy_begin(page))
            with p.loop("k", self.products.words) as k:
                self.keys.prefetch(following, k, sizes.page * self.products.arithmetic.group)
                for first in range(0, sizes.vectors, across):
                    to = self._key_place(own, k, first)
                    for n, words in enumerate(self._keys(begin, k, first, across)):
                        p.store(key_copy, to + n * lanes, as_numbers(words), lanes)
            begin = p.let("begin", pages.place(page) * all_values)
            following = p.let("next", pages.following(page) * all_values)
            group = self.weighing.group
            with p.loop("j", sizes.page // group) as j:
                self.values.prefetch(following, j, sizes.columns * group)
                with p.loop("part", sizes.columns // (along * lanes)) as part:
                    at = begin + j * (sizes.columns * group) + part * (along * lanes)
                    to = self._value_place(j + page * (sizes.page // group), part)
                    for n, words in enumerate(self._values(at, along)):
                        p.store(value_copy, to + n * lanes, as_numbers(words), lanes)

    # Results

    def _allocate_results(self, rows: int) -> None:
        """The state of as many rows, of all segments."""
        p = self.program
        self.sums = p.allocate("all_sums", rows * self.sizes.columns, "float32")
        self.tops = p.allocate("all_tops", rows, "float32")
        self.totals = p.allocate("all_totals", rows, "float32")

    def _begin(self, row: Expr) -> None:
        p, lanes, columns = self.program, self.sizes.lanes, self.sizes.columns
        p.store(self.tops, row, tirx.FloatImm("float32", LOWEST))
        p.store(self.totals, row, tirx.FloatImm("float32", 0.0))
        with p.loop("c", columns // lanes) as c:
            p.store(self.sums, row * columns + c * lanes, splat(0.0, lanes), lanes)

    def _total(self, row: Expr) -> Expr:
        """The total of a row in a segment."""
        lanes = self.sizes.lanes
        return fold(self.program, loops.load(self.tiles.totals, row * lanes, lanes), lanes, _ADD)

    def _merge(self, row: Expr, sums: Buffer, at: Expr, top: Expr, total: Expr) -> None:
        """Merge the state of a segment with that of those before it. A segment without keys changes nothing."""
        p, lanes, columns = self.program, self.sizes.lanes, self.sizes.columns
        with p.when(scalar.not_equal(total, tirx.FloatImm("float32", 0.0))):
            old = p.let("old", loops.load(self.tops, row))
            new = p.let("new", tirx.Max(old, top))
            decay, share = p.let("decay", power(old - new, 1)), p.let("share", power(top - new, 1))
            p.store(self.tops, row, new)
            added = p.let("added", total * share)
            p.store(self.totals, row, loops.load(self.totals, row) * decay + added)
            with p.loop("c", columns // lanes) as c:
                place = p.let("c", row * columns + c * lanes)
                before = loops.load(self.sums, place, lanes) * loops.broadcast(decay, lanes)
                own = loops.load(sums, at + c * lanes, lanes)
                p.store(self.sums, place, before + own * loops.broadcast(share, lanes), lanes)

    def _finish(self, token: Expr, head: Expr, row: Expr) -> None:
        """Add the sink, divide the sums by their total, and store them."""
        p, out, sizes, lanes = self.program, self.form.out, self.sizes, self.sizes.lanes
        total = p.let("total", loops.load(self.totals, row))
        rescale: Expr = tirx.FloatImm("float32", 1.0)
        own_head = p.let("head", self.group * sizes.rows + head)
        if self.form.scoring.has_sinks:
            sink = self._float(self.x.sinks, own_head) * tirx.FloatImm("float32", LOG2_E)
            sink = p.let("sink", sink)
            old = p.let("old", loops.load(self.tops, row))
            new = p.let("new", tirx.Max(old, sink))
            rescale = p.let("rescale", power(old - new, 1))
            # a row without keys has no sums, and no total but the sink's
            total = p.let("with_sink", total * rescale + power(sink - new, 1))
        share = p.let("share", share_of(total, 1) * rescale)
        line = p.let("line", (token * self.heads + own_head) * sizes.columns)
        is_paired = self.values.is_paired and self.weighing.group == 1
        count = 2 if is_paired else 1
        with p.loop("c", sizes.columns // (count * lanes)) as part:
            c = p.let("c", part * (count * lanes))
            read = [
                loops.load(self.sums, row * sizes.columns + c + n * lanes, lanes)
                for n in range(count)
            ]
            for n, value in enumerate(self.values.in_order(read) if is_paired else read):
                value = value * loops.broadcast(share, lanes)
                if str(out.dtype) != "float32":
                    value = value.astype(f"{out.dtype}x{lanes}")
                p.store(self.views[out], line + c + n * lanes, value, lanes)

    # Memory

    def _float(self, buffer: Buffer, at: Expr, lanes: int = 1) -> Expr:
        """Numbers as float32."""
        value = loops.load(self.views[buffer], at, lanes)
        if str(buffer.dtype) == "float32":
            return value
        return value.astype("float32" if lanes == 1 else f"float32x{lanes}")

    def _integer(self, buffer: Buffer, at: Expr) -> Expr:
        return loops.load(self.views[buffer], at).astype("int64")


def _widened(target: CpuTarget) -> Arithmetic:
    """The arithmetic of float32."""
    return Arithmetic.of("float32", "float32", "float32", target)


def _height(sizes: Sizes) -> int:
    """Rows of a tile of many."""
    return sizes.most_rows


def _known(extent: Expr) -> int:
    value = loops.constant(extent)
    assert value is not None, "asked before"
    return value


def _between(value: Expr, low: int, high: Expr | int) -> Expr:
    """The value, clamped."""
    return tirx.Max(tirx.Min(value, int64(high)), int64(low))


def _quotient(value: Expr, divisor: Expr) -> Expr:
    """The quotient of numbers that are not negative, by one that is not 0."""
    return tirx.Div(value, divisor)


def _remainder(value: Expr, divisor: Expr) -> Expr:
    return tirx.Mod(value, divisor)


def _part(value: Expr, size: int) -> Expr:
    """The quotient of a number that is not negative."""
    return value if size == 1 else tirx.Div(value, int64(size))
