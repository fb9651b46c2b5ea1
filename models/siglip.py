"""SigLIP (Zhai et al., 2023), and SigLIP 2 of fixed sizes (Tschannen et al., 2025), which has the same type: CLIP whose
pictures and texts are compared one by one. A head with attention makes a picture's vector, and texts are padded to
their greatest length, at whose end they are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import flag, whole
from relaxpy.models.clip import TOWERS, feed_forward_sources, text_tower, tower_sources
from relaxpy.models.encoder_decoder import both
from relaxpy.models.tower_config import (
    PictureModelConfig,
    PictureTowerConfig,
    nested,
    picture_fields,
)
from relaxpy.runtime.safetensors import Source


@dataclass(frozen=True)
class SiglipConfig(PictureModelConfig):
    """The configuration of a SigLIP."""

    model_type: ClassVar[str] = "siglip"
    sigmoid: ClassVar[bool] = True
    sizes: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    }  # fmt: skip
    """transformers' values of fields that are left out."""

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], dtype: str = "float32") -> Self:
        """Read the fields of a `config.json`."""
        pictures = nested(
            fields, "vision_config", {**cls.sizes, "image_size": 224, "patch_size": 16}
        )
        texts = nested(
            fields, "text_config", {**cls.sizes, "vocab_size": 32000, "max_position_embeddings": 64}
        )
        if not flag(pictures, "vision_use_head", True):
            raise UsageError("bad-config", "vision_use_head = False gives no vectors")
        tower = PictureTowerConfig(**picture_fields(pictures, dtype))
        of_texts = text_tower(texts, dtype, causal=False)
        width = whole(texts, "projection_size", of_texts.hidden_size, most=1 << 20)
        if width != tower.hidden_size:
            raise UsageError(
                "bad-config",
                f"vectors of texts have {width} numbers, and those of pictures {tower.hidden_size}",
            )
        return cls(tower, of_texts, pooling="head")

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        head, hidden = "vision_model.head", self.pictures.hidden_size
        found = tower_sources(self)
        found |= both("text_projection", "text_model.head")
        found["pictures.head.probe"] = Source(f"{head}.probe")
        for number, name in enumerate(("query", "key", "value")):
            rows = number * hidden, (number + 1) * hidden, 3 * hidden
            for kind in ("weight", "bias"):
                own = f"pictures.head.attention.{name}.{kind}"
                found[own] = Source(f"{head}.attention.in_proj_{kind}", rows=rows)
        found |= both("pictures.head.attention.output", f"{head}.attention.out_proj")
        found |= both("pictures.head.norm", f"{head}.layernorm")
        return found | feed_forward_sources("pictures.head.feed_forward", f"{head}.mlp")

    def unused(self) -> Collection[str]:
        """Positions 0, 1, 2, …, and the scale and the bias of logits, which are no vector's."""
        ids = {f"{tower}.embeddings.position_ids" for tower in TOWERS.values()}
        return ids | {"logit_scale", "logit_bias"}
