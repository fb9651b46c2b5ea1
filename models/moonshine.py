"""Moonshine (Jeffries et al., 2024): an encoder of samples, 384 of which are a position, and a decoder of text.

Three convolutions read the samples of a recording at 16 kHz, and what is encoded is as long as what was said: nothing
is padded to a window. Both sides have rotary positions, of a part of each head; the decoder's networks have gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import flag, whole
from relaxpy.models.encoder_decoder import EncoderDecoderConfig, both
from relaxpy.nn import op
from relaxpy.nn.mlp import activation
from relaxpy.runtime.safetensors import Source

WINDOW = 480_000
"""The most samples that are encoded at once, 30 seconds: the model was trained with no more."""
_KERNELS, _STRIDES = (127, 7, 3), (64, 3, 2)
_NAMES = {
    "num_hidden_layers": "decoder_num_hidden_layers", "num_attention_heads": "decoder_num_attention_heads",
    "hidden_act": "decoder_hidden_act",
}  # fmt: skip
_ATTENTION = {name: f"{name[0]}_proj" for name in ("query", "key", "value", "output")}


@dataclass(frozen=True)
class MoonshineConfig(EncoderDecoderConfig):
    """The configuration of a Moonshine."""

    model_type: ClassVar[str] = "moonshine"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 32768, "hidden_size": 288, "intermediate_size": 1152, "encoder_num_hidden_layers": 6,
        "decoder_num_hidden_layers": 6, "encoder_num_attention_heads": 8, "decoder_num_attention_heads": 8,
        "encoder_hidden_act": "gelu", "decoder_hidden_act": "silu", "max_position_embeddings": 512,
        "partial_rotary_factor": 0.9, "tie_word_embeddings": True,
    }  # fmt: skip

    @classmethod
    def renamed(cls, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """By the names that decoders have."""
        return {**fields, **{name: fields.get(own) for name, own in _NAMES.items()}}

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes of the encoder, and what all of them have in common."""
        if not flag(fields, "is_encoder_decoder", True):
            raise UsageError(
                "bad-config", "Moonshine's decoder without its encoder is not supported"
            )
        heads = whole(fields, "encoder_num_attention_heads")
        for name in (
            "decoder_num_attention_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads",
        ):  # fmt: skip
            if fields.get(name) not in (None, heads):
                raise UsageError(
                    "bad-config",
                    f"{name} {fields[name]!r} is another than encoder_num_attention_heads {heads}: a Moonshine has "
                    "as many heads everywhere",
                )
        inner = whole(fields, "intermediate_size", most=1 << 20)
        return {
            "num_key_value_heads": heads,
            "encoder_layers": whole(fields, "encoder_num_hidden_layers", most=10_000),
            "encoder_attention_heads": heads,
            "encoder_ffn_dim": inner,
            "encoder_act": fields.get("encoder_hidden_act"),
            "mels": 1,
            "source_positions": (WINDOW - _reach()) // _stride() + 1,
            "rms_norm_eps": 1e-5,
            "layer_norm": True,
            "norm_bias": False,
            "rope_interleaved": True,
            "output_bias": False,
            "mlp_bias": True,
            "tie_word_embeddings": flag(fields, "tie_word_embeddings", True),
        }

    @property
    def stride(self) -> int:
        """Samples from one position of the encoder's output to the next."""
        return _stride()

    @property
    def reach(self) -> int:
        """Samples that the first position depends on."""
        return _reach()

    def sound(self) -> nn.Module:
        """The convolutions."""
        return Samples(self)

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        found = {
            "embedding.weight": Source("model.decoder.embed_tokens.weight"),
            "norm.weight": Source("model.decoder.norm.weight"),
            "encoder.norm.weight": Source("model.encoder.layer_norm.weight"),
            "encoder.sound.first.weight": Source("model.encoder.conv1.weight"),
            **both("encoder.sound.norm", "model.encoder.groupnorm"),
            **both("encoder.sound.second", "model.encoder.conv2"),
            **both("encoder.sound.third", "model.encoder.conv3"),
        }
        if not self.tie_word_embeddings:
            found["head.weight"] = Source("proj_out.weight")
        parts = {
            "encoder": ("encoder.layers", self.encoder_layers),
            "decoder": ("layers", self.num_hidden_layers),
        }
        inner = self.intermediate_size
        halves = {"up": (0, inner, 2 * inner), "gate": (inner, 2 * inner, 2 * inner)}
        for part, (layers, count) in parts.items():
            has_sources = part == "decoder"
            norms = {"attention_norm": "input_layernorm", "norm": "post_attention_layernorm"}
            attentions = {"attention": "self_attn"}
            if has_sources:
                norms |= {"cross_norm": "post_attention_layernorm", "norm": "final_layernorm"}
                attentions["cross"] = "encoder_attn"
            for number in range(count):
                own, theirs = f"{layers}.{number}", f"model.{part}.layers.{number}"
                for norm, place in norms.items():
                    found[f"{own}.{norm}.weight"] = Source(f"{theirs}.{place}.weight")
                for attention, place in attentions.items():
                    for linear, proj in _ATTENTION.items():
                        bias = self.has_bias(linear)
                        found |= both(
                            f"{own}.{attention}.{linear}", f"{theirs}.{place}.{proj}", bias
                        )
                found |= both(f"{own}.feed_forward.down", f"{theirs}.mlp.fc2")
                if not has_sources:
                    found |= both(f"{own}.feed_forward.up", f"{theirs}.mlp.fc1")
                    continue
                for linear, rows in halves.items():
                    for each in ("weight", "bias"):
                        source = Source(f"{theirs}.mlp.fc1.{each}", rows=rows)
                        found[f"{own}.feed_forward.{linear}.{each}"] = source
        return found

    def unused(self) -> set[str]:
        """The head, if it is the embedding."""
        return {"proj_out.weight"} if self.tie_word_embeddings else set()


def _stride() -> int:
    found = 1
    for stride in _STRIDES:
        found *= stride
    return found


def _reach() -> int:
    found = 1
    for kernel, stride in zip(_KERNELS[::-1], _STRIDES[::-1], strict=True):
        found = (found - 1) * stride + kernel
    return found


class Samples(nn.Module):
    """The first part of the encoder: three convolutions over samples, the first of which is normalised over all."""

    def __init__(self, config: MoonshineConfig) -> None:
        width, dtype = config.hidden_size, config.dtype
        (k1, k2, k3), (s1, s2, s3) = _KERNELS, _STRIDES
        self.dtype, self.act = dtype, activation("gelu")
        self.first = nn.Conv1d(1, width, k1, s1, bias=False, dtype=dtype)
        self.norm = nn.GroupNorm(1, width, 1e-5, dtype=dtype)
        self.second = nn.Conv1d(width, 2 * width, k2, s2, dtype=dtype)
        self.third = nn.Conv1d(2 * width, width, k3, s3, dtype=dtype)

    def forward(self, samples: nn.Tensor) -> nn.Tensor:
        """(batch, 1, samples) → (batch, source, hidden)."""
        x = self.norm(op.tanh(self.first(op.astype(samples, self.dtype))))
        return op.permute_dims(self.act(self.third(self.act(self.second(x)))), (0, 2, 1))
