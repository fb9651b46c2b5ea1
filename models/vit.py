"""Vision transformers (Dosovitskiy et al., 2020): encoders of pictures, with a head that classifies or without.

A picture's vector is the state of the first position after the last norm (`cls`), or the mean of the patches' (`mean`);
the pooler that some checkpoints have is not read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from relaxpy.models.encoder_decoder import both
from relaxpy.models.tower_config import PictureModelConfig, PictureTowerConfig, picture_fields
from relaxpy.runtime.safetensors import Source


@dataclass(frozen=True)
class ViTConfig(PictureModelConfig):
    """The configuration of a ViT."""

    model_type: ClassVar[str] = "vit"
    prefix: ClassVar[str] = "vit."
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "gelu", "layer_norm_eps": 1e-12, "image_size": 224, "patch_size": 16,
    }  # fmt: skip
    parts: ClassVar[Mapping[str, str]] = {
        "attention_norm": "layernorm_before", "norm": "layernorm_after", "feed_forward.up": "intermediate.dense",
        "feed_forward.down": "output.dense",
    }  # fmt: skip
    """The parts of a layer beside its attention, and their names in checkpoints."""

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], dtype: str = "float32") -> Self:
        """Read the fields of a `config.json`."""
        given = {name: value for name, value in fields.items() if value is not None}
        return cls(cls.tower({**cls.defaults, **given}, dtype))

    @classmethod
    def tower(cls, fields: Mapping[str, Any], dtype: str) -> PictureTowerConfig:
        """The encoder, by the fields of a `config.json`, all of which are there."""
        return PictureTowerConfig(
            **picture_fields(fields, dtype), class_shape=(1, 1, fields["hidden_size"]), positions_lead=(1,)
        )  # fmt: skip

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        place = f"{self.prefix}embeddings"
        found = {
            "pictures.patches.whole": Source(f"{place}.cls_token"),
            "pictures.patches.positions": Source(f"{place}.position_embeddings"),
        }
        found |= both("pictures.patches.patch", f"{place}.patch_embeddings.projection")
        found |= both("pictures.norm", f"{self.prefix}layernorm")
        if self.labels:
            found |= both("classifier", "classifier")
        for number in range(self.pictures.num_hidden_layers):
            own, theirs = f"pictures.layers.{number}", f"{self.prefix}encoder.layer.{number}"
            for name in ("query", "key", "value"):
                linear = f"{theirs}.attention.attention.{name}"
                found |= both(f"{own}.attention.{name}", linear, self.pictures.qkv_bias)
            found |= both(f"{own}.attention.output", f"{theirs}.attention.output.dense")
            for part, name in self.parts.items():
                found |= both(f"{own}.{part}", f"{theirs}.{name}")
            found |= self.more_sources(own, theirs)
        return found

    def more_sources(self, own: str, theirs: str) -> dict[str, Source]:
        """What a layer has beside them."""
        return {}

    def unused(self) -> Collection[str]:
        """What is for training, and the pooler."""
        return "embeddings.mask_token", "pooler.dense.weight", "pooler.dense.bias"
