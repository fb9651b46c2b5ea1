"""Gemma 3 (Gemma Team, 2025) with its eyes: a SigLIP, the mean of whose neighbouring patches becomes a row of the
decoder. The tokens of a picture attend to each other, also to later ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import whole
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.models.gemma import Gemma3Config
from relaxpy.models.llava import PROJECTOR, TowerVision, tower_of
from relaxpy.models.siglip import SiglipConfig
from relaxpy.models.tower import PictureEncoder
from relaxpy.models.tower_config import nested
from relaxpy.models.vision import SeeingConfig
from relaxpy.nn import op
from relaxpy.runtime.safetensors import Source
from relaxpy.serve.pictures import PictureShape

_TEXT = {
    "model_type": "gemma3_text", "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
    "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "rms_norm_eps": 1e-6, "sliding_window": 4096,
}  # fmt: skip
"""transformers' values of fields that a `text_config` leaves out."""
_TOKENS = {"image_token_index": 262144, "boi_token_index": 255999, "eoi_token_index": 256000}
"""The same of the tokens of a picture, and of those before and after it."""


@dataclass(frozen=True)
class Gemma3Vision(TowerVision):
    """The tower of a Gemma 3, and what makes rows of its states."""

    side: int
    """Rows of a picture's tokens, and columns."""
    around: tuple[int, int]
    """The tokens before and after those of a picture."""

    has_norm: ClassVar[bool] = True

    @property
    def spans(self) -> bool:
        """See `VisionConfig.spans`."""
        return True

    @property
    def most_tokens(self) -> int:
        """The tokens of every picture."""
        return self.side**2

    def shape(self, hidden: int) -> PictureShape:
        """See `VisionConfig.shape`."""
        return PictureShape(
            hidden, self.token, self.most_tokens, self.tower.image_size, spans=True, around=self.around
        )  # fmt: skip

    def module(self, config: DecoderConfig) -> nn.Module:
        """See `VisionConfig.module`."""
        return Gemma3Eyes(self, config.hidden_size)

    def projector(self) -> dict[str, Source]:
        """See `TowerVision.projector`."""
        return {
            "projection.weight": Source(f"{PROJECTOR}.mm_input_projection_weight", transpose=True),
            "row_norm": Source(f"{PROJECTOR}.mm_soft_emb_norm.weight"),
        }


class Gemma3Eyes(nn.Module):
    """Tower, and what makes rows of its states."""

    def __init__(self, config: Gemma3Vision, hidden: int) -> None:
        self.config, tower = config, config.tower
        self.tower = PictureEncoder(tower)
        self.norm = nn.LayerNorm(tower.hidden_size, tower.rms_norm_eps, tower.dtype)
        self.row_norm = nn.Parameter((tower.hidden_size,), tower.dtype)
        self.projection = nn.Linear(tower.hidden_size, hidden, False, tower.dtype)

    def forward(self, pixels: nn.Tensor) -> nn.Tensor:
        """(1, 3, height, width) → (tokens, hidden)."""
        config, (rows, columns) = self.config, self.config.tower.grid
        width, side = config.tower.hidden_size, config.side
        x = self.norm(self.tower.encode(pixels))
        x = op.reshape(x, (side, rows // side, side, columns // side, width))
        x = op.reshape(op.mean(x, axis=(1, 3)), (side * side, width))
        weight = op.astype(self.row_norm, "float32") + 1.0
        wide = op.nn.rms_norm(
            op.astype(x, "float32"), weight, axes=(-1,), epsilon=config.tower.rms_norm_eps
        )
        return self.projection(op.astype(wide, x.dtype))


class Gemma3VisionConfig(SeeingConfig):
    """Reads the configuration of a Gemma 3 with its eyes."""

    model_type: ClassVar[str] = "gemma3"

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], dtype: str | None = None) -> DecoderConfig:
        """See `SeeingConfig.from_dict`."""
        texts = dict(nested(fields, "text_config", _TEXT))
        for name in ("dtype", "torch_dtype", "tie_word_embeddings"):
            if fields.get(name) is not None:
                texts[name] = fields[name]
        if texts["model_type"] != "gemma3_text":
            raise UsageError(
                "bad-config",
                f"text_config is for a model of type {texts['model_type']!r}, and a Gemma 3 has a gemma3_text",
            )
        config = Gemma3Config.from_dict(texts, dtype)
        seen = nested(fields, "vision_config", {"image_size": 224, "patch_size": 16})
        if (kind := seen.get("model_type", "siglip_vision_model")) != "siglip_vision_model":
            raise UsageError(
                "bad-config",
                f"vision_config is for a model of type {kind!r}, and a Gemma 3 has a siglip_vision_model",
            )
        tower = tower_of(SiglipConfig, {**SiglipConfig.sizes, **seen}, config.dtype)
        tokens = whole(fields, "mm_tokens_per_image", 256, most=1 << 20)
        side = round(tokens**0.5)
        if side**2 != tokens or tower.grid[0] != tower.grid[1] or tower.grid[0] % side:
            raise UsageError(
                "bad-config",
                f"mm_tokens_per_image is {tokens}, and a picture has {tower.grid[0]} × {tower.grid[1]} patches: tokens "
                "are a square, whose side divides that of the patches",
            )
        token, *around = (_token(fields, name, config) for name in _TOKENS)
        vision = Gemma3Vision(
            token, SiglipConfig, tower, tower.num_hidden_layers, side, (around[0], around[1])
        )
        return replace(config, vision=vision)


def _token(fields: Mapping[str, Any], name: str, config: DecoderConfig) -> int:
    """The number of a token, by the name that older files have, too."""
    other = fields.get(name.replace("_index", "_id"))
    found = fields.get(name, _TOKENS[name] if other is None else other)
    if type(found) is not int or not 0 <= found < config.vocab_size:
        raise UsageError(
            "bad-config", f"{name} must be a token below {config.vocab_size}, got {found!r}"
        )
    return found
