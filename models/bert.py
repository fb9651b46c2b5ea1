"""BERT encoders (Devlin et al., 2018) as sentence embedders: hidden states, pooling over the tokens, L2 normalisation.

Attention layout: queries are (batch, heads, seq, head); keys are stored transposed, (batch, heads, head, seq). So both
products are plain row-major matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import (
    Source,
    config_fields,
    flag,
    gather,
    positive,
    read_config,
    whole,
)
from relaxpy.models.source_attention import MASKED
from relaxpy.nn import op

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}
"""`hidden_act` of a configuration → name of the operator in `op.nn`."""

POOLINGS = ("mean", "cls")
"""How the hidden states of a row become one vector: the mean of its tokens, or the state of its first token."""

_SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip


@dataclass(frozen=True)
class BertConfig:
    """The fields of a checkpoint's `config.json`, by transformers' names."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int = 30522
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    check_inputs: bool = False
    """Whether token ids out of range are an error; otherwise they are clamped to the first or last token."""

    model_type: ClassVar[str] = "bert"

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise UsageError(
                "bad-config",
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}",
            )
        if self.hidden_act not in ACTIVATIONS:
            raise UsageError(
                "bad-config",
                f"unknown activation {self.hidden_act!r}",
                help=f"one of {', '.join(ACTIVATIONS)}",
            )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> BertConfig:
        """Read the fields of a `config.json`. Unsupported settings are refused; fields that are not needed are
        ignored."""
        if (kind := fields.get("position_embedding_type", "absolute")) != "absolute":
            raise UsageError(
                "bad-config", f"position embeddings of type {kind!r} are not supported"
            )
        if fields.get("is_decoder"):
            raise UsageError("bad-config", "BERT decoders are not supported")
        read = {
            **{name: whole(fields, name) for name in _SIZES},
            "layer_norm_eps": positive(fields, "layer_norm_eps"),
            "hidden_act": fields.get("hidden_act"),
            "check_inputs": flag(fields, "check_inputs"),
        }
        given = {name: value for name, value in read.items() if value is not None}
        if not isinstance(given.get("hidden_act", ""), str):
            raise UsageError(
                "bad-config", f"hidden_act must be a name, got {given['hidden_act']!r}"
            )
        return cls(**config_fields(cls, given))

    @classmethod
    def from_checkpoint(cls, directory: Path) -> BertConfig:
        """Read `config.json` of a checkpoint directory."""
        return cls.from_dict(read_config(directory, cls.model_type))


TINY = BertConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    vocab_size=101,
    max_position_embeddings=40,
)
"""A small configuration for tests."""


class BertEmbeddings(nn.Module):
    """Token + position + type embedding, normalised. All tokens are of type 0."""

    def __init__(self, config: BertConfig) -> None:
        self.word = nn.Embedding(
            config.vocab_size, config.hidden_size, check=config.check_inputs, what="token ids"
        )
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, input_ids: nn.Tensor) -> nn.Tensor:
        """(batch, seq) → (batch, seq, hidden)."""
        seq, size = input_ids.shape[1], self.position.weight.shape[1]
        positions = op.strided_slice(self.position.weight, (0,), (0,), (seq,))
        positions = op.match_cast(
            positions, (seq, size)
        )  # fewer rows where the model has no more positions
        kind = op.strided_slice(self.token_type.weight, (0,), (0,), (1,))
        return self.norm(self.word(input_ids) + (positions + kind))


class BertAttention(nn.Module):
    """Multi-head self-attention with output projection, residual connection and layer normalisation."""

    def __init__(self, config: BertConfig) -> None:
        self.config = config
        size = config.hidden_size
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.output = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size, config.layer_norm_eps)

    def forward(self, x: nn.Tensor, bias: nn.Tensor) -> nn.Tensor:
        """X is (batch, seq, hidden), bias (batch, 1, 1, seq) is added to the scores. The result is (batch, seq,
        hidden)."""
        batch, seq, hidden = x.shape
        by_head = (batch, seq, self.config.num_attention_heads, self.config.head_size)
        scaled = self.query(x) * (1 / math.sqrt(self.config.head_size))  # smaller than the scores
        query = op.permute_dims(op.reshape(scaled, by_head), (0, 2, 1, 3))
        key = op.permute_dims(op.reshape(self.key(x), by_head), (0, 2, 3, 1))
        value = op.permute_dims(op.reshape(self.value(x), by_head), (0, 2, 1, 3))
        scores = op.matmul(query, key) + bias
        mixed = op.matmul(op.nn.softmax(scores, axis=-1), value)
        together = op.reshape(op.permute_dims(mixed, (0, 2, 1, 3)), (batch, seq, hidden))
        return self.norm(self.output(together) + x)


