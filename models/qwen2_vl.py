"""Qwen2-VL (Wang et al., 2024): a tower that reads pictures of any size, with rotary positions of rows and columns, of
whose squares of patches two linear maps make rows of a Qwen2. A token of a picture has three positions, of which each
rotates some of a head's pairs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import whole
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.models.encoder_decoder import both
from relaxpy.models.qwen2 import Qwen2Config
from relaxpy.models.tower_config import nested
from relaxpy.models.vision import SeeingConfig, VisionConfig
from relaxpy.narrow import is_list, is_mapping
from relaxpy.nn import op
from relaxpy.nn.mlp import activation
from relaxpy.nn.rotary import Rope, rotate
from relaxpy.runtime.checkpoint import Source, best_layout
from relaxpy.serve.pictures import PictureShape

_VISION = {
    "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "hidden_act": "quick_gelu", "mlp_ratio": 4, "num_heads": 16,
    "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
_EPSILON = 1e-6
_AXES = 3
"""Positions of a token: time, row and column."""


@dataclass(frozen=True)
class QwenVision(VisionConfig):
    """The tower of a Qwen2-VL, and what makes rows of its states."""

    pairs: tuple[int, ...]
    """Of the decoder's heads, how many pairs each position of a token rotates."""
    layers: int
    width: int
    heads: int
    inner: int
    act: str
    patch: int
    frames: int
    merge: int
    """Patches of the side of a square."""
    dtype: str

    def __post_init__(self) -> None:
        activation(self.act)

    @property
    def sections(self) -> tuple[int, ...]:
        """See `VisionConfig.sections`."""
        return self.pairs

    def shape(self, hidden: int) -> PictureShape:
        """See `VisionConfig.shape`."""
        return PictureShape(hidden, self.token, axes=_AXES)

    def module(self, config: DecoderConfig) -> nn.Module:
        """See `VisionConfig.module`."""
        return QwenEyes(self, config.hidden_size)

    def spec(self) -> dict[str, Any]:
        """The patches (squares, merge², numbers) of one picture, and their rows and columns."""
        square, numbers = self.merge**2, 3 * self.frames * self.patch**2
        return {
            "patches": nn.spec.Tensor(("squares", square, numbers), "float32"),
            "places": nn.spec.Tensor(("squares", square, 2), "int64"),
        }

    def sources_in(self, names: Iterable[str]) -> dict[str, Source]:
        """See `VisionConfig.sources_in`."""
        return best_layout([self._sources(lead) for lead in ("model.visual", "visual")], names)

    def _sources(self, lead: str) -> dict[str, Source]:
        found = {"patch": Source(f"{lead}.patch_embed.proj.weight")}
        found |= both("norm", f"{lead}.merger.ln_q")
        found |= both("first", f"{lead}.merger.mlp.0") | both("second", f"{lead}.merger.mlp.2")
        for i in range(self.layers):
            for own, theirs in _LAYER.items():
                found |= both(f"layers.{i}.{own}", f"{lead}.blocks.{i}.{theirs}")
        return found

    def unused(self) -> Collection[str]:
        """See `VisionConfig.unused`."""
        return ()


_LAYER = {
    "attention_norm": "norm1", "joined": "attn.qkv", "output": "attn.proj", "norm": "norm2", "up": "mlp.fc1",
    "down": "mlp.fc2",
}  # fmt: skip


class QwenLayer(nn.Module):
    """A layer of the tower: every patch reads all patches of its picture."""

    def __init__(self, config: QwenVision) -> None:
        self.config = config
        width, inner, dtype = config.width, config.inner, config.dtype
        self.attention_norm = nn.LayerNorm(width, _EPSILON, dtype)
        self.joined = nn.Linear(width, 3 * width, True, dtype)
        self.output = nn.Linear(width, width, True, dtype)
        self.norm = nn.LayerNorm(width, _EPSILON, dtype)
        self.up = nn.Linear(width, inner, True, dtype)
        self.down = nn.Linear(inner, width, True, dtype)

    def forward(self, x: nn.Tensor, angles: tuple[nn.Tensor, nn.Tensor]) -> nn.Tensor:
        """(1, patches, width) → the same shape."""
        config, count = self.config, x.shape[1]
        shape = 1, count, config.heads, config.width // config.heads
        query, key, value = (
            op.reshape(each, shape)
            for each in op.split(self.joined(self.attention_norm(x)), 3, axis=-1)
        )
        mixed = op.nn.attention(rotate(query, *angles), rotate(key, *angles), value)
        x = x + self.output(op.reshape(mixed, (1, count, config.width)))
        return x + self.down(activation(config.act)(self.up(self.norm(x))))


