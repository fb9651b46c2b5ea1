"""Whisper (Radford et al., 2022): an encoder of log-mel features, 30 seconds in 3000 frames, and a decoder of text.

All sizes from tiny to large-v3 and turbo, and distil-whisper's: they differ in their numbers of layers, heads and mel
bands (80, or 128 since large-v3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import flag, whole
from relaxpy.models.encoder_decoder import NAMES, EncoderDecoderConfig, both, common_settings
from relaxpy.runtime.safetensors import Source


@dataclass(frozen=True)
class WhisperConfig(EncoderDecoderConfig):
    """The configuration of a Whisper."""

    model_type: ClassVar[str] = "whisper"
    times_words: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 51865, "num_mel_bins": 80, "encoder_layers": 4, "encoder_attention_heads": 6, "decoder_layers": 4,
        "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "encoder_ffn_dim": 1536, "activation_function": "gelu",
        "d_model": 384, "max_source_positions": 1500, "max_target_positions": 448,
    }  # fmt: skip

    @classmethod
    def renamed(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """By the names that decoders have."""
        named = {name: fields.get(own) for name, own in NAMES.items()}
        return {**fields, **named, "max_position_embeddings": fields.get("max_target_positions")}

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes of the encoder, and what all of them have in common."""
        if not flag(fields, "is_encoder_decoder", True):
            raise UsageError("bad-config", "Whisper's decoder without its encoder is not supported")
        return {
            **common_settings(fields),
            "mels": whole(fields, "num_mel_bins", most=1 << 12),
            "source_positions": whole(fields, "max_source_positions", most=1 << 20),
        }

    def has_bias(self, linear: str) -> bool:
        """Keys have none."""
        return linear != "key"

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        found = {
            "encoder.positions": Source("model.encoder.embed_positions.weight"),
            "embedding.weight": Source("model.decoder.embed_tokens.weight"),
            "positions.weight": Source("model.decoder.embed_positions.weight"),
        }
        if not self.tie_word_embeddings:
            found["head.weight"] = Source("proj_out.weight")

        found |= both("encoder.norm", "model.encoder.layer_norm")
        found |= both("norm", "model.decoder.layer_norm")
        for own, number in {"first": 1, "second": 2}.items():
            found |= both(f"encoder.sound.{own}", f"model.encoder.conv{number}")
        return found | self.layer_sources()

    def unused(self) -> set[str]:
        """The head, if it is the embedding."""
        return {"proj_out.weight"} if self.tie_word_embeddings else set()
