"""gpt-oss (OpenAI, 2025): mixtures of experts with biases and a clamped SwiGLU, attention with sinks, a sliding window
in every second layer, and YaRN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.models.checkpoint import flag, positive, whole
from relaxpy.models.decoder_config import DecoderConfig, windows_by_layer
from relaxpy.models.qwen3_moe import experts_of
from relaxpy.nn.rotary import Rope
from relaxpy.runtime.safetensors import Source

_ROPE = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
"""Where `config.json` does not say."""


@dataclass(frozen=True)
class GptOssConfig(DecoderConfig):
    """The configuration of a gpt-oss."""

    model_type: ClassVar[str] = "gpt_oss"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 131072, "num_key_value_heads": 8,
    }  # fmt: skip

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The experts, the sinks, and the windows."""
        kinds = fields.get("layer_types") or [
            "full_attention" if i % 2 else "sliding_attention"
            for i in range(fields["num_hidden_layers"])
        ]
        has_rope = fields.get("rope_parameters") or fields.get("rope_scaling")
        given = {"rope_theta": 150000.0, **{n: v for n, v in fields.items() if v is not None}}
        rope = Rope.from_dict(given if has_rope else {**given, "rope_parameters": _ROPE})
        return {
            "rope": rope,
            "head_dim": whole(fields, "head_dim", 64),
            "rms_norm_eps": positive(fields, "rms_norm_eps", 1e-5),
            "attention_bias": flag(fields, "attention_bias", True),
            "attention_sinks": True,
            "sliding_windows": windows_by_layer(kinds, whole(fields, "sliding_window", 128)),
            **experts_of(fields),
            "moe_intermediate_size": fields["intermediate_size"],
            "expert_bias": True,
            "expert_interleaved": True,
            "expert_clamp": (
                positive(fields, "swiglu_alpha", 1.702) or 1.702,
                positive(fields, "swiglu_limit", 7.0) or 7.0,
            ),
        }

    def expert_sources(self, mlp: str) -> dict[str, Source]:
        """Weights of all experts in one tensor, (experts, in, out)."""
        found = {f"gate.{kind}": Source(f"{mlp}.router.{kind}") for kind in ("weight", "bias")}
        for name in ("gate_up_proj", "down_proj"):
            place = f"{mlp}.experts.{name}"
            found[f"experts.{name}"] = Source(place, transpose=True)
            found[f"experts.{name}_bias"] = Source(f"{place}_bias")
        return found
