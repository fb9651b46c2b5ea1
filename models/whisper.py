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
from relaxpy.models.encoder_decoder import EncoderDecoderConfig
from relaxpy.nn.rotary import Rope
from relaxpy.runtime.checkpoint import Source

_NAMES = {
    "hidden_size": "d_model", "num_hidden_layers": "decoder_layers", "num_attention_heads": "decoder_attention_heads",
    "intermediate_size": "decoder_ffn_dim", "max_position_embeddings": "max_target_positions",
    "hidden_act": "activation_function",
}  # fmt: skip
LINEARS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
"""The linear maps of an attention, and their names in checkpoints."""


@dataclass(frozen=True)
class WhisperConfig(EncoderDecoderConfig):
    """The configuration of a Whisper."""

    model_type: ClassVar[str] = "whisper"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 51865, "num_mel_bins": 80, "encoder_layers": 4, "encoder_attention_heads": 6, "decoder_layers": 4,
        "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "encoder_ffn_dim": 1536, "activation_function": "gelu",
        "d_model": 384, "max_source_positions": 1500, "max_target_positions": 448,
    }  # fmt: skip

    @classmethod
    def renamed(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """By the names that decoders have."""
        return {**fields, **{name: fields.get(own) for name, own in _NAMES.items()}}

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes of the encoder, and what all of them have in common."""
        if not flag(fields, "is_encoder_decoder", True):
            raise UsageError("bad-config", "Whisper's decoder without its encoder is not supported")
        hidden = whole(fields, "hidden_size", most=1 << 20)
        sizes = ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")
        return {
            **{name: whole(fields, name, most=1 << 20) for name in sizes},
            "mels": whole(fields, "num_mel_bins", most=1 << 12),
            "source_positions": whole(fields, "max_source_positions", most=1 << 20),
            "embedding_scale": hidden**0.5 if hidden and flag(fields, "scale_embedding") else 1.0,
            "rms_norm_eps": 1e-5,
            "layer_norm": True,
            "gated": False,
            "learned_positions": True,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": flag(fields, "tie_word_embeddings", True),
            "rope": Rope(),
        }

    def has_bias(self, linear: str) -> bool:
        """Keys have none."""
        return linear != "key"

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        found = {
            "source_positions": Source("model.encoder.embed_positions.weight"),
            "embedding.weight": Source("model.decoder.embed_tokens.weight"),
            "positions.weight": Source("model.decoder.embed_positions.weight"),
        }
        if not self.tie_word_embeddings:
            found["head.weight"] = Source("proj_out.weight")

        def both(own: str, theirs: str, bias: bool = True) -> None:
            found[f"{own}.weight"] = Source(f"{theirs}.weight")
            if bias:
                found[f"{own}.bias"] = Source(f"{theirs}.bias")

        for own, number in {"first": 1, "second": 2}.items():
            both(f"sound.{own}", f"model.encoder.conv{number}")
        both("source_norm", "model.encoder.layer_norm")
        both("norm", "model.decoder.layer_norm")
        inner = {"attention": "self_attn"}
        for i in range(self.encoder_layers):
            self._layer(both, f"source_layers.{i}", f"model.encoder.layers.{i}", inner, "")
        inner |= {"cross": "encoder_attn"}
        for i in range(self.num_hidden_layers):
            self._layer(both, f"layers.{i}", f"model.decoder.layers.{i}", inner, "feed_forward.")
        return found

    def _layer(self, both: Any, own: str, theirs: str, inner: Mapping[str, str], ffn: str) -> None:
        """Where the parameters of a layer are."""
        for name, place in inner.items():
            both(f"{own}.{name}_norm", f"{theirs}.{place}_layer_norm")
            for linear, proj in LINEARS.items():
                both(f"{own}.{name}.{linear}", f"{theirs}.{place}.{proj}", self.has_bias(linear))
        both(f"{own}.norm", f"{theirs}.final_layer_norm")
        both(f"{own}.{ffn}up", f"{theirs}.fc1")
        both(f"{own}.{ffn}down", f"{theirs}.fc2")

    def unused(self) -> set[str]:
        """The head, if it is the embedding."""
        return {"proj_out.weight"} if self.tie_word_embeddings else set()
