"""HuBERT with a CTC head (Hsu et al., 2021): wav2vec 2.0's modules, whose projection may have no norm, and whose
convolution of positions may be normalised by the statistics of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.models.checkpoint import flag
from relaxpy.models.wav2vec2 import Wav2Vec2Config


@dataclass(frozen=True)
class HubertConfig(Wav2Vec2Config):
    """The configuration of a HuBERT."""

    model_type: ClassVar[str] = "hubert"
    prefix: ClassVar[str] = "hubert"

    @classmethod
    def settings(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What wav2vec 2.0 has, and two norms."""
        return {
            **super().settings(fields),
            "feat_proj_layer_norm": flag(fields, "feat_proj_layer_norm", True),
            "conv_pos_batch_norm": flag(fields, "conv_pos_batch_norm"),
        }
