"""BART (Lewis et al., 2019) and its kin, which read a text and write one: mBART, Marian, and M2M-100 with NLLB.

They differ in where norms are, and in how positions are known. Tokens of both sides have one table of embeddings, which
is also the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import flag
from relaxpy.models.encoder_decoder import NAMES, EncoderDecoderConfig, both, common_settings
from relaxpy.runtime.safetensors import Source

_SIZES = {
    "encoder_layers": 12, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_layers": 12,
    "decoder_attention_heads": 16, "decoder_ffn_dim": 4096, "activation_function": "gelu", "d_model": 1024,
    "max_position_embeddings": 1024,
}  # fmt: skip
_OFFSET = 2
"""The table of learned positions begins with two rows that are never read."""


@dataclass(frozen=True)
class BartConfig(EncoderDecoderConfig):
    """The configuration of a BART."""

    model_type: ClassVar[str] = "bart"
    defaults: ClassVar[Mapping[str, Any]] = {**_SIZES, "vocab_size": 50265}
    placing: ClassVar[Mapping[str, Any]] = {
        "norm_after": True, "embedding_norm": True, "final_norm": False, "logits_bias": True,
    }  # fmt: skip
    """Where the family has norms and biases, and how it knows positions."""

    @classmethod
    def renamed(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """By the names that decoders have."""
        return {**fields, **{name: fields.get(own) for name, own in NAMES.items()}}

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes of the encoder, and what the family is."""
        if not flag(fields, "is_encoder_decoder", True):
            raise UsageError(
                "bad-config", f"a {cls.model_type} without its encoder is not supported"
            )
        for name in ("share_encoder_decoder_embeddings", "tie_word_embeddings"):
            if not flag(fields, name, True):
                raise UsageError("bad-config", f"{name} = False is not supported")
        vocab = fields.get("decoder_vocab_size")
        if vocab is not None and vocab != fields.get("vocab_size"):
            raise UsageError(
                "bad-config",
                f"decoder_vocab_size {vocab} is another than vocab_size {fields.get('vocab_size')}",
            )
        positions = fields.get("max_position_embeddings")
        return {**common_settings(fields), "source_positions": positions, **cls.placing}

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        found = {"embedding.weight": Source("model.shared.weight")}
        if self.logits_bias:
            found["logits_bias"] = Source("final_logits_bias")
        for own, part in {"encoder.": "encoder", "": "decoder"}.items():
            if not self.sinusoids:
                table = "encoder.positions" if own else "positions.weight"
                count = self.source_positions if own else self.max_position_embeddings
                rows = _OFFSET, _OFFSET + count, _OFFSET + count
                found[table] = Source(f"model.{part}.embed_positions.weight", rows=rows)
            if self.embedding_norm:
                found |= both(f"{own}embedding_norm", f"model.{part}.layernorm_embedding")
            if self.final_norm:
                found |= both(f"{own}norm", f"model.{part}.layer_norm")
        return found | self.layer_sources()

    def unused(self) -> set[str]:
        """The embeddings under their other names, and positions that are computed."""
        parts = ("encoder", "decoder")
        found = {"lm_head.weight", *(f"model.{part}.embed_tokens.weight" for part in parts)}
        found |= {f"model.{part}.embed_positions.weights" for part in parts}
        if self.sinusoids:
            found |= {f"model.{part}.embed_positions.weight" for part in parts}
        return found


@dataclass(frozen=True)
class MBartConfig(BartConfig):
    """The configuration of an mBART."""

    model_type: ClassVar[str] = "mbart"
    placing: ClassVar[Mapping[str, Any]] = {"embedding_norm": True, "logits_bias": True}


@dataclass(frozen=True)
class MarianConfig(BartConfig):
    """The configuration of a Marian (Opus-MT)."""

    model_type: ClassVar[str] = "marian"
    defaults: ClassVar[Mapping[str, Any]] = {**_SIZES, "vocab_size": 58101}
    placing: ClassVar[Mapping[str, Any]] = {
        "norm_after": True, "final_norm": False, "logits_bias": True, "sinusoids": "marian",
        "learned_positions": False,
    }  # fmt: skip


@dataclass(frozen=True)
class M2M100Config(BartConfig):
    """The configuration of an M2M-100, or an NLLB."""

    model_type: ClassVar[str] = "m2m_100"
    defaults: ClassVar[Mapping[str, Any]] = {
        **_SIZES, "vocab_size": 128112, "activation_function": "relu", "scale_embedding": True,
    }  # fmt: skip
    placing: ClassVar[Mapping[str, Any]] = {"sinusoids": "m2m_100", "learned_positions": False}