class BertLayer(nn.Module):
    """Attention, then a feed-forward network with residual connection and layer normalisation."""

    def __init__(self, config: BertConfig) -> None:
        self.attention = BertAttention(config)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = getattr(op.nn, ACTIVATIONS[config.hidden_act])
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: nn.Tensor, bias: nn.Tensor) -> nn.Tensor:
        x = self.attention(x, bias)
        return self.norm(self.down(self.activation(self.up(x))) + x)


class BertEncoder(nn.Module):
    """The encoder. `encode` gives hidden states; `embed` gives one unit-length vector for each row of the batch, by a
    `pooling` of POOLINGS."""

    def __init__(self, config: BertConfig, pooling: str = "mean") -> None:
        if pooling not in POOLINGS:
            raise UsageError(
                "bad-config", f"unknown pooling {pooling!r}", help=f"one of {', '.join(POOLINGS)}"
            )
        self.config, self.pooling = config, pooling
        self.embeddings = BertEmbeddings(config)
        self.layers = nn.ModuleList([BertLayer(config) for _ in range(config.num_hidden_layers)])

    def encode(self, input_ids: nn.Tensor, attention_mask: nn.Tensor) -> nn.Tensor:
        """Hidden states (batch, seq, hidden) of token ids (batch, seq). The mask is 1 for tokens and 0 for padding."""
        batch, seq = input_ids.shape
        mask = op.reshape(op.astype(attention_mask, "float32"), (batch, 1, 1, seq))
        bias = (mask - 1.0) * -MASKED
        x = self.embeddings(input_ids)
        for layer in self.layers:
            x = layer(x, bias)
        return x

    def embed(self, input_ids: nn.Tensor, attention_mask: nn.Tensor) -> nn.Tensor:
        """Embeddings (batch, hidden): the tokens' hidden states, pooled, and scaled to length 1. A row of only padding
        gives zeros where the mean is taken."""
        batch, seq = input_ids.shape
        hidden = self.encode(input_ids, attention_mask)
        if self.pooling == "cls":
            first = op.strided_slice(hidden, (1,), (0,), (1,))
            pooled = op.reshape(first, (batch, self.config.hidden_size))
        else:
            mask = op.reshape(op.astype(attention_mask, "float32"), (batch, seq, 1))
            tokens = op.maximum(op.sum(mask, axis=1), 1e-9)
            pooled = op.sum(hidden * mask, axis=1) / tokens
        return unit_length(pooled)


def unit_length(x: nn.Tensor) -> nn.Tensor:
    """Rows (batch, hidden), scaled to length 1; zeros stay zeros."""
    return x / op.maximum(op.sqrt(op.sum(x * x, axis=1, keepdims=True)), 1e-12)


TOKENS = nn.spec.Tensor(("batch", "seq"), "int64")
SPEC = {
    "encode": {"input_ids": TOKENS, "attention_mask": TOKENS},
    "embed": {"input_ids": TOKENS, "attention_mask": TOKENS},
}
"""The arguments of the exported functions."""

UNUSED = frozenset({"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"})
"""Checkpoint tensors that embeddings do not need: the positions are 0, 1, 2, ..., and the pooler is for
classification."""


def sources(config: BertConfig) -> dict[str, Source]:
    """The checkpoint tensor of each parameter, by transformers' names."""
    found: dict[str, Source] = {}

    def linear(ours: str, theirs: str) -> None:
        found[f"{ours}.weight"] = Source(f"{theirs}.weight")
        found[f"{ours}.bias"] = Source(f"{theirs}.bias")

    def norm(ours: str, theirs: str) -> None:
        found[f"{ours}.weight"] = Source(f"{theirs}.weight")
        found[f"{ours}.bias"] = Source(f"{theirs}.bias")

    for part in ("word", "position", "token_type"):
        found[f"embeddings.{part}.weight"] = Source(f"embeddings.{part}_embeddings.weight")
    norm("embeddings.norm", "embeddings.LayerNorm")
    for i in range(config.num_hidden_layers):
        ours, theirs = f"layers.{i}", f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            linear(f"{ours}.attention.{part}", f"{theirs}.attention.self.{part}")
        linear(f"{ours}.attention.output", f"{theirs}.attention.output.dense")
        norm(f"{ours}.attention.norm", f"{theirs}.attention.output.LayerNorm")
        linear(f"{ours}.up", f"{theirs}.intermediate.dense")
        linear(f"{ours}.down", f"{theirs}.output.dense")
        norm(f"{ours}.norm", f"{theirs}.output.LayerNorm")
    return found


def load_weights(model: BertEncoder, tensors: Mapping[str, np.ndarray]) -> None:
    """Load the model's weights from a checkpoint's tensors, strictly.

    If names begin with `bert.` (the encoder of a model with a head), names without it belong to the head and are
    ignored.
    """
    if any(name.startswith("bert.") for name in tensors):
        tensors = {
            n.removeprefix("bert."): value for n, value in tensors.items() if n.startswith("bert.")
        }
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    model.load(gather(tensors, sources(model.config), shapes, UNUSED))
