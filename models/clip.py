"""CLIP (Radford et al., 2021): a tower of pictures and one of texts, whose vectors are near to each other where a text
says what a picture shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from relaxpy.models.checkpoint import whole
from relaxpy.models.encoder_decoder import LINEARS, both
from relaxpy.models.tower_config import (
    PictureModelConfig,
    PictureTowerConfig,
    TextTowerConfig,
    TowerConfig,
    nested,
    picture_fields,
    tower_fields,
)
from relaxpy.runtime.safetensors import Source

TOWERS = {"pictures": "vision_model", "texts": "text_model"}
"""The towers, and their names in checkpoints."""


@dataclass(frozen=True)
class CLIPConfig(PictureModelConfig):
    """The configuration of a CLIP."""

    model_type: ClassVar[str] = "clip"
    of_pictures: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "image_size": 224, "patch_size": 32,
    }  # fmt: skip
    """transformers' values of fields that a `vision_config` leaves out."""
    of_texts: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "intermediate_size": 2048,
        "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "vocab_size": 49408, "max_position_embeddings": 77,
        "eos_token_id": 49407,
    }  # fmt: skip
    """The same of a `text_config`."""

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], dtype: str = "float32") -> Self:
        """Read the fields of a `config.json`."""
        tower = cls.tower(nested(fields, "vision_config", cls.of_pictures), dtype)
        texts = text_tower(nested(fields, "text_config", cls.of_texts), dtype, causal=True)
        width = whole(fields, "projection_dim", most=1 << 20) or 512
        return cls(tower, texts, projection=width, pooling="norm")

    @classmethod
    def tower(cls, fields: Mapping[str, Any], dtype: str) -> PictureTowerConfig:
        """The encoder of pictures, by the fields of a `vision_config`, all of which are there."""
        return PictureTowerConfig(
            **picture_fields(fields, dtype), class_shape=(fields["hidden_size"],), patch_bias=False, first_norm=True
        )  # fmt: skip

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        found = tower_sources(self)
        found["pictures.patches.whole"] = Source("vision_model.embeddings.class_embedding")
        found |= both("pictures.first_norm", "vision_model.pre_layrnorm")
        found |= both("projection", "visual_projection", bias=False)
        return found | both("text_projection", "text_projection", bias=False)

    def unused(self) -> Collection[str]:
        """Positions 0, 1, 2, …, and the scale of logits, which is no vector's."""
        return {f"{tower}.embeddings.position_ids" for tower in TOWERS.values()} | {"logit_scale"}


def text_tower(fields: Mapping[str, Any], dtype: str, causal: bool) -> TextTowerConfig:
    """A tower of texts: causal and read at the token that ends a text, or else at its last place."""
    return TextTowerConfig(
        **tower_fields(fields, dtype),
        vocab_size=whole(fields, "vocab_size", most=1 << 30),
        max_position_embeddings=whole(fields, "max_position_embeddings", most=1 << 20),
        causal=causal,
        end=whole(fields, "eos_token_id", least=0) if causal else None,
    )


def tower_sources(config: PictureModelConfig) -> dict[str, Source]:
    """The checkpoint tensors of what the towers of CLIP and SigLIP have in common."""
    place = "vision_model.embeddings"
    found = both("pictures.patches.patch", f"{place}.patch_embedding", config.pictures.patch_bias)
    found["pictures.patches.positions"] = Source(f"{place}.position_embedding.weight")
    found |= both("pictures.norm", "vision_model.post_layernorm")
    towers: dict[str, TowerConfig] = {"pictures": config.pictures}
    if config.texts is not None:
        towers["texts"] = config.texts
        place = "text_model.embeddings"
        found["texts.embedding.weight"] = Source(f"{place}.token_embedding.weight")
        found["texts.positions"] = Source(f"{place}.position_embedding.weight")
        found |= both("texts.norm", "text_model.final_layer_norm")
    for tower, sizes in towers.items():
        for number in range(sizes.num_hidden_layers):
            own, theirs = f"{tower}.layers.{number}", f"{TOWERS[tower]}.encoder.layers.{number}"
            for linear, name in LINEARS.items():
                found |= both(f"{own}.attention.{linear}", f"{theirs}.self_attn.{name}")
            found |= both(f"{own}.attention_norm", f"{theirs}.layer_norm1")
            found |= both(f"{own}.norm", f"{theirs}.layer_norm2")
            found |= feed_forward_sources(f"{own}.feed_forward", f"{theirs}.mlp")
    return found


def feed_forward_sources(own: str, theirs: str) -> dict[str, Source]:
    """Those of a feed-forward network without a gate."""
    return both(f"{own}.up", f"{theirs}.fc1") | both(f"{own}.down", f"{theirs}.fc2")
