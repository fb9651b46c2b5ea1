"""Qwen2 and Qwen2.5 (Yang et al., 2024): a Llama whose queries, keys and values have biases. With a sliding window, it
is one of the last layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.models.checkpoint import flag, whole
from relaxpy.models.decoder_config import DecoderConfig, windows_by_layer


@dataclass(frozen=True)
class Qwen2Config(DecoderConfig):
    """The configuration of a Qwen2."""

    model_type: ClassVar[str] = "qwen2"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 32768, "num_key_value_heads": 32,
    }  # fmt: skip

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Biases as the family has them, and the windows."""
        return {"attention_bias": True, "output_bias": False, **qwen_windows(fields)}


def qwen_windows(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The windows of the layers: those that `layer_types` says, or those from number `max_window_layers` on."""
    if not flag(fields, "use_sliding_window"):
        return {"sliding_windows": ()}
    count, first = fields["num_hidden_layers"], whole(fields, "max_window_layers", 28, least=0) or 0
    kinds = ["full_attention" if i < first else "sliding_attention" for i in range(count)]
    kinds = fields.get("layer_types") or kinds
    return {"sliding_windows": windows_by_layer(kinds, whole(fields, "sliding_window", 4096))}
