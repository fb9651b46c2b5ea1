"""Attention: softmax(query @ key^T * scale + bias) @ value for each head, with causal and sliding-window masks, and for
several sequences of different lengths packed into one tensor. Narrower floats are computed in float32, in the order of
the formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op, maximum
from relaxpy.ir.expr import Expr, PrimValue
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.linear_algebra import swapped
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.rule import Cotangent, Rule

_MASKS = ("TopLeft", "BottomRight")

IsSeen = Callable[[Any, Any], Any]
"""Does the query at one index attend to the key at another? None instead of a function: every query attends to every
key."""


class AttentionLike(Op):
    """The common part of the attention operators: scale, masks and the steps of the computation."""

    mixed = "follow"

    of_data = True
    scale: float | None
    causal_mask: str | None
    window_size: int | None

    def check(
        self, d: Deduction, query: KnownTensor, key: KnownTensor, value: KnownTensor
    ) -> TensorType:
        """Return the annotation of the result; refuse arguments whose shapes or dtypes do not fit together."""
        d.need_float(query, "query")
        d.same_dtype(query, key, value)
        for name, x in (("query", query), ("key", key), ("value", value)):
            d.require(
                x.ndim == 4,
                f"{name} must have 4 dimensions (batch, sequence, heads, width), got {x.ndim}",
                arg=name, code="op-rank",
            )  # fmt: skip
        batch, length, heads, width = query.dims
        d.same_dim(batch, key.dims[0], "batch sizes of query and key differ", arg="key")
        d.same_dim(batch, value.dims[0], "batch sizes of query and value differ", arg="value")
        d.same_dim(key.dims[1], value.dims[1], "lengths of key and value differ", arg="value")
        d.same_dim(key.dims[2], value.dims[2], "heads of key and value differ", arg="value")
        d.same_dim(width, key.dims[3], "widths of query and key differ", arg="key")
        groups = key.dims[2]
        d.ensure(
            divides(groups, heads),
            f"the heads of query cannot be divided among those of key: {heads} and {groups}",
            arg="key",
        )
        d.require(
            self.causal_mask is None or self.causal_mask in _MASKS,
            f"causal_mask {self.causal_mask!r} is none of {', '.join(_MASKS)}", arg="causal_mask",
        )  # fmt: skip
        if self.window_size is not None:
            d.require(
                self.window_size > 0, f"window_size must be positive, got {self.window_size}",
                arg="window_size",
            )  # fmt: skip
            d.require(
                self.causal_mask is not None, "window_size needs a causal_mask", arg="window_size",
                help="the window ends at the mask's diagonal: pass causal_mask=\"BottomRight\"",
            )  # fmt: skip
        return TensorType((batch, length, heads, value.dims[3]), query.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        query, _, value, *_ = args
        query = expect(TensorType, query)
        value = expect(TensorType, value)
        if query.dims is None or value.dims is None:
            return TensorType(None, query.dtype, 4)
        return TensorType((*query.dims[:3], value.dims[3]), query.dtype)

    def is_seen(self, query: Any, key: Any, queries: Any, keys: Any, either: Any) -> list[Any]:
        """The mask as conditions on the indices of a query and a key, for sequences of these lengths; empty without
        `causal_mask`. Works on te expressions and on numpy arrays (`either` is their logical or)."""
        if self.causal_mask is None:
            return []
        # Below i + |keys - queries| is below one of the two; TVM's analyser fails on an absolute value.
        diagonals = [query]
        if self.causal_mask == "BottomRight":
            diagonals = [query + (keys - queries), query + (queries - keys)]
        below = [key <= diagonal for diagonal in diagonals]
        conditions = [below[0] if len(below) == 1 else either(*below)]
        if self.window_size is not None:
            conditions += [key > diagonal - self.window_size for diagonal in diagonals]
        return conditions

    def steps(
        self,
        out: KnownTensor,
        query: te.Tensor,
        key: te.Tensor,
        value: te.Tensor,
        bias: te.Tensor | None,
        seen: Callable[[Any, Any], Any] | None,
    ) -> te.Tensor:
        """Compute scores, softmax and the weighted sum of values. Keys masked by `seen` (a function of the indices of
        query and key) are left out."""
        batch, length, heads, width = te.dims(query)
        keys, wide = te.dims(key)[1], str(te.dtype_of(te.widen(query(0, 0, 0, 0))))
        sharing = te.dim(maximum(heads // maximum(te.dims(key)[2], 1), 1))
        square = (batch, heads, length, keys)
        scale = te.const(self.scale or 0, wide)
        if self.scale is None:
            scale = te.rsqrt(te.cast(te.dim(width), wide))
        k, j, o, p = (
            te.reduce_axis(extent, name)
            for extent, name in ((width, "k"), (keys, "j"), (keys, "o"), (keys, "p"))
        )

        def product(b: Any, h: Any, i: Any, at: Any) -> Any:
            return te.sum(te.widen(query(b, i, h, k)) * te.widen(key(b, at, h // sharing, k)), k)

        products = te.compute(square, product, "products")

        def score(b: Any, h: Any, i: Any, at: Any) -> Any:
            scaled = products(b, h, i, at) * scale
            return (
                scaled
                if bias is None
                else scaled + te.widen(te.broadcast(bias, square, (b, h, i, at)))
            )

        scores = te.compute(square, score, "scores")

        def where_seen(i: Any, at: Any, then: Any, otherwise: float) -> Any:
            return (
                then
                if seen is None
                else te.select(seen(i, at), te.element(then), te.const(otherwise, wide))
            )

        largest = te.compute(
            square[:3],
            lambda b, h, i: te.max(where_seen(i, j, te.element(scores(b, h, i, j)), -math.inf), j),
            "largest",
        )

        def power(b: Any, h: Any, i: Any, at: Any) -> Any:
            return where_seen(i, at, te.exp(scores(b, h, i, at) - largest(b, h, i)), 0.0)

        powers = te.compute(square, power, "powers")
        totals = te.compute(
            square[:3], lambda b, h, i: te.sum(te.element(powers(b, h, i, o)), o), "totals"
        )

        def weighted(b: Any, i: Any, h: Any, c: Any) -> Any:
            part = te.widen(value(b, p, h // sharing, c))
            # 0 times infinity is NaN, but a masked key must have no weight at all
            return te.sum(where_seen(i, p, powers(b, h, i, p) * part, 0.0), p)

        sums = te.compute(out.dims, weighted, "sums")

        def element(b: Any, i: Any, h: Any, c: Any) -> Any:
            total = te.element(totals(b, h, i))
            zero = te.literal(0, total)
            return te.cast(
                te.select(te.equal(total, zero), zero, sums(b, i, h, c) / total), out.dtype
            )

        return te.compute(out.dims, element, "attention")

    def on_numpy(
        self,
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        bias: np.ndarray | None,
        seen: np.ndarray,
    ) -> np.ndarray:
        """The same as `steps` on numpy; `seen` is a matrix of queries by keys."""
        q, k, v = widened(query), widened(key), widened(value)
        sharing = q.shape[2] // max(k.shape[2], 1)
        k, v = (np.repeat(x, sharing, axis=2) for x in (k, v))
        scale = 1 / np.sqrt(q.dtype.type(q.shape[3])) if self.scale is None else self.scale
        scores = np.einsum("bihc,bjhc->bhij", q, k) * q.dtype.type(scale)
        if bias is not None:
            scores = scores + widened(bias)
        # The maximum starts at a finite number, so that a row of minus infinities gives exponentials of 0, not NaN.
        least = np.finfo(scores.dtype).min
        largest = np.max(np.where(seen, scores, -np.inf), axis=-1, keepdims=True, initial=least)
        powers = np.exp(np.where(seen, scores - largest, -np.inf))
        total = powers.sum(axis=-1, keepdims=True)
        parts = powers[..., None] * v.transpose(0, 2, 1, 3)[:, :, None]
        sums = np.where(seen[..., None], parts, q.dtype.type(0)).sum(axis=-2)
        result = np.where(total == 0, q.dtype.type(0), sums / np.where(total == 0, 1, total))
        return narrowed(result.transpose(0, 2, 1, 3), query)


def divides(divisor: Dim, x: Dim) -> Dim:
    """Whether `divisor`, which may be 0, divides x."""
    return dim_op("eq", x, x // maximum(divisor, 1) * divisor)


def _all(conditions: Sequence[Any]) -> Any:
    met = conditions[0]
    for condition in conditions[1:]:
        met = te.logical_and(met, condition)
    return met


@dataclass(frozen=True)
class DenseAttention(AttentionLike):
    """Attention over a batch of sequences of one length."""

    scale: float | None = None
    """Factor of the scores; None: 1 / sqrt(width)."""
    causal_mask: str | None = None
    """"TopLeft": query i attends to the keys up to i. "BottomRight": query i attends to the keys up to i + |keys -
    queries|. None: no mask."""
    window_size: int | None = None
    """Sliding window: the number of keys, up to the diagonal of the mask, that a query attends to; None: all."""

    def deduce(
        self, d: Deduction, query: KnownTensor, key: KnownTensor, value: KnownTensor,
        bias: KnownTensor | None = None,
    ) -> TensorType:  # fmt: skip
        result = self.check(d, query, key, value)
        if bias is not None:
            d.same_dtype(query, bias)
            d.require(
                bias.ndim == 4,
                f"bias must have 4 dimensions (batch, heads, queries, keys), got {bias.ndim}",
                arg="bias", code="op-rank",
            )  # fmt: skip
            batch, length, heads, _ = query.dims
            for size, wanted in zip(bias.dims, (batch, heads, length, key.dims[1]), strict=True):
                d.ensure(
                    dim_op("or", dim_op("eq", size, 1), dim_op("eq", size, wanted)),
                    f"bias cannot be broadcast to (batch, heads, queries, keys): {size} and {wanted}",
                    arg="bias",
                )
        return result

    def legalize(
        self, out: KnownTensor, query: te.Tensor, key: te.Tensor, value: te.Tensor,
        bias: te.Tensor | None,
    ) -> te.Tensor:  # fmt: skip
        queries, keys = (te.dim(te.dims(x)[1]) for x in (query, key))

        def seen(i: Any, j: Any) -> Any:
            return _all(self.is_seen(i, j, queries, keys, te.logical_or))

        return self.steps(out, query, key, value, bias, seen if self.causal_mask else None)

    def reference(
        self, query: np.ndarray, key: np.ndarray, value: np.ndarray, bias: np.ndarray | None = None
    ) -> np.ndarray:
        i, j = np.indices((query.shape[1], key.shape[1]))
        seen = np.ones(i.shape, bool)
        for condition in self.is_seen(i, j, query.shape[1], key.shape[1], np.logical_or):
            seen &= condition
        return self.on_numpy(query, key, value, bias, seen)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        q, k, v = rand(2, 3, 4, 5), rand(2, 6, 4, 5), rand(2, 6, 4, 2)
        dims = "b s 4 5, b t 4 5, b t 4 2"
        yield sample(cls(), q, k, v, dims=dims, atol=1e-5)
        yield sample(cls(scale=0.3), q, k, v, dims="b s h d, b t h d, b t h e", atol=1e-5)
        yield sample(cls(causal_mask="TopLeft"), q, k, v, dims=dims, atol=1e-5)
        yield sample(cls(causal_mask="BottomRight"), q, k, v, dims=dims, atol=1e-5)
        shared = q, k[:, :, :2], v[:, :, :2]
        yield sample(cls(), *shared, dims="b s 4 5, b t 2 5, b t 2 2", atol=1e-5)
        yield sample(cls(), *shared, dims="b s h 5, b t g 5, b t g 2", atol=1e-5)
        window = cls(causal_mask="BottomRight", window_size=2)
        yield sample(window, q, k, v, dims=dims, atol=1e-5)
        behind = cls(causal_mask="TopLeft", window_size=1)
        yield sample(behind, k, q, rand(2, 3, 4, 2), dims="b t 4 5, b s 4 5, b s 4 2", atol=1e-5)
        biased, each = rand(2, 4, 3, 6), dims + ", b 4 s t"
        yield sample(cls(), q, k, v, biased, dims=each, atol=1e-5)
        yield sample(cls(0.5, "BottomRight"), q, k, v, biased[:1, :1], dims=dims + ", 1 1 s t")
        hidden = np.where(rand(2, 1, 1, 6) > 1, -np.inf, 0).astype(np.float32)
        yield sample(cls(), q, k, v, hidden, dims=dims + ", b 1 1 t", atol=1e-5)
        half = [x.astype(np.float16) for x in (q, k, v)]
        yield sample(cls(), *half, dims=dims, rtol=2e-3, atol=2e-3)
        yield wrong(cls(), q, k[:, :, :3], v[:, :, :3], code="shape-mismatch", match="4 and 3")
        yield wrong(cls(), q, k[..., :4], v, code="shape-mismatch", match="widths")
        yield wrong(cls(), q, k, v[:, :5], code="shape-mismatch", match="lengths")
        yield wrong(cls(), q, k[:1], v[:1], code="shape-mismatch", match="batch")
        yield wrong(cls(), q[0], k, v, code="op-rank", match="query must have 4")
        yield wrong(cls(), q, k, v, biased[0], code="op-rank", match="bias")
        yield wrong(cls(), q, k, v, biased[..., :4], code="shape-mismatch", match="bias")
        yield wrong(cls(causal_mask="Top"), q, k, v, code="op-arguments", match="Top")
        yield wrong(cls(window_size=2), q, k, v, code="op-arguments", match="causal_mask")
        yield wrong(cls(causal_mask="TopLeft", window_size=0), q, k, v, code="op-arguments")
        yield wrong(cls(), q, k, half[2], code="op-dtype", match="float16")


@define_op
class Attention(DenseAttention):
    """Multi-head attention: softmax(query @ key^T * scale + bias) @ value. `query` is (batch, queries, heads, width),
    `key` and `value` are (batch, keys, key heads, width), and `bias` is broadcast to (batch, heads, queries, keys).
    With grouped-query attention the number of key heads divides the number of heads, and neighbouring heads share a key
    head. A query whose keys are all masked, or whose scores are all minus infinity, gives 0."""

    name = "nn.attention"

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        query, key, value, bias = args
        return attention_cotangents(b, self, query, key, value, bias, out, ct)


@define_op
class AttentionBias(DenseAttention):
    """`nn.attention` under the name that TVM prints for calls with a bias."""

    name = "nn.attention_bias"

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        query, key, value, bias = args
        return attention_cotangents(b, self, query, key, value, bias, out, ct)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        q, k, v, bias = rand(2, 3, 2, 4), rand(2, 5, 2, 4), rand(2, 5, 2, 3), rand(2, 1, 3, 5)
        dims = "b s 2 4, b t 2 4, b t 2 3"
        yield sample(cls(), q, k, v, bias, dims=dims + ", b 1 s t", atol=1e-5)
        yield sample(cls(causal_mask="TopLeft"), q, k, v, dims=dims, atol=1e-5)
        yield wrong(cls(), q, k, v, bias[..., 1:], code="shape-mismatch", match="4 and 5")


@define_op
class AttentionVarLen(AttentionLike):
    """Attention within each of several sequences packed along axis 1 of query (1, total queries, heads, width), key and
    value. Sequence s has the queries from seqstart_q[s] up to seqstart_q[s + 1], and the keys from seqstart_k[s] (None:
    same as seqstart_q) up to seqstart_k[s + 1]. The offsets must not decrease. A query gives 0 if it is in no sequence,
    if all its keys are masked, or if all its scores are minus infinity. The maximum lengths max_seqlen_q and
    max_seqlen_k are accepted and not used."""

    name = "nn.attention_var_len"
    no_vjp = "its sequences are packed: nn.attention has a rule"
    scale: float | None = None
    """Factor of the scores; None: 1 / sqrt(width)."""
    causal_mask: str | None = None
    """"TopLeft": query i of a sequence attends to its keys up to i. "BottomRight": up to i + |keys - queries|. None: no
    mask."""
    window_size: int | None = None
    """Sliding window: the number of keys, up to the diagonal of the mask, that a query attends to; None: all."""

    def deduce(
        self, d: Deduction, queries: KnownTensor, keys: KnownTensor, values: KnownTensor,
        seqstart_q: KnownTensor, max_seqlen_q: KnownTensor, seqstart_k: KnownTensor | None = None,
        max_seqlen_k: KnownTensor | None = None,
    ) -> TensorType:  # fmt: skip
        result = self.check(d, queries, keys, values)
        d.same_dim(queries.dims[0], Dim.of(1), "the batch of all sequences is not 1", arg="queries")
        for name, starts in (("seqstart_q", seqstart_q), ("seqstart_k", seqstart_k)):
            if starts is None:
                continue
            d.need_int(starts, name)
            d.require(
                starts.ndim == 1,
                f"{name} must have 1 dimension, got {starts.ndim}", arg=name, code="op-rank",
            )  # fmt: skip
            d.ensure(dim_op("le", 1, starts.dims[0]), f"{name} must have an element", arg=name)
            d.same_dim(
                seqstart_q.dims[0],
                starts.dims[0],
                "seqstart_q and seqstart_k differ in length",
                arg=name,
            )
        for name, longest in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
            if longest is not None:
                d.need_int(longest, name)
                d.require(
                    longest.ndim == 0,
                    f"{name} must have 0 dimensions, got {longest.ndim}", arg=name, code="op-rank",
                )  # fmt: skip
        return result

    def legalize(
        self, out: KnownTensor, queries: te.Tensor, keys: te.Tensor, values: te.Tensor,
        seqstart_q: te.Tensor, max_seqlen_q: te.Tensor, seqstart_k: te.Tensor | None,
        max_seqlen_k: te.Tensor | None,
    ) -> te.Tensor:  # fmt: skip
        of_query, of_key = (
            _sequences(te.dims(x)[1], starts, name)
            for x, starts, name in (
                (queries, seqstart_q, "query"),
                (keys, seqstart_q if seqstart_k is None else seqstart_k, "key"),
            )
        )

        def seen(i: Any, j: Any) -> Any:
            """Whether query i and key j are in the same sequence, and the mask of that sequence allows the pair."""
            sequence, first, length = (te.element(x(i)) for x in of_query)
            other, first_key, keys_length = (te.element(x(j)) for x in of_key)
            conditions = [
                te.equal(sequence, other),
                te.greater_equal(sequence, te.literal(0, sequence)),
            ]
            conditions += self.is_seen(i - first, j - first_key, length, keys_length, te.logical_or)
            return _all(conditions)

        return self.steps(out, queries, keys, values, None, seen)

    def reference(
        self, queries: np.ndarray, keys: np.ndarray, values: np.ndarray, seqstart_q: np.ndarray,
        max_seqlen_q: np.ndarray, seqstart_k: np.ndarray | None = None,
        max_seqlen_k: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        starts_q = seqstart_q.astype(np.int64)
        starts_k = starts_q if seqstart_k is None else seqstart_k.astype(np.int64)
        of_query, of_key = np.full(queries.shape[1], -1), np.full(keys.shape[1], -1)
        for s in range(len(starts_q) - 1):
            of_query[max(starts_q[s], 0) : max(starts_q[s + 1], 0)] = s
            of_key[max(starts_k[s], 0) : max(starts_k[s + 1], 0)] = s
        i, j = np.indices((queries.shape[1], keys.shape[1]))
        seen = np.zeros(i.shape, bool)
        for s in range(len(starts_q) - 1):
            ours = (of_query[:, None] == s) & (of_key == s)
            lengths = starts_q[s + 1] - starts_q[s], starts_k[s + 1] - starts_k[s]
            for condition in self.is_seen(
                i - starts_q[s], j - starts_k[s], *lengths, np.logical_or
            ):
                ours &= condition
            seen |= ours
        return self.on_numpy(queries, keys, values, None, seen)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        q, k, v = rand(1, 7, 2, 4), rand(1, 7, 2, 4), rand(1, 7, 2, 3)
        starts, longest = np.array([0, 2, 2, 6], np.int32), np.array(4, np.int32)
        dims = "1 s 2 4, 1 s 2 4, 1 s 2 3, n"
        yield sample(cls(), q, k, v, starts, longest, dims=dims, atol=1e-5)
        yield sample(cls(0.7, "TopLeft"), q, k, v, starts, longest, dims=dims, atol=1e-5)
        more = np.array([0, 3, 4, 9], np.int32), np.array(5, np.int32)
        longer = q, rand(1, 9, 1, 4), rand(1, 9, 1, 3), starts, longest, *more
        each = "1 s 2 4, 1 t 1 4, 1 t 1 3, n, , n"
        yield sample(cls(), *longer, dims=each, atol=1e-5)
        last = cls(causal_mask="BottomRight", window_size=2)
        yield sample(last, *longer, dims=each, atol=1e-5)
        yield wrong(cls(), q, k, v, rand(3), longest, code="op-dtype", match="seqstart_q")
        yield wrong(cls(), q, k, v, starts[None], longest, code="op-rank", match="seqstart_q")
        yield wrong(cls(), q, k, v, starts, more[0], code="op-rank", match="max_seqlen_q")
        yield wrong(cls(), *longer[:5], starts[1:], code="shape-mismatch", match="seqstart_k")
        two = rand(2, 3, 2, 4)
        yield wrong(cls(), two, two, two, starts, longest, code="shape-mismatch", match="batch")


def _sequences(places: Dim, starts: te.Tensor, name: str) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """For each index: the number of its sequence (-1: none), the offset where that sequence starts, and its length."""
    (count,) = te.dims(starts)

    def start(s: Any) -> Any:
        return te.cast(starts(s), "int64")

    def number(i: Any) -> Any:
        s = te.reduce_axis(count - 1, "s")
        inside = te.logical_and(te.less_equal(start(s), i), te.less(i, start(s + 1)))
        return te.max(te.select(inside, s.var, te.dim(-1)), s)

    numbers = te.compute((places,), lambda i: number(i), f"sequence_of_{name}")

    def number_or_0(i: Any) -> Any:
        return te.maximum(numbers(i), te.dim(0))

    firsts = te.compute((places,), lambda i: start(number_or_0(i)), f"first_{name}")

    def length(i: Any) -> Any:
        after = te.minimum(number_or_0(i) + 1, te.dim(count - 1))
        return start(after) - firsts(i)

    return numbers, firsts, te.compute((places,), length, f"{name}_length")


def attention_cotangents(
    b: Rule,
    op: AttentionLike,
    query: Expr,
    key: Expr,
    value: Expr,
    bias: Expr | None,
    out: Expr,
    ct: Expr,
) -> list[Any]:
    """The cotangents of attention: the probabilities are computed again. Heads of the query that share one of the key
    are an axis of their own."""
    batch, queries, heads, width = b.dims(query)
    keys, groups = b.dims(key)[1:3]
    sharing, dtype = heads // maximum(groups, 1), b.dtype(ct)
    narrow = dtype.is_narrow

    def by_head(x: Expr, shared: bool) -> Expr:
        """X as (batch, groups, sharing, sequence, width)."""
        _, length, _, size = b.dims(x)
        parts = b.reshape(x, (batch, length, groups, sharing if shared else 1, size))
        parts = b.permute_dims(parts, (0, 2, 3, 1, 4))
        return b.astype(parts, "float32") if narrow else parts

    def back(x: Expr, like: Expr) -> Expr:
        shape = b.dims(like)
        parts = b.summed(x, (batch, groups, shape[2] // maximum(groups, 1), shape[1], shape[3]))
        parts = b.reshape(b.permute_dims(parts, (0, 3, 1, 2, 4)), shape)
        return b.astype(parts, dtype) if narrow else parts

    q, o, g = (by_head(x, True) for x in (query, out, ct))
    k, v = (by_head(x, False) for x in (key, value))
    scale: Any = op.scale
    if scale is None and width.value is not None:
        scale = 1 / math.sqrt(max(width.value, 1))
    elif scale is None:
        scale = b.rsqrt(b.scalar_to_tensor(PrimValue(width, b.dtype(q)), b.dtype(q)))
    scores = b.multiply(b.matmul(q, swapped(b, k)), scale)
    square = (batch, heads, queries, keys)
    if bias is not None:
        whole = b.broadcast_to(b.astype(bias, b.dtype(q)), square)
        scores = b.add(scores, b.reshape(whole, b.dims(scores)))
    seen = seen_keys(b, op, queries, keys)
    if seen is None:
        shares = b.nn.softmax(scores, -1)
    else:
        shares = b.where(seen, b.nn.softmax(b.where(seen, scores, -1e30), -1), 0.0)
    of_value = b.matmul(swapped(b, shares), g)
    own = b.sum(b.multiply(g, o), -1, keepdims=True)
    of_scores = b.multiply(shares, b.subtract(b.matmul(g, swapped(b, v)), own))
    of_bias = None
    if bias is not None:
        of_bias = b.astype(b.summed(b.reshape(of_scores, square), b.dims(bias)), b.dtype(bias))
    of_products = b.multiply(of_scores, scale)
    of_query = b.matmul(of_products, k)
    of_key = b.matmul(swapped(b, of_products), q)
    return [back(of_query, query), back(of_key, key), back(of_value, value), of_bias]


def seen_keys(b: Rule, op: AttentionLike, queries: Dim, keys: Dim) -> Expr | None:
    """The mask as a matrix of queries by keys."""
    if op.causal_mask is None:
        return None
    row = b.reshape(b.arange(PrimValue(queries)), (queries, 1))
    column = b.reshape(b.arange(PrimValue(keys)), (1, keys))
    diagonals = [row]
    if op.causal_mask == "BottomRight":
        diagonals = [b.add(row, keys - queries), b.add(row, queries - keys)]
    below = [b.less_equal(column, each) for each in diagonals]
    seen = below[0] if len(below) == 1 else b.logical_or(*below)
    if op.window_size is not None:
        for each in diagonals:
            seen = b.logical_and(seen, b.greater(column, b.subtract(each, op.window_size)))
    return seen
