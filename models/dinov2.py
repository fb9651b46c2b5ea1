"""DINOv2 (Oquab et al., 2023): a ViT whose blocks are scaled, and which reads pictures of any size, with positions in
between. Its head reads the mean of the patches, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.models.checkpoint import flag, positive
from relaxpy.models.tower_config import PictureTowerConfig, picture_fields
from relaxpy.models.vit import ViTConfig
from relaxpy.runtime.safetensors import Source


@dataclass(frozen=True)
class Dinov2Config(ViTConfig):
    """The configuration of a DINOv2."""

    model_type: ClassVar[str] = "dinov2"
    prefix: ClassVar[str] = "dinov2."
    reads_mean: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "mlp_ratio": 4, "hidden_act": "gelu",
        "layer_norm_eps": 1e-6, "image_size": 224, "patch_size": 14,
    }  # fmt: skip

    @classmethod
    def tower(cls, fields: Mapping[str, Any], dtype: str) -> PictureTowerConfig:
        """The encoder, by the fields of a `config.json`, all of which are there."""
        gated = flag(fields, "use_swiglu_ffn")
        inner = int(fields["hidden_size"] * positive(fields, "mlp_ratio"))
        if gated:  # two thirds, in steps of 8
            inner = (int(inner * 2 / 3) + 7) // 8 * 8
        own = {"intermediate_size": inner, "hidden_act": "silu" if gated else fields["hidden_act"]}
        return PictureTowerConfig(
            **picture_fields({**fields, **own}, dtype), class_shape=(1, 1, fields["hidden_size"]),
            positions_lead=(1,), gated=gated, layer_scale=True, interpolates=True,
        )  # fmt: skip

    @property
    def parts(self) -> Mapping[str, str]:
        """The parts of a layer beside its attention, and their names in checkpoints."""
        found = {"attention_norm": "norm1", "norm": "norm2"}
        if not self.pictures.gated:
            return {**found, "feed_forward.up": "mlp.fc1", "feed_forward.down": "mlp.fc2"}
        return {**found, "feed_forward.down": "mlp.weights_out"}

    def more_sources(self, own: str, theirs: str) -> dict[str, Source]:
        """The scales; and gate and up, which are one tensor."""
        scales = {"first_scale": "layer_scale1", "second_scale": "layer_scale2"}
        found = {
            f"{own}.{scale}": Source(f"{theirs}.{name}.lambda1") for scale, name in scales.items()
        }
        if self.pictures.gated:
            inner = self.pictures.intermediate_size
            for number, part in enumerate(("gate", "up")):
                rows = number * inner, (number + 1) * inner, 2 * inner
                for kind in ("weight", "bias"):
                    name = f"{theirs}.mlp.weights_in.{kind}"
                    found[f"{own}.feed_forward.{part}.{kind}"] = Source(name, rows=rows)
        return found
