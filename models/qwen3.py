"""Qwen3 (Yang et al., 2025): a Qwen2 without biases, whose queries and keys are normalised head by head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.models.checkpoint import whole
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.models.qwen2 import qwen_windows


@dataclass(frozen=True)
class Qwen3Config(DecoderConfig):
    """The configuration of a Qwen3."""

    model_type: ClassVar[str] = "qwen3"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 32768, "num_key_value_heads": 32,
    }  # fmt: skip

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Normalised queries and keys, and the windows."""
        return {"qk_norm": True, "head_dim": whole(fields, "head_dim", 128), **qwen_windows(fields)}
