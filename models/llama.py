"""Llama (Touvron et al., 2023): Llama 2 and 3, TinyLlama, and models of the same architecture. RMS norms, rotary
embeddings, grouped-query attention, SwiGLU: the decoder of `relaxpy.models.decoder` as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relaxpy.models.decoder import (
    Decoder,
    load_weights,
    sources,
    spec,
    stack_adapters,
    step_spec,
)
from relaxpy.models.decoder_config import LINEARS, DecoderConfig

__all__ = [
    "LINEARS", "TINY", "Llama", "LlamaConfig", "load_weights", "sources", "spec", "stack_adapters", "step_spec",
]  # fmt: skip


@dataclass(frozen=True)
class LlamaConfig(DecoderConfig):
    """The configuration of a Llama."""

    model_type: ClassVar[str] = "llama"


Llama = Decoder


TINY = DecoderConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=101,
    max_position_embeddings=64,
)
"""A small configuration for tests."""
