"""Multi-head attention with the parameters of torch's layer."""

from __future__ import annotations

import math

from relaxpy.nn import op
from relaxpy.nn.construction import mistake
from relaxpy.nn.describe import options
from relaxpy.nn.linear import Linear
from relaxpy.nn.module import Module
from relaxpy.nn.parameter import Parameter
from relaxpy.nn.tensor import Tensor


class MultiheadAttention(Module):
    """Attention of several heads between projections (Vaswani et al., 2017), as in torch. `dropout` is accepted:
    nothing is dropped at inference."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        dtype: str = "float32",
    ) -> None:
        del dropout
        if num_heads < 1 or embed_dim % num_heads:
            raise mistake(
                "bad-spec", f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}"
            )
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.joined = kdim in (None, embed_dim) and vdim in (None, embed_dim)
        if self.joined:
            self.in_proj_weight = Parameter((3 * embed_dim, embed_dim), dtype)
        else:
            self.q_proj_weight = Parameter((embed_dim, embed_dim), dtype)
            self.k_proj_weight = Parameter((embed_dim, kdim or embed_dim), dtype)
            self.v_proj_weight = Parameter((embed_dim, vdim or embed_dim), dtype)
        self.in_proj_bias = Parameter((3 * embed_dim,), dtype) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype)

    def extra_repr(self) -> str:
        return options(
            embed_dim=self.embed_dim, num_heads=self.num_heads, batch_first=self.batch_first
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(queries, batch, embed) or with `batch_first` (batch, queries, embed), or without a batch; keys and values
        likewise. Returns a tensor like the query, and the weights (batch, queries, keys), or None without
        `need_weights`, which is faster.

        Masks are boolean, true for what is left out, or are added to the scores: `key_padding_mask` (batch, keys),
        `attn_mask` (queries, keys) or (batch * heads, queries, keys). `is_causal` leaves out keys after the query,
        without a mask.
        """
        if query.ndim == 2:
            query, key, value = (op.expand_dims(x, 0) for x in (query, key, value))
            padding = None if key_padding_mask is None else op.expand_dims(key_padding_mask, 0)
            y, weights = self._attend(
                query, key, value, padding, need_weights, attn_mask, is_causal
            )
            y = op.squeeze(y, 0)
            weights = None if weights is None else self._weights(weights, average_attn_weights)
            return y, None if weights is None else op.squeeze(weights, 0)
        if query.ndim != 3:
            raise mistake("op-rank", f"the query must have 2 or 3 axes, got {query.ndim}")
        turn = (1, 0, 2)
        if not self.batch_first:
            query, key, value = (op.permute_dims(x, turn) for x in (query, key, value))
        y, weights = self._attend(
            query, key, value, key_padding_mask, need_weights, attn_mask, is_causal
        )
        y = y if self.batch_first else op.permute_dims(y, turn)
        return y, None if weights is None else self._weights(weights, average_attn_weights)

    def _weights(self, weights: Tensor, average: bool) -> Tensor:
        return op.mean(weights, axis=1) if average else weights

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        need_weights: bool,
        mask: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """The result, and the weights of each head (batch, heads, queries, keys); arguments have the batch first."""
        q, k, v = self._projected(query, key, value)
        bias = self._bias(q, k, padding, mask)
        if not need_weights:
            causal = "TopLeft" if is_causal else None
            mixed = op.nn.attention(q, k, v, bias, causal_mask=causal)
            return self.out_proj(op.reshape(mixed, query.shape)), None
        q = op.permute_dims(q, (0, 2, 1, 3)) * (1 / math.sqrt(self.embed_dim // self.num_heads))
        scores = op.matmul(q, op.permute_dims(k, (0, 2, 3, 1)))
        scores = scores if bias is None else scores + bias
        if is_causal:
            shape = scores.shape[-2:]
            later = op.triu(op.full(shape, 1, "int32"), k=1)
            scores = op.where(op.equal(later, 1), float("-inf"), scores)
        weights = op.nn.softmax(scores, axis=-1)
        mixed = op.matmul(weights, op.permute_dims(v, (0, 2, 1, 3)))
        mixed = op.reshape(op.permute_dims(mixed, (0, 2, 1, 3)), query.shape)
        return self.out_proj(mixed), weights

    def _projected(self, *inputs: Tensor) -> list[Tensor]:
        """Queries, keys and values (batch, tokens, heads, width)."""
        size, heads = self.embed_dim, self.num_heads
        if self.joined:
            weights = op.split(self.in_proj_weight, 3, axis=0)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else op.split(self.in_proj_bias, 3)
        found = []
        for x, weight, bias in zip(inputs, weights, biases, strict=True):
            y = op.linear(x, weight)
            y = y if bias is None else y + bias
            found.append(op.reshape(y, (*x.shape[:2], heads, size // heads)))
        return found

    def _bias(
        self, q: Tensor, k: Tensor, padding: Tensor | None, mask: Tensor | None
    ) -> Tensor | None:
        """The term added to the scores (batch, heads, queries, keys); None if there is none."""
        batch, queries, heads, _ = q.shape
        keys = k.shape[1]
        found: Tensor | None = None
        if mask is not None:
            if mask.ndim not in (2, 3):
                raise mistake("op-rank", f"attn_mask must have 2 or 3 axes, got {mask.ndim}")
            shape = (1, 1, queries, keys) if mask.ndim == 2 else (batch, heads, queries, keys)
            found = op.reshape(self._added(mask, q), shape)
        if padding is not None:
            added = op.reshape(self._added(padding, q), (batch, 1, 1, keys))
            found = added if found is None else found + added
        return found

    def _added(self, mask: Tensor, like: Tensor) -> Tensor:
        if mask.dtype != "bool":
            return mask
        return op.where(mask, op.full((), float("-inf"), like.dtype), op.zeros((), like.dtype))


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    window: int = 0,
    scale: float | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | Parameter | None = None,
) -> Tensor:
    """Attention of queries (batch, seq, heads, head), the last of the tokens, to keys and values (batch, tokens, key
    heads, head) up to their own, of which the last `window` if it is not 0. `scale` is 1 / sqrt(head) by default.
    Scores are soft_cap * tanh(score / soft_cap), if that is given, and `sinks` (heads,) are for each head a score more
    in the softmax, that of no key. Returns a tensor of the query's shape."""
    if soft_cap is None and sinks is None:
        return op.nn.attention(
            query, key, value, causal_mask="BottomRight", window_size=window or None, scale=scale
        )
    batch, seq, heads, width = query.shape
    tokens, shared = key.shape[1], key.shape[2]
    groups = heads // shared
    by_head = op.reshape(query, (batch, seq, shared, groups, width))
    by_head = op.astype(op.permute_dims(by_head, (0, 2, 3, 1, 4)), "float32")
    keys = op.astype(op.permute_dims(key, (0, 2, 3, 1)), "float32")
    values = op.astype(op.permute_dims(value, (0, 2, 1, 3)), "float32")
    factor = scale if scale is not None else 1 / math.sqrt(int(str(width)))
    scores = op.matmul(by_head, op.expand_dims(keys, 2)) * factor
    if soft_cap is not None:
        scores = op.tanh(scores / soft_cap) * soft_cap
    own = op.expand_dims(op.arange(tokens - seq, tokens), 1)
    distance = own - op.expand_dims(op.arange(0, tokens), 0)
    reached = op.greater_equal(distance, 0)
    if window:
        reached = op.logical_and(reached, op.less(distance, window))
    scores = op.where(reached, scores, -math.inf)
    if sinks is not None:
        more = op.reshape(op.astype(sinks, "float32"), (1, shared, groups, 1, 1))
        more = op.broadcast_to(more, (batch, shared, groups, seq, 1))
        shares = op.nn.softmax(op.concat((scores, more), axis=-1), axis=-1)
        shares = op.split(shares, [tokens], axis=-1)[0]
    else:
        shares = op.nn.softmax(scores, axis=-1)
    mixed = op.matmul(shares, op.expand_dims(values, 2))
    mixed = op.permute_dims(mixed, (0, 3, 1, 2, 4))
    return op.astype(op.reshape(mixed, (batch, seq, heads, value.shape[3])), query.dtype)
