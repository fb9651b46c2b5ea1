"""Attention over a paged cache of keys and values, as it serves language models (Kwon et al., vLLM, 2023).

Tokens of several sequences come packed one after the other. The keys and values of a sequence are in pages, which its
row of a table numbers, so that sequences grow without being moved and share pages. Indices are never trusted: a page
number out of range is clamped, a length beyond the table is that of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.attention import divides
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.rule import INTEGERS


@define_op
class PagedAttention(Op):
    """Attention of each token to the keys of its own sequence, which are in pages. `query` is (tokens, heads, width):
    the tokens of sequence s are those from starts[s] up to starts[s + 1], and they are its last ones. `key_pages` is
    (pages, key heads, width, page size) and `value_pages` (pages, key heads, page size, value width); page p of
    sequence s is number tables[s, p]. lengths[s] counts the keys of sequence s, with those of its tokens, which must be
    in the pages already. Integer pages have `key_scales` and `value_scales` (pages, key heads, page size). `sinks`
    (heads,) is for each head a score more in the softmax, that of no key. `bias` (heads, reach) is added to causal
    scores by distance, as T5 has it (Raffel et al., 2019): its last column for a token's own key, each one before for
    the key before, the first one for all that are further. `lasts` (tokens,) is for each token the last place of its
    sequence that it attends to, if it is after its own, as those of a picture read each other: it does not fall from
    one token of a sequence to the next. The result is (tokens, heads, value width); a token in no sequence gives 0, and
    every sequence's result is the same to the bit whatever the others are."""

    name = "nn.paged_attention"
    no_vjp = "it serves a cache: nn.attention has a rule"
    of_data = True
    scale: float | None = None
    """Factor of the scores; None: 1 / sqrt(width)."""
    causal: bool = True
    """Does a token attend to no later one?"""
    window_size: int | None = None
    """Sliding window: the number of keys, up to its own, that a token attends to; None: all."""
    soft_cap: float | None = None
    """Scores are soft_cap * tanh(score / soft_cap); None: as they are."""

    def deduce(
        self, d: Deduction, query: KnownTensor, key_pages: KnownTensor, value_pages: KnownTensor,
        starts: KnownTensor, tables: KnownTensor, lengths: KnownTensor,
        sinks: KnownTensor | None = None, key_scales: KnownTensor | None = None,
        value_scales: KnownTensor | None = None, bias: KnownTensor | None = None,
        lasts: KnownTensor | None = None,
    ) -> TensorType:  # fmt: skip
        d.need_float(query, "query")
        ranks = {
            "query": (query, "tokens, heads, width"),
            "key_pages": (key_pages, "pages, key heads, width, page size"),
            "value_pages": (value_pages, "pages, key heads, page size, width"),
            "starts": (starts, "sequences + 1"),
            "tables": (tables, "sequences, pages"),
            "lengths": (lengths, "sequences"),
            "sinks": (sinks, "heads"),
            "key_scales": (key_scales, "pages, key heads, page size"),
            "value_scales": (value_scales, "pages, key heads, page size"),
            "bias": (bias, "heads, reach"),
            "lasts": (lasts, "tokens"),
        }
        for name, (x, axes) in ranks.items():
            wanted = axes.count(",") + 1
            if x is not None and x.ndim != wanted:
                d.fail(
                    f"{name} must have {wanted} dimensions ({axes}), got {x.ndim}",
                    arg=name, code="op-rank",
                )  # fmt: skip
        for name, x in (("starts", starts), ("tables", tables), ("lengths", lengths)):
            d.need_int(x, name)
        self._check_dtypes(d, query, key_pages, value_pages, sinks, key_scales, value_scales)
        tokens, heads, width = query.dims
        pages, groups, key_width, size = key_pages.dims
        d.same_dim(width, key_width, "widths of query and key pages differ", arg="key_pages")
        d.same_dim(pages, value_pages.dims[0], "numbers of pages differ", arg="value_pages")
        d.same_dim(groups, value_pages.dims[1], "heads of key and value differ", arg="value_pages")
        d.same_dim(size, value_pages.dims[2], "page sizes differ", arg="value_pages")
        d.ensure(
            divides(groups, heads),
            f"the heads of query cannot be divided among those of key: {heads} and {groups}",
            arg="key_pages",
        )
        batch = lengths.dims[0]
        d.same_dim(starts.dims[0], batch + 1, "starts has no end for each sequence", arg="starts")
        d.same_dim(tables.dims[0], batch, "numbers of sequences differ", arg="tables")
        if sinks is not None:
            d.same_dim(sinks.dims[0], heads, "numbers of heads differ", arg="sinks")
        for name, x in (("key_scales", key_scales), ("value_scales", value_scales)):
            for axis, wanted in enumerate((pages, groups, size) if x is not None else ()):
                assert x is not None
                d.same_dim(x.dims[axis], wanted, f"sizes of pages and {name} differ", arg=name)
        if bias is not None:
            self._check_bias(d, bias, heads)
        if lasts is not None:
            d.need_int(lasts, "lasts")
            d.same_dim(lasts.dims[0], tokens, "numbers of tokens differ", arg="lasts")
            d.require(
                self.causal and bias is None,
                "lasts are places after a token's own, of causal attention without a bias", arg="lasts",
            )  # fmt: skip
        d.require(
            self.window_size is None or (self.window_size > 0 and self.causal),
            f"window_size must be positive, of causal attention; got {self.window_size}",
            arg="window_size",
        )  # fmt: skip
        d.require(
            self.soft_cap is None or self.soft_cap > 0,
            f"soft_cap must be positive, got {self.soft_cap}", arg="soft_cap",
        )  # fmt: skip
        return TensorType((tokens, heads, value_pages.dims[3]), query.dtype)

    def _check_bias(self, d: Deduction, bias: KnownTensor, heads: Dim) -> None:
        d.need_float(bias, "bias")
        d.same_dim(bias.dims[0], heads, "numbers of heads differ", arg="bias")
        d.ensure(dim_op("le", 1, bias.dims[1]), "bias has no distances", arg="bias")
        d.require(
            self.causal and self.soft_cap is None,
            "bias is added to the scores of causal attention without a soft cap", arg="bias",
            help="nn.attention takes a bias for each query and key",
        )  # fmt: skip

    def _check_dtypes(
        self, d: Deduction, query: KnownTensor, keys: KnownTensor, values: KnownTensor,
        sinks: KnownTensor | None, *scales: KnownTensor | None,
    ) -> None:  # fmt: skip
        """Pages have the dtype of the query, or are integers with scales."""
        d.same_dtype(keys, values)
        has_scales = [x is not None for x in scales]
        if keys.dtype.is_int:
            d.require(
                all(has_scales), "integer pages need key_scales and value_scales", arg="key_pages"
            )
            for x in scales:
                assert x is not None
                d.need_float(x, "key_scales")
        else:
            d.same_dtype(query, keys)
            d.require(
                not any(has_scales), f"{keys.dtype} pages take no scales", arg="key_scales"
            )  # fmt: skip
        if sinks is not None:
            d.need_float(sinks, "sinks")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        query, _, value, *_ = args
        query = expect(TensorType, query)
        value = expect(TensorType, value)
        if query.dims is None or value.dims is None:
            return TensorType(None, query.dtype, 3)
        return TensorType((*query.dims[:2], value.dims[3]), query.dtype)

    def legalize(
        self, out: KnownTensor, query: te.Tensor, key_pages: te.Tensor, value_pages: te.Tensor,
        starts: te.Tensor, tables: te.Tensor, lengths: te.Tensor, sinks: te.Tensor | None,
        key_scales: te.Tensor | None, value_scales: te.Tensor | None, bias: te.Tensor | None,
        lasts: te.Tensor | None,
    ) -> te.Tensor:  # fmt: skip
        from relaxpy.tir.programs import paged_attention as program

        window, cap = self.window_size or 0, self.soft_cap or 0.0
        scoring = program.Scoring(
            self.scale, self.causal, window, cap, sinks is not None, key_scales is not None,
            bias is not None, lasts is not None,
        )  # fmt: skip
        operands = program.Operands(
            query, key_pages, value_pages, starts, tables, lengths, sinks, key_scales, value_scales,
            bias, lasts,
        )  # fmt: skip
        size = te.dims(key_pages)[3]
        return program.paged_attention(scoring, operands, out.dims, size, out.dtype)

    def reference(
        self, query: np.ndarray, key_pages: np.ndarray, value_pages: np.ndarray,
        starts: np.ndarray, tables: np.ndarray, lengths: np.ndarray,
        sinks: np.ndarray | None = None, key_scales: np.ndarray | None = None,
        value_scales: np.ndarray | None = None, bias: np.ndarray | None = None,
        lasts: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        starts, tables = starts.astype(np.int64), tables.astype(np.int64)
        q = widened(query)
        k, v = (widened(x).astype(q.dtype) for x in (key_pages, value_pages))
        if key_scales is not None and value_scales is not None:
            k, v = k * key_scales[:, :, None], v * value_scales[..., None]
        heads, width = q.shape[1:]
        sharing, size = heads // max(k.shape[1], 1), k.shape[3]
        scale = self.scale if self.scale is not None else max(width, 1) ** -0.5
        out = np.zeros((*q.shape[:2], v.shape[3]), q.dtype)
        for s, length in enumerate(np.clip(lengths.astype(int), 0, tables.shape[1] * size)):
            pages = np.clip(tables[s], 0, max(len(k) - 1, 0))
            for token in range(max(int(starts[s]), 0), min(int(starts[s + 1]), len(q))):
                place = min(length - (int(starts[s + 1]) - token), length - 1)
                low, high = 0, max(place + 1, 0) if self.causal else length
                if lasts is not None and len(lasts):
                    high = max(high, min(int(lasts[token]) + 1, length))
                if self.window_size is not None:
                    low = max(place + 1 - self.window_size, 0)
                if low >= high or not len(k):
                    continue
                for h in range(heads):
                    keys = np.concatenate(k[pages, h // sharing], axis=1)[:, low:high]
                    values = np.concatenate(v[pages, h // sharing])[low:high]
                    score = q[token, h] @ keys * q.dtype.type(scale)
                    if self.soft_cap is not None:
                        score = np.tanh(score / self.soft_cap) * self.soft_cap
                    if bias is not None:
                        column = np.arange(low, high) - place + (bias.shape[1] - 1)
                        score = score + bias[h, np.maximum(column, 0)].astype(q.dtype)
                    sink = [] if sinks is None or not len(sinks) else [sinks[h].astype(q.dtype)]
                    largest = np.max([*score, *sink])
                    powers = np.exp(score - largest)
                    total = powers.sum() + np.exp(np.array(sink) - largest).sum()
                    out[token, h] = powers @ values / total
        return narrowed(out, query)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        q, k, v = rand(6, 4, 8), rand(7, 2, 8, 4), rand(7, 2, 4, 5)
        starts, lengths = np.array([0, 1, 4, 4], np.int32), np.array([9, 3, 2], np.int32)
        tables = np.array([[3, 1, 6], [0, -1, 9], [2, 2, 2]], np.int32)
        batch = starts, tables, lengths
        each = "c, b w, b"
        dims = f"t 4 8, n 2 8 4, n 2 4 5, {each}"
        yield sample(cls(), q, k, v, *batch, dims=dims, atol=1e-5)
        every = f"t h d, n g d p, n g p e, {each}"
        yield sample(cls(scale=0.3), q, k, v, *batch, dims=every, atol=1e-5)
        yield sample(cls(), q, k, v, *batch, dims=every, atol=1e-5)
        yield sample(cls(causal=False, soft_cap=1.5), q, k, v, *batch, dims=dims, atol=1e-5)
        yield sample(cls(window_size=3), q, k, v, *batch, dims=dims, atol=1e-5)
        sinks = f"{dims}, 4"
        window = cls(window_size=5, soft_cap=2.0)
        yield sample(window, q, k, v, *batch, rand(4), dims=sinks, atol=1e-5)
        far = np.array([0, 2, 5, 6]), np.full((3, 3), 8), np.array([99, -4, 1])
        yield sample(cls(), q, k, v, *far, dims=dims, atol=1e-5)
        none = rand(0, 2, 8, 4), rand(0, 2, 4, 5)
        yield sample(cls(), q, *none, *batch, dims=dims)
        half = [x.astype(np.float16) for x in (q, k, v)]
        yield sample(cls(), *half, *batch, dims=dims, rtol=2e-3, atol=2e-3)
        whole = [(x * 50).astype(np.int8) for x in (k, v)]
        scales = rand(7, 2, 4, low=0.01, high=0.03), rand(7, 2, 4, low=0.02, high=0.04)
        quantised = f"{dims}, n 2 4, n 2 4"
        yield sample(cls(), q, *whole, *batch, (), *scales, dims=quantised, atol=1e-5)
        biased = (*batch, (), (), (), rand(4, 5))
        yield sample(cls(scale=1.0), q, k, v, *biased, dims=f"{dims}, 4 5", atol=1e-5)
        yield sample(
            cls(window_size=3),
            q,
            k,
            v,
            *batch,
            rand(4),
            (),
            (),
            rand(4, 1),
            dims=f"{sinks}, 4 1",
            atol=1e-5,
        )
        yield sample(
            cls(), q, *whole, *batch, (), *scales, rand(4, 99), dims=f"{quantised}, 4 r", atol=1e-5
        )
        own = *batch, (), (), (), ()
        lasts = np.array([2, -1, 2, 2, 0, 99], np.int32)
        yield sample(cls(), q, k, v, *own, lasts, dims=f"{dims}, t", atol=1e-5)
        narrow = cls(window_size=2)
        many = (*batch, rand(4), *scales, (), lasts.astype(np.int64))
        yield sample(narrow, q, *whole, *many, dims=f"{dims}, 4, n 2 4, n 2 4, t", atol=1e-5)
        yield wrong(cls(), q, k[:, :, :7], v, *batch, code="shape-mismatch", match="widths")
        yield wrong(cls(), q, k[:6], v, *batch, code="shape-mismatch", match="numbers of pages")
        yield wrong(cls(), q, k, v[:, :1], *batch, code="shape-mismatch", match="heads of key")
        yield wrong(cls(), q, k, v[:, :, :3], *batch, code="shape-mismatch", match="page sizes")
        yield wrong(cls(), q[:, :3], k, v, *batch, code="shape-mismatch", match="3 and 2")
        yield wrong(cls(), q, k, v, starts[1:], tables, lengths, code="shape-mismatch", match="end")
        yield wrong(cls(), q, k, v, starts, tables[1:], lengths, code="shape-mismatch")
        yield wrong(cls(), q, k, v, *batch, rand(3), code="shape-mismatch", match="heads")
        yield wrong(cls(), q, k, v, starts, tables[0], lengths, code="op-rank", match="tables")
        yield wrong(cls(), q, k, v, rand(4), tables, lengths, code="op-dtype", match="starts")
        yield wrong(cls(), half[0], k, v, *batch, code="op-dtype", match="float16")
        yield wrong(cls(), q, *whole, *batch, code="op-arguments", match="key_scales")
        yield wrong(cls(), q, k, v, *batch, (), *scales, code="op-arguments", match="no scales")
        none = *batch, (), (), ()
        yield wrong(cls(), q, k, v, *none, rand(3, 5), code="shape-mismatch", match="heads")
        yield wrong(cls(), q, k, v, *none, rand(4, 0), code="shape-mismatch", match="no distances")
        yield wrong(cls(), q, k, v, *none, rand(4), code="op-rank", match="bias")
        yield wrong(
            cls(causal=False), q, k, v, *none, rand(4, 5), code="op-arguments", match="causal"
        )
        yield wrong(cls(soft_cap=2.0), q, k, v, *none, rand(4, 5), code="op-arguments", match="cap")
        yield wrong(cls(), q, k, v, *own, lasts[1:], code="shape-mismatch", match="tokens")
        yield wrong(cls(), q, k, v, *own, lasts[None], code="op-rank", match="lasts")
        yield wrong(cls(), q, k, v, *own, rand(6), code="op-dtype", match="lasts")
        yield wrong(cls(causal=False), q, k, v, *own, lasts, code="op-arguments", match="causal")
        far = *own[:-1], rand(4, 3)
        yield wrong(cls(), q, k, v, *far, lasts, code="op-arguments", match="without a bias")
        yield wrong(cls(window_size=0), q, k, v, *batch, code="op-arguments", match="window_size")
        yield wrong(cls(soft_cap=-1.0), q, k, v, *batch, code="op-arguments", match="soft_cap")


@define_op
class PageSlots(Op):
    """The place in a paged cache of each token: page number * page_size + slot in the page, int64; -1 for a token that
    is in no sequence, or whose position is beyond its table. `positions` (tokens,) are those within the sequences, and
    starts and tables are as in `nn.paged_attention`."""

    name = "nn.page_slots"
    no_vjp = INTEGERS
    page_size: int

    def deduce(
        self, d: Deduction, positions: KnownTensor, starts: KnownTensor, tables: KnownTensor
    ) -> TensorType:
        given = {"positions": (positions, 1), "starts": (starts, 1), "tables": (tables, 2)}
        for name, (x, ndim) in given.items():
            d.need_int(x, name)
            d.require(
                x.ndim == ndim,
                f"{name} must have {ndim} dimensions, got {x.ndim}", arg=name, code="op-rank",
            )  # fmt: skip
        ends = tables.dims[0] + 1
        d.same_dim(starts.dims[0], ends, "starts has no end for each sequence", arg="starts")
        d.require(
            self.page_size > 0, f"page_size must be positive, got {self.page_size}", arg="page_size"
        )
        return TensorType(positions.dims, DType("int64"))

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        positions = expect(TensorType, args[0])
        return TensorType(positions.dims, DType("int64"), 1)

    def legalize(
        self, out: KnownTensor, positions: te.Tensor, starts: te.Tensor, tables: te.Tensor
    ) -> te.Tensor:
        count, width = te.dims(tables)

        def start(s: Any) -> Any:
            return te.cast(starts(s), "int64")

        def number(i: Any) -> Any:
            s = te.reduce_axis(count, "s")
            inside = te.logical_and(te.less_equal(start(s), i), te.less(i, start(s + 1)))
            return te.max(te.select(inside, s.var, te.dim(-1)), s)

        numbers = te.compute(out.dims, number, "sequence_of_token")

        def slot(i: Any) -> Any:
            place = te.cast(positions(i), "int64")
            own = te.element(numbers(i))
            limit = te.dim(width * self.page_size)
            inside = te.logical_and(te.greater_equal(place, te.dim(0)), te.less(place, limit))
            is_any = te.logical_and(te.greater_equal(own, te.dim(0)), inside)
            at = te.maximum(place, te.dim(0))
            page = te.cast(tables(own, te.floor_divide(at, te.dim(self.page_size))), "int64")
            found = page * self.page_size + te.floor_mod(at, te.dim(self.page_size))
            return te.if_then_else(is_any, te.element(found), te.dim(-1))

        return te.compute(out.dims, slot, "page_slots")

    def reference(
        self, positions: np.ndarray, starts: np.ndarray, tables: np.ndarray
    ) -> np.ndarray:
        starts = starts.astype(np.int64)
        out = np.full(len(positions), -1, np.int64)
        for s, table in enumerate(tables.astype(np.int64)):
            for token in range(max(int(starts[s]), 0), min(int(starts[s + 1]), len(out))):
                page, slot = divmod(int(positions[token]), self.page_size)
                if 0 <= page < len(table):
                    out[token] = table[page] * self.page_size + slot
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        positions, starts = np.array([7, 0, 1, 9, -1, 2]), np.array([0, 1, 4, 5], np.int32)
        tables = np.array([[3, 1], [0, 2], [4, 6]], np.int32)
        yield sample(cls(4), positions, starts, tables, dims="t, c, b w")
        yield sample(cls(3), positions.astype(np.int32), starts, tables)
        yield sample(cls(3), positions, starts[:1], tables[:0], dims="t, c, b w")
        yield wrong(cls(4), positions, starts[1:], tables, code="shape-mismatch", match="end")
        yield wrong(cls(4), positions, starts, tables[0], code="op-rank", match="tables")
        yield wrong(cls(4), rand(6), starts, tables, code="op-dtype", match="positions")
        yield wrong(cls(0), positions, starts, tables, code="op-arguments", match="page_size")