class QwenEyes(nn.Module):
    """Tower, and what makes rows of its states."""

    def __init__(self, config: QwenVision, hidden: int) -> None:
        self.config = config
        width, dtype = config.width, config.dtype
        wide = width * config.merge**2
        self.patch = nn.Parameter((width, 3, config.frames, config.patch, config.patch), dtype)
        self.layers = nn.ModuleList([QwenLayer(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(width, _EPSILON, dtype)
        self.first = nn.Linear(wide, wide, True, dtype)
        self.second = nn.Linear(wide, hidden, True, dtype)

    def forward(self, patches: nn.Tensor, places: nn.Tensor) -> nn.Tensor:
        """The patches and places of `QwenVision.spec` → (squares, hidden)."""
        config = self.config
        squares, square, numbers = patches.shape
        count = squares * square
        x = op.reshape(op.astype(patches, config.dtype), (count, numbers))
        weight = op.reshape(self.patch, (config.width, numbers))
        x = op.reshape(op.matmul(x, op.permute_dims(weight, (1, 0))), (1, count, config.width))
        angles = self._angles(op.permute_dims(op.reshape(places, (count, 2)), (1, 0)))
        for layer in self.layers:
            x = layer(x, angles)
        x = op.reshape(self.norm(x), (squares, square * config.width))
        return self.second(activation("gelu")(self.first(x)))

    def _angles(self, places: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """Cosines and sines (patches, 1, pairs): half of the pairs are rotated by the row, half by the column."""
        half = self.config.width // self.config.heads // 2
        cosines, sines = (
            op.concat([op.squeeze(each, 0) for each in op.split(found, 2, axis=0)], axis=-1)
            for found in Rope().angles_at(places, half)
        )
        return cosines, sines


class Qwen2VLConfig(SeeingConfig):
    """Reads the configuration of a Qwen2-VL."""

    model_type: ClassVar[str] = "qwen2_vl"

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], dtype: str | None = None) -> DecoderConfig:
        """See `SeeingConfig.from_dict`. Older files have the fields of the decoder beside the others."""
        texts = {key: value for key, value in nested(fields, "text_config", fields).items()}
        rope = texts.pop("rope_scaling", None) or texts.get("rope_parameters") or {}
        for name in ("dtype", "torch_dtype", "tie_word_embeddings"):
            if fields.get(name) is not None:
                texts[name] = fields[name]
        if not is_mapping(rope):
            raise UsageError("bad-config", f"the rotary embeddings have no fields: {rope!r}")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("mrope", "default"):
            raise UsageError(
                "bad-config", f"rotary embeddings of a Qwen2-VL are of type mrope, got {kind!r}"
            )
        theta = rope.get("rope_theta", texts.get("rope_theta", 1000000.0))
        texts["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
        config = Qwen2Config.from_dict({**texts, "model_type": "qwen2"}, dtype)
        return replace(config, vision=_vision(fields, config, rope.get("mrope_section")))


def _vision(fields: Mapping[str, Any], config: DecoderConfig, sections: object) -> QwenVision:
    seen = dict(nested(fields, "vision_config", _VISION))
    pairs = config.head_dim // 2
    found = tuple(sections) if is_list(sections) else ()
    if (
        len(found) != _AXES
        or not all(type(each) is int and each > 0 for each in found)
        or sum(found) != pairs
    ):
        raise UsageError(
            "bad-config",
            f"mrope_section must have three numbers of pairs, {pairs} together, got {sections!r}",
        )
    if whole(seen, "in_channels") != 3:
        raise UsageError(
            "bad-config", f"pictures have 3 channels, in_channels is {seen['in_channels']}"
        )
    if whole(seen, "hidden_size") != config.hidden_size:
        raise UsageError(
            "bad-config",
            f"the tower makes rows of {seen['hidden_size']} numbers, and the decoder reads {config.hidden_size}",
        )
    width, heads = whole(seen, "embed_dim", most=1 << 20), whole(seen, "num_heads", most=1 << 20)
    if width % (4 * heads):
        raise UsageError(
            "bad-config",
            f"a tower of width {width} has no {heads} heads of a multiple of 4 numbers",
        )
    ratio = seen["mlp_ratio"]
    if type(ratio) not in (int, float) or not 0 < ratio < 1000:
        raise UsageError("bad-config", f"mlp_ratio must be a positive number, got {ratio!r}")
    token = fields.get("image_token_id", 151655)
    if type(token) is not int or not 0 <= token < config.vocab_size:
        raise UsageError(
            "bad-config", f"image_token_id must be a token below {config.vocab_size}, got {token!r}"
        )
    return QwenVision(
        token, found, whole(seen, "depth", most=1 << 10), width, heads, int(width * ratio), str(seen["hidden_act"]),
        whole(seen, "patch_size", most=256), whole(seen, "temporal_patch_size", most=16),
        whole(seen, "spatial_merge_size", most=16), config.dtype,
    )  # fmt: skip
