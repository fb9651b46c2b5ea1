"""Attention over a paged cache in one launch: what `relaxpy.tir.recognise.paged_attention` recognises, of float16 or
bfloat16 queries, with pages of the same type or of int8, on devices with tensor cores
(`relaxpy.backend.gpu.schedule.attention_tile`). Heads are a multiple of 16 wide, at most 128, and pages have a multiple
of 8 tokens, of int8 16. Other paged attention has a thread for each token and head.

A group computes a tile: neighbouring tokens of one sequence, with the heads that share a key head. Sequences that come
with few rows, as text is generated, have all warps of a group for these. A launch has a group for each key head and
tile that there can be: how many tokens each sequence has is known on the device only. A sequence s begins with tile
`starts[s] // tokens of a tile + s + 1`; tokens before the first sequence and after the last one count as sequences that
have no keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.gpu.schedule.attention_tile import (
    CHUNK,
    MOST_ROWS,
    ROWS,
    THREADS,
    AttentionTile,
    fits,
    power,
)
from relaxpy.backend.gpu.schedule.group import meet, shared
from relaxpy.backend.gpu.target import GpuTarget
from relaxpy.tir.programs.loops import (
    Buffer,
    Expr,
    both,
    ceildiv,
    constant,
    equals,
    floordiv,
    floormod,
    guarded,
    int64,
    load,
    minimum,
)
from relaxpy.tir.recognise.paged_attention import PagedForm, paged_attention_of
from relaxpy.tir.tvm import tirx

_NOBODY = -2
"""The sequence of a tile that there is not."""


def arrange_paged_attention(func: tirx.PrimFunc, target: GpuTarget) -> Arrangement | None:
    """The schedule of attention over a paged cache by tensor cores; None for other programs."""
    if target.warp_functions is None:
        return None
    form = paged_attention_of(func)
    if form is None or not _fits(form, target):
        return None
    return Arrangement(lambda: _PagedAttention(func, form, target).written())


def _fits(form: PagedForm, target: GpuTarget) -> bool:
    heads, width = map(constant, form.x.query.shape[1:])
    groups, _, size = map(constant, form.x.key_pages.shape[1:])
    dtype, pages = str(form.out.dtype), str(form.x.key_pages.dtype)
    chunk = {dtype: CHUNK, "int8": 2 * CHUNK}.get(pages)
    if not heads or not groups or not size or chunk is None:
        return False
    is_shared = heads % groups == 0 and heads // groups <= MOST_ROWS
    columns = constant(form.out.shape[2])
    return is_shared and size % chunk == 0 and fits(target, dtype, width, columns)


@dataclass(frozen=True, eq=False)
class _Row:
    """A token and a head."""

    token: Expr
    head: Expr


class _PagedAttention(AttentionTile[_Row]):
    """The program of all groups."""

    def __init__(self, func: tirx.PrimFunc, form: PagedForm, target: GpuTarget) -> None:
        given = [*form.x.query.shape[1:], *form.x.key_pages.shape[1:], form.out.shape[2]]
        self.heads, width, self.groups, _, self.size, columns = map(_known, given)
        super().__init__(target, str(form.out.dtype), width, columns, keys_turned=True)
        self.func, self.form, self.x = func, form, form.x
        self.invariant = target.batch_invariant
        self.sharing = self.heads // self.groups
        self.tokens_of_tile = MOST_ROWS // self.sharing
        self.tokens, self.sequences = form.out.shape[0], form.x.lengths.shape[0]
        for buffer in (form.x.query, form.x.key_pages, form.x.value_pages):
            self.reads(buffer)
        others = (form.x.starts, form.x.tables, form.x.lengths, form.out)
        x = form.x
        optional = (x.sinks, x.key_scales, x.value_scales, x.bias, x.lasts)
        self.views = {b: self.p.flat_view(b) for b in (*others, *optional) if b is not None}
        if form.x.key_scales is not None:
            self.scales = shared(self.p, "scales", 2 * self.block, "float32")
            """Of the keys of a block, and of its values."""

    def written(self) -> tirx.PrimFunc:
        """The function with its loops bound to threads."""
        p = self.p
        tile = p.let("number", floordiv(self.group, self.groups))
        self.key_head = p.let("key_head", floormod(self.group, self.groups))
        own = p.let("sequence", self._find_sequence(tile))
        begin, end = p.let("begin", self._edge(own)), p.let("end", self._edge(own + 1))
        self.first = p.let("first", begin + (tile - self._tile(own)) * self.tokens_of_tile)
        tokens = p.let("tokens", tirx.Min(end - self.first, int64(self.tokens_of_tile)))
        self.last = p.let("last", self.first + tokens - 1)
        has_keys = both(both(own >= 0, own < self.sequences), self.x.key_pages.shape[0] > int64(0))
        self.table = p.let("table", own * self.x.tables.shape[1])
        with p.when(both(own != _NOBODY, tokens > 0)):
            room = self.x.tables.shape[1] * self.size
            length = guarded(has_keys, self._integer(self.x.lengths, own))
            self.length = p.let("length", _between(length, 0, room))
            after = guarded(has_keys, self._integer(self.x.starts, own + 1))
            self.shift = p.let("shift", self.length - after)
            """The place of a token in its sequence is its number plus this."""
            self.share_bounds()
            # Rows beyond the last one repeat it.
            low, high = self.limits(int64(0))[0], self.limits(int64(MOST_ROWS - 1))[1]
            rows = p.let("rows", tokens * self.sharing)
            are_few = False if self.invariant else (end - begin) * self.sharing <= ROWS
            with p.when(are_few):
                self.write(low, high, rows, is_few=True)
            with p.otherwise(are_few):
                self.write(low, high, rows, is_few=False)
        tiles = tirx.floordiv(self.tokens, int64(self.tokens_of_tile)) + self.sequences + 2
        return self.launched(self.func, tiles * int64(self.groups))

    # Sequences and tiles

    def _edge(self, sequence: Expr) -> Expr:
        """The first token of a sequence; that after the last one of the sequence before."""
        at = _between(sequence, 0, self.sequences)
        start = _between(self._integer(self.x.starts, at), 0, self.tokens)
        start = tirx.if_then_else(sequence < 0, int64(0), start)
        return tirx.if_then_else(sequence > self.sequences, int64(self.tokens), start)

    def _tile(self, sequence: Expr) -> Expr:
        """The first tile of a sequence."""
        return floordiv(self._edge(sequence), self.tokens_of_tile) + sequence + 1

    def _find_sequence(self, tile: Expr) -> Expr:
        """The sequence of a tile: the threads look at one each."""
        p = self.p
        found = shared(p, "found", 1, "int64")
        with p.when(equals(self.thread, 0)):
            p.store(found, 0, int64(_NOBODY))
        meet(p)
        with p.loop("step", ceildiv(self.sequences + 2, THREADS)) as step:
            own = p.let("own", step * THREADS + self.thread - 1)
            is_before = p.let("is_before", self._tile(own) <= tile)
            with p.when(both(is_before, both(own <= self.sequences, tile < self._tile(own + 1)))):
                p.store(found, 0, own)
        meet(p)
        return load(found, 0)

    # What a tile asks for

    def row(self, number: Expr) -> _Row:
        p, sharing = self.p, self.sharing
        token = p.let("token", minimum(self.first + floordiv(number, sharing), self.last))
        head = self.key_head * sharing + floormod(number, sharing)
        return _Row(token, p.let("head", head))

    def bounds(self, row: _Row) -> tuple[Expr, Expr]:
        p, scoring = self.p, self.form.scoring
        place = p.let("place", _between(self.shift + row.token, -1, self.length - 1))
        low = int64(0)
        if scoring.window:
            low = tirx.Max(place + 1 - int64(scoring.window), int64(0))
        if (lasts := self.x.lasts) is not None:
            # A tile without keys may have tokens that there are not.
            at = _between(row.token, 0, self.tokens - 1)
            last = tirx.Min(self._integer(lasts, at), self.length - 1)
            return low, tirx.Max(place, last) + 1
        return low, place + 1 if scoring.causal else self.length

    def query_word(self, row: _Row, at: Expr) -> Expr:
        return self.word(self.x.query, (row.token * self.heads + row.head) * self.depth + at)

    def score(self, row: _Row, key: Expr, place: Expr, product: Expr) -> Expr:
        scoring = self.form.scoring
        if scoring.is_quantised:
            product = product * load(self.scales, place)
        score = product * _float(self.depth**-0.5 if scoring.scale is None else scoring.scale)
        if scoring.soft_cap:
            score = tirx.tanh(score / _float(scoring.soft_cap)) * _float(scoring.soft_cap)
        if (bias := self.x.bias) is not None:
            reach = bias.shape[1]
            column = _between(key - self.shift - row.token + reach - 1, 0, reach - 1)
            own = load(self.views[bias], row.head * reach + column)
            score = score + tirx.Cast("float32", own)
        return score

    def weight(self, power: Expr, place: Expr) -> Expr:
        return (
            power * load(self.scales, place + self.block)
            if self.form.scoring.is_quantised
            else power
        )

    def share(self, row: _Row, top: Expr, total: Expr) -> Expr:
        if self.x.sinks is None:
            return super().share(row, top, total)
        p = self.p
        sink = p.let("sink", tirx.Cast("float32", load(self.views[self.x.sinks], row.head)))
        new = p.let("with_sink", tirx.Max(top, sink))
        decay = p.let("decay", power(top - new))
        return decay * super().share(row, new, p.let("all", total * decay + power(sink - new)))

    def store(self, row: _Row, column: Expr, quotient: Expr) -> None:
        out = self.form.out
        place = (row.token * self.heads + row.head) * self.columns + column
        self.p.store(self.views[out], place, tirx.Cast(str(out.dtype), quotient))

    # Pages

    def _page(self, key: Expr) -> Expr:
        """The number of a key's page and of the key head, among those of all pages."""
        x = self.x
        entry = tirx.Min(floordiv(key, self.size), x.tables.shape[1] - 1)
        number = _between(self._integer(x.tables, self.table + entry), 0, x.key_pages.shape[0] - 1)
        return self.p.let("page", number * self.groups + self.key_head)

    def _seen(self, start: Expr) -> tuple[Expr, Expr]:
        """The part of a block that some row sees."""
        low, high = self.limits(int64(0))[0], self.limits(int64(MOST_ROWS - 1))[1]
        return (
            self.p.let("from_", self.in_block(low - start)),
            self.p.let("to", self.in_block(high - start)),
        )

    def copy_keys(self, start: Expr) -> None:
        low, high = self._seen(start)

        def offset(row: Expr, column: Expr) -> Expr:
            key = self.p.let("key", start + column)
            return (self._page(key) * self.depth + row) * self.size + floormod(key, self.size)

        def exists(_: Expr, column: Expr) -> Expr:
            first = tirx.Cast("int32", column)
            return both(low < first + 2 * CHUNK, first < high)

        self.copy(self.keys, self.x.key_pages, offset, exists, int64(self.size))
        if self.x.key_scales is not None:
            for n, scales in enumerate((self.x.key_scales, self.x.value_scales)):
                self._copy_scales(scales, n, start, low, high)

    def _copy_scales(self, scales: Buffer, n: int, start: Expr, low: Expr, high: Expr) -> None:
        """The scales of a block, by threads of their own."""
        p = self.p
        place = p.let("place", floormod(self.thread, self.block))
        with p.when(equals(floordiv(self.thread, self.block), n)):
            key = p.let("key", start + place)
            at = self._page(key) * self.size + floormod(key, self.size)
            narrow = tirx.Cast("int32", place)
            value = tirx.Cast("float32", load(self.views[scales], at))
            p.store(self.scales, self.thread, guarded(both(low <= narrow, narrow < high), value))

    def copy_values(self, start: Expr) -> None:
        low, high = self._seen(start)

        def offset(row: Expr, column: Expr) -> Expr:
            key = self.p.let("key", start + row)
            line = self._page(key) * self.size + floormod(key, self.size)
            return line * self.columns + column

        def exists(row: Expr, _: Expr) -> Expr:
            key = tirx.Cast("int32", row)
            return both(low <= key, key < high)

        self.copy(self.values, self.x.value_pages, offset, exists)

    def _integer(self, buffer: Buffer, at: Expr) -> Expr:
        return tirx.Cast("int64", load(self.views[buffer], at))


def _known(extent: Expr) -> int:
    value = constant(extent)
    assert value is not None, "asked before"
    return value


def _float(value: float) -> Expr:
    return tirx.FloatImm("float32", value)


def _between(value: Expr, low: int, high: Expr) -> Expr:
    """The value, clamped."""
    return tirx.Max(tirx.Min(value, high), int64(low))
