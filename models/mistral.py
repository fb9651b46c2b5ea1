"""Mistral (Jiang et al., 2023): a Llama in which every layer attends to a sliding window, if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.models.checkpoint import whole
from relaxpy.models.decoder_config import DecoderConfig


@dataclass(frozen=True)
class MistralConfig(DecoderConfig):
    """The configuration of a Mistral."""

    model_type: ClassVar[str] = "mistral"
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 131072, "num_key_value_heads": 8,
    }  # fmt: skip

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The window is of all layers."""
        window = whole(fields, "sliding_window", 4096)
        return {"sliding_windows": (window,) * fields["num_hidden_layers"] if window else ()}
