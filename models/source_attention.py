"""Attention in models with an encoder: of its positions to each other, and of the decoder's tokens to what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from relaxpy import nn
from relaxpy.nn import op
from relaxpy.nn.rotary import rotate

if TYPE_CHECKING:
    from relaxpy.models.encoder_decoder import EncoderDecoderConfig
    from relaxpy.models.tower_config import TowerConfig

MASKED = -1e30
"""The score of a position that is not there: large enough that exp gives 0, and far from overflow."""


class _Projections(nn.Module):
    """The four linear maps of an attention that reads a source."""

    def __init__(self, config: EncoderDecoderConfig | TowerConfig, width: int) -> None:
        """`width`: numbers of all heads."""
        hidden, dtype = config.hidden_size, config.dtype
        self.query = nn.Linear(hidden, width, config.has_bias("query"), dtype)
        self.key = nn.Linear(hidden, width, config.has_bias("key"), dtype)
        self.value = nn.Linear(hidden, width, config.has_bias("value"), dtype)
        self.output = nn.Linear(width, hidden, config.has_bias("output"), dtype)


class SourceAttention(_Projections):
    """Attention of every position of a source to all, or if `causal` to those up to its own."""

    def __init__(self, config: EncoderDecoderConfig | TowerConfig, causal: bool = False) -> None:
        super().__init__(config, config.encoder_width)
        self.heads, self.width = config.encoder_attention_heads, config.encoder_width
        self.scale, self.causal_mask = config.attention_scale, "TopLeft" if causal else None

    def forward(
        self,
        x: nn.Tensor,
        bias: nn.Tensor | None = None,
        reading: nn.Tensor | None = None,
        angles: tuple[nn.Tensor, nn.Tensor] | None = None,
    ) -> nn.Tensor:
        """(batch, source, hidden) → the same shape; or that of `reading` (batch, count, hidden), which reads the source
        in its place. `bias` is that of `nn.attention`; by `angles`, if there are some, neighbours of a head are
        rotated."""
        reading = x if reading is None else reading
        batch, head = x.shape[0], self.width // self.heads
        query, key, value = (
            op.reshape(f(y), (batch, y.shape[1], self.heads, head))
            for f, y in ((self.query, reading), (self.key, x), (self.value, x))
        )
        if angles is not None:
            query, key = (rotate(each, *angles, interleaved=True) for each in (query, key))
        mixed = op.nn.attention(
            query, key, value, bias, scale=self.scale, causal_mask=self.causal_mask
        )
        return self.output(op.reshape(mixed, (batch, reading.shape[1], self.width)))


class CrossAttention(_Projections):
    """Attention of the decoder's tokens to a source."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config, config.num_attention_heads * config.head_dim)
        self.config = config

    def fill(self, x: nn.Tensor, pages: nn.Pages, batch: nn.PagedBatch) -> nn.Pages:
        """Write the keys and values of encoders' outputs (batch, source, hidden) into their pages. Returns the
        pages."""
        cache = nn.PagedCache(pages, batch)
        config = self.config
        shape = x.shape[0] * x.shape[1], config.num_attention_heads, config.head_dim
        dtype = config.dtype if config.source_page_dtype == "int8" else config.source_page_dtype
        key, value = (op.astype(op.reshape(f(x), shape), dtype) for f in (self.key, self.value))
        cache.append(key, value)
        return cache.pages

    def queries(self, x: nn.Tensor) -> nn.Tensor:
        """(1, tokens, hidden) → (tokens, heads, head)."""
        config = self.config
        return op.reshape(self.query(x), (x.shape[1], config.num_attention_heads, config.head_dim))

    def step(self, x: nn.Tensor, pages: nn.Pages, batch: nn.PagedBatch) -> nn.Tensor:
        """The tokens (1, tokens, hidden) of sequences → the same shape."""
        config = self.config
        query = self.queries(x)
        if config.source_page_dtype == "bfloat16":
            query = op.astype(query, "bfloat16")
        mixed = nn.PagedCache(pages, batch).read(query, scale=config.attention_scale)
        shape = *x.shape[:2], config.num_attention_heads * config.head_dim
        return self.output(op.reshape(op.astype(mixed, config.dtype), shape))

    def weights(
        self, x: nn.Tensor, pages: nn.Pages, batch: nn.PagedBatch, heads: Sequence[int]
    ) -> nn.Tensor:
        """The weights of the tokens (1, tokens, hidden) of a single sequence, of some heads, at the positions of its
        source: (heads, tokens, width * page size) float32, 0 after the source."""
        table = op.squeeze(op.match_cast(batch.tables, (1, batch.tables.shape[1])), 0)
        config = self.config
        chosen = np.array(heads, np.int64)
        query = op.permute_dims(op.take(self.queries(x), chosen, axis=1), (1, 0, 2))
        keys = op.take(
            op.take(pages[0], table, axis=0), chosen, axis=1
        )  # (width, heads, head, page)
        width, count, head, size = keys.shape
        keys = op.astype(keys, "float32")
        if len(pages) == 4:
            scales = op.take(op.take(pages[2], table, axis=0), chosen, axis=1)
            keys = keys * op.expand_dims(scales, 2)
        keys = op.reshape(op.permute_dims(keys, (1, 2, 0, 3)), (count, head, width * size))
        length = op.match_cast(batch.lengths, (1,))
        scale = config.attention_scale or config.head_dim**-0.5
        scores = op.matmul(op.astype(query, "float32") * scale, keys)
        there = op.less(op.arange(width * size), op.astype(length, "int64"))
        return op.nn.softmax(op.where(there, scores, MASKED), axis=-1)
