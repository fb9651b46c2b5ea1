"""Attention over a paged cache as a tensor program: a row for every query and head, which visits its keys a page at a
time.

The softmax is computed online (Milakov and Gimelshein, 2018): a page's scores at a time, with sums that are rescaled
when a larger score turns up. Pages begin at multiples of the page size and are visited in the order of the sequence, so
a row's result is the same to the bit whatever else is in the batch, and in however many calls the sequence came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.tir import te
from relaxpy.tir.numerics import scalar
from relaxpy.tir.programs.loops import Buffer, Expr, constant, floordiv
from relaxpy.tir.programs.rows import cell, known, rows, scratch
from relaxpy.tir.programs.serial import Serial, serial

LOWEST = -3.4028234663852886e38
"""The initial value of the largest score: finite, so that scores of minus infinity have powers of 0."""


@dataclass(frozen=True)
class Scoring:
    """How products become scores, and which keys a query attends to."""

    scale: float | None
    """Factor of the scores; None: 1 / sqrt(width)."""
    causal: bool = True
    """Does a query attend to no key after its own position?"""
    window: int = 0
    """Sliding window: the number of keys, up to its own, that a query attends to; 0: all."""
    soft_cap: float = 0.0
    """Scores are `soft_cap * tanh(score / soft_cap)`; 0: as they are."""
    has_sinks: bool = False
    """Has the softmax of each head one score more, that of a sink, which has no value?"""
    is_quantised: bool = False
    """Are the pages integers, with a scale for each token and key head?"""
    has_bias: bool = False
    """Is a number added to a score by the distance of its key?"""
    has_lasts: bool = False
    """Do queries attend to keys after their own position, up to one that each has?"""


@dataclass(frozen=True)
class Operands:
    """The buffers (or tensors) of paged attention."""

    query: Any
    """(tokens, heads, width)."""
    key_pages: Any
    """(pages, key heads, width, page size)."""
    value_pages: Any
    """(pages, key heads, page size, width of a value)."""
    starts: Any
    """(sequences + 1,): the first token of each sequence, and the end."""
    tables: Any
    """(sequences, pages of a sequence): the numbers of its pages."""
    lengths: Any
    """(sequences,): the number of tokens in the cache, with those of this call."""
    sinks: Any = None
    """(heads,)."""
    key_scales: Any = None
    """(pages, key heads, page size)."""
    value_scales: Any = None
    bias: Any = None
    """(heads, reach): the last column for a query's own key, each one before for the key before, the first one for all
    that are further."""
    lasts: Any = None
    """(tokens,): the last place that a query attends to, if it is after its own; those of a sequence do not fall."""

    @property
    def given(self) -> list[Any]:
        """Those that there are."""
        return [each for each in vars(self).values() if each is not None]

    def of(self, buffers: Sequence[Any]) -> Operands:
        """These buffers in the place of those that there are."""
        left = iter(buffers)
        return Operands(**{n: None if x is None else next(left) for n, x in vars(self).items()})


def paged_attention(
    scoring: Scoring, operands: Operands, shape: Sequence[Dim], page_size: Dim, dtype: DType
) -> Any:
    """The result (tokens, heads, width of a value), a tensor of this shape and dtype."""
    wide = str(DType("float32") if dtype.is_narrow else dtype)

    def fill(p: Serial, out: Buffer, *buffers: Buffer) -> None:
        with rows(p, shape[:2]) as (token, head):
            row = _Row(p, scoring, operands.of(buffers), out, wide, token, head)
            row.write(shape[2], page_size)

    return serial((shape, str(dtype)), operands.given, fill, "paged_attention")


class _Row:
    """Writes the statements of one query and head."""

    def __init__(
        self,
        p: Serial,
        scoring: Scoring,
        operands: Operands,
        out: Buffer,
        wide: str,
        token: Expr,
        head: Expr,
    ) -> None:
        self.p, self.scoring, self.x, self.out, self.wide = p, scoring, operands, out, wide
        self.token, self.head = token, head
        sharing = scalar.maximum(
            floordiv(out.shape[1], scalar.maximum(operands.key_pages.shape[1], te.dim(1))),
            te.dim(1),
        )
        self.group = floordiv(head, sharing)
        """The key head."""

    def write(self, columns: Dim, page_size: Dim) -> None:
        """Write the whole row. A token that is in no sequence, or has no keys, gives 0."""
        p, x = self.p, self.x
        self.columns, self.size = te.dim(columns), te.dim(page_size)
        self.sums = scratch(p, "sums", columns, self.wide)
        self.scores = scratch(p, "scores", page_size, self.wide)
        self.largest = cell(p, "largest", te.const(LOWEST, self.wide))
        self.total = cell(p, "total", te.const(0.0, self.wide))
        self.sequence = cell(p, "sequence", te.dim(-1))
        with p.loop("c", self.columns) as c:
            p.write(self.sums, c, value=te.const(0.0, self.wide))
        with p.loop("s", x.lengths.shape[0], about=4) as s:
            after = self._integer(x.starts, s) <= self.token
            with p.when(scalar.logical_and(after, self.token < self._integer(x.starts, s + 1))):
                self.sequence.set(s)
        is_any = scalar.logical_and(
            self.sequence.get() >= te.dim(0), x.key_pages.shape[0] > te.dim(0)
        )
        with p.when(is_any):
            self._bounds()
            first = floordiv(self.low, self.size)
            count = scalar.maximum(self._pages_up_to(self.high) - first, te.dim(0))
            with p.loop("step", known(p, "count", count), about=8) as step:
                self._page(known(p, "page", first + step))
            if self.scoring.has_sinks:
                self._sink()
        total = known(p, "all", self.total.get())
        with p.loop("c", self.columns) as c:
            share = p.read(self.sums, c) / total
            zero = te.const(0.0, self.wide)
            found = te.select(scalar.equal(total, zero), zero, share)
            p.write(
                self.out, self.token, self.head, c, value=scalar.cast(found, str(self.out.dtype))
            )

    def _integer(self, buffer: Buffer, *index: Any) -> Expr:
        return scalar.cast(self.p.read(buffer, *index), "int64")

    def _float(self, buffer: Buffer, *index: Any) -> Expr:
        return scalar.cast(self.p.read(buffer, *index), self.wide)

    def _pages_up_to(self, end: Expr) -> Expr:
        """The number of pages of the keys below an end."""
        return floordiv(end + (self.size - 1), self.size)

    def _bounds(self) -> None:
        """The keys that the query attends to: from `low` up to, not including, `high`. Nothing is trusted: a length
        beyond the table is that of the table."""
        p, x = self.p, self.x
        own = known(p, "own", self.sequence.get())
        room = x.tables.shape[1] * self.size
        length = _between(self._integer(x.lengths, own), te.dim(0), room)
        length = known(p, "length", length)
        left = known(p, "left", self._integer(x.starts, own + 1) - self.token)
        """The number of the sequence's tokens from this one on."""
        self.place = place = known(p, "place", _between(length - left, te.dim(-1), length - 1))
        self.own = own
        high = place + 1 if self.scoring.causal else length
        if self.scoring.has_lasts:
            last = scalar.minimum(self._integer(x.lasts, self.token), length - 1)
            high = scalar.maximum(place, last) + 1
        self.high = known(p, "end", high)
        self.low = te.dim(0)
        if self.scoring.window:
            start = place + 1 - te.dim(self.scoring.window)
            self.low = known(p, "begin", scalar.maximum(start, te.dim(0)))

    def _page(self, page: Expr) -> None:
        """The scores of a page, their exponentials, and the sums of its values weighted by them."""
        p, x, token, head = self.p, self.x, self.token, self.head
        before = x.key_pages.shape[0] - 1
        number = _between(self._integer(x.tables, self.own, page), te.dim(0), before)
        number = known(p, "number", number)
        first = known(p, "first", page * self.size)
        start = known(p, "start", scalar.maximum(self.low - first, te.dim(0)))
        count = scalar.minimum(self.high - first, self.size) - start
        count = known(p, "keys", scalar.maximum(count, te.dim(0)))
        with p.loop("j", self.size) as j:
            p.write(self.scores, j, value=te.const(0.0, self.wide))
        with p.loop("k", x.query.shape[2], about=64) as k:
            factor = known(p, "factor", self._float(x.query, token, head, k))
            with p.loop("j", self.size, about=32) as j:
                product = factor * self._float(x.key_pages, number, self.group, k, j)
                p.write(self.scores, j, value=p.read(self.scores, j) + product)
        new = cell(p, "new", self.largest.get())
        with p.loop("j", count, about=32) as n:
            j = start + n
            score = known(p, "score", self._score(number, j, first))
            p.write(self.scores, j, value=score)
            new.set(scalar.maximum(new.get(), score))
        self._rescale(new.get())
        with p.loop("j", count, about=32) as n:
            j = start + n
            power = known(p, "power", scalar.exp(p.read(self.scores, j) - self.largest.get()))
            self.total.set(self.total.get() + power)
            if self.scoring.is_quantised:
                power = power * self._float(x.value_scales, number, self.group, j)
            weight = known(p, "weight", power)
            with p.loop("c", self.columns, about=64) as c:
                part = weight * self._float(x.value_pages, number, self.group, j, c)
                p.write(self.sums, c, value=p.read(self.sums, c) + part)

    def _score(self, number: Expr, key: Expr, first: Expr) -> Expr:
        """The score of a product with a key of a page, the keys of which begin with the `first` one of the sequence."""
        scoring, score = self.scoring, self.p.read(self.scores, key)
        if scoring.is_quantised:
            score = score * self._float(self.x.key_scales, number, self.group, key)
        score = score * self._scale()
        if scoring.soft_cap:
            score = scalar.tanh(score / te.const(scoring.soft_cap, self.wide))
            score = score * te.const(scoring.soft_cap, self.wide)
        if scoring.has_bias:
            column = first + key - self.place + (self.x.bias.shape[1] - 1)
            score = score + self._float(self.x.bias, self.head, scalar.maximum(column, te.dim(0)))
        return score

    def _scale(self) -> Expr:
        if self.scoring.scale is not None:
            return te.const(self.scoring.scale, self.wide)
        width = self.x.query.shape[2]
        if (known_width := constant(width)) is not None:
            return te.const(max(known_width, 1) ** -0.5, self.wide)
        return scalar.rsqrt(scalar.cast(scalar.maximum(width, te.dim(1)), self.wide))

    def _rescale(self, new: Expr) -> None:
        """Make `new` the largest score so far."""
        p = self.p
        decay = known(p, "decay", scalar.exp(self.largest.get() - new))
        self.largest.set(new)
        self.total.set(self.total.get() * decay)
        with p.loop("c", self.columns, about=64) as c:
            p.write(self.sums, c, value=p.read(self.sums, c) * decay)

    def _sink(self) -> None:
        """Add the score of the head's sink to the softmax."""
        sink = known(self.p, "sink", self._float(self.x.sinks, self.head))
        self._rescale(known(self.p, "top", scalar.maximum(self.largest.get(), sink)))
        self.total.set(self.total.get() + scalar.exp(sink - self.largest.get()))


def _between(value: Expr, low: Expr, high: Expr) -> Expr:
    """The value, clamped."""
    return scalar.maximum(scalar.minimum(value, high), low)
