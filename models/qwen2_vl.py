"""Qwen2-VL (Wang et al., 2024) and Qwen2.5-VL (Bai et al., 2025): a tower that reads pictures of any size, with rotary
positions of rows and columns, of whose squares of patches two linear maps make rows of a Qwen2. A token of a picture
has three positions, of which each rotates some of a head's pairs. In most layers of a Qwen2.5-VL's tower a patch reads
those of its window alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import whole
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.models.encoder_decoder import both
from relaxpy.models.qwen2 import Qwen2Config
from relaxpy.models.source_attention import MASKED
from relaxpy.models.tower_config import nested
from relaxpy.models.vision import SeeingConfig, VisionConfig
from relaxpy.narrow import is_list, is_mapping
from relaxpy.nn import op
from relaxpy.nn.mlp import activation
from relaxpy.nn.rotary import Rope, rotate
from relaxpy.runtime.safetensors import Source, best_layout
from relaxpy.serve.pictures import PictureShape

_VISION = {
    "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "hidden_act": "quick_gelu", "mlp_ratio": 4, "num_heads": 16,
    "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
_VISION25 = {
    "depth": 32, "hidden_size": 3584, "hidden_act": "silu", "intermediate_size": 3420, "num_heads": 16,
    "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
    "out_hidden_size": 3584,
    "fullatt_block_indexes": [7, 15, 23, 31],
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
    window: int = 0
    """Squares of the side of a window; 0: there are none."""
    whole: tuple[int, ...] = ()
    """The layers in which a patch reads the whole picture nevertheless."""
    gated: bool = False
    """Whether feed-forward networks are gated, and norms those of a Llama, as Qwen2.5-VL has them."""

    def __post_init__(self) -> None:
        activation(self.act)

    @property
    def sections(self) -> tuple[int, ...]:
        """See `VisionConfig.sections`."""
        return self.pairs

    def shape(self, hidden: int) -> PictureShape:
        """See `VisionConfig.shape`."""
        return PictureShape(hidden, self.token, axes=_AXES, window=self.window)

    def module(self, config: DecoderConfig) -> nn.Module:
        """See `VisionConfig.module`."""
        return QwenEyes(self, config.hidden_size)

    def spec(self) -> dict[str, Any]:
        """The patches (squares, merge², numbers) of one picture, and their rows and columns; if there are windows, the
        squares of each, -1 where it has fewer, and the place of each square among them."""
        square, numbers = self.merge**2, 3 * self.frames * self.patch**2
        found = {
            "patches": nn.spec.Tensor(("squares", square, numbers), "float32"),
            "places": nn.spec.Tensor(("squares", square, 2), "int64"),
        }
        if self.window:
            found["windows"] = nn.spec.Tensor(("windows", self.window**2), "int64")
            found["back"] = nn.spec.Tensor(("squares",), "int64")
        return found

    def sources_in(self, names: Iterable[str]) -> dict[str, Source]:
        """See `VisionConfig.sources_in`."""
        return best_layout([self._sources(lead) for lead in ("model.visual", "visual")], names)

    def _sources(self, lead: str) -> dict[str, Source]:
        found = {"patch": Source(f"{lead}.patch_embed.proj.weight")}
        found |= both("norm", f"{lead}.merger.ln_q", not self.gated)
        found |= both("first", f"{lead}.merger.mlp.0") | both("second", f"{lead}.merger.mlp.2")
        for i in range(self.layers):
            for own, theirs in (_GATED if self.gated else _PLAIN).items():
                has_bias = not (self.gated and own.endswith("norm"))
                found |= both(f"layers.{i}.{own}", f"{lead}.blocks.{i}.{theirs}", has_bias)
        return found

    def norm(self) -> nn.Module:
        """A norm of the tower."""
        kind = nn.RMSNorm if self.gated else nn.LayerNorm
        return kind(self.width, _EPSILON, self.dtype)

    def unused(self) -> Collection[str]:
        """See `VisionConfig.unused`."""
        return ()


_LAYER = {"attention_norm": "norm1", "joined": "attn.qkv", "output": "attn.proj", "norm": "norm2"}
_PLAIN = {**_LAYER, "up": "mlp.fc1", "down": "mlp.fc2"}
_GATED = {**_LAYER, "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}


class Windows(NamedTuple):
    """Which patches read each other."""

    patches: nn.Tensor
    """(windows · patches of a window,): the patch at each place, some patch at places that have none."""
    bias: nn.Tensor
    """(windows, 1, 1, patches of a window): what keeps places without a patch from being read."""
    back: nn.Tensor
    """(patches,): the place of each patch."""

    def attend(self, query: nn.Tensor, key: nn.Tensor, value: nn.Tensor) -> nn.Tensor:
        """(1, patches, heads, head) each → the same shape."""
        count, _, _, places = self.bias.shape
        _, patches, heads, head = query.shape

        def by_window(x: nn.Tensor) -> nn.Tensor:
            return op.reshape(
                op.take(op.squeeze(x, 0), self.patches, axis=0), (count, places, heads, head)
            )

        mixed = op.nn.attention(by_window(query), by_window(key), by_window(value), self.bias)
        mixed = op.take(op.reshape(mixed, (count * places, heads, head)), self.back, axis=0)
        return op.reshape(mixed, (1, patches, heads, head))


class QwenLayer(nn.Module):
    """A layer of the tower: every patch reads all patches of its picture, or of its window."""

    def __init__(self, config: QwenVision) -> None:
        self.config = config
        width, inner, dtype = config.width, config.inner, config.dtype
        self.attention_norm = config.norm()
        self.joined = nn.Linear(width, 3 * width, True, dtype)
        self.output = nn.Linear(width, width, True, dtype)
        self.norm = config.norm()
        self.gate = nn.Linear(width, inner, True, dtype) if config.gated else None
        self.up = nn.Linear(width, inner, True, dtype)
        self.down = nn.Linear(inner, width, True, dtype)

    def forward(
        self, x: nn.Tensor, angles: tuple[nn.Tensor, nn.Tensor], windows: Windows | None
    ) -> nn.Tensor:
        """(1, patches, width) → the same shape."""
        config, count = self.config, x.shape[1]
        shape = 1, count, config.heads, config.width // config.heads
        query, key, value = (
            op.reshape(each, shape)
            for each in op.split(self.joined(self.attention_norm(x)), 3, axis=-1)
        )
        attend = op.nn.attention if windows is None else windows.attend
        mixed = attend(rotate(query, *angles), rotate(key, *angles), value)
        x = x + self.output(op.reshape(mixed, (1, count, config.width)))
        y, act = self.norm(x), activation(config.act)
        inner = act(self.up(y)) if self.gate is None else act(self.gate(y)) * self.up(y)
        return x + self.down(inner)


class QwenEyes(nn.Module):
    """Tower, and what makes rows of its states."""

    def __init__(self, config: QwenVision, hidden: int) -> None:
        self.config = config
        width, dtype = config.width, config.dtype
        wide = width * config.merge**2
        self.patch = nn.Parameter((width, 3, config.frames, config.patch, config.patch), dtype)
        self.layers = nn.ModuleList([QwenLayer(config) for _ in range(config.layers)])
        self.norm = config.norm()
        self.first = nn.Linear(wide, wide, True, dtype)
        self.second = nn.Linear(wide, hidden, True, dtype)

    def forward(
        self,
        patches: nn.Tensor,
        places: nn.Tensor,
        windows: nn.Tensor | None = None,
        back: nn.Tensor | None = None,
    ) -> nn.Tensor:
        """What `QwenVision.spec` says → (squares, hidden)."""
        config = self.config
        squares, square, numbers = patches.shape
        count = squares * square
        x = op.reshape(op.astype(patches, config.dtype), (count, numbers))
        weight = op.reshape(self.patch, (config.width, numbers))
        x = op.reshape(op.matmul(x, op.permute_dims(weight, (1, 0))), (1, count, config.width))
        angles = self._angles(op.permute_dims(op.reshape(places, (count, 2)), (1, 0)))
        own = None if windows is None or back is None else self._windows(windows, back, squares)
        for i, layer in enumerate(self.layers):
            x = layer(x, angles, None if i in config.whole else own)
        x = op.reshape(self.norm(x), (squares, square * config.width))
        return self.second(activation("gelu")(self.first(x)))

    def _windows(self, windows: nn.Tensor, back: nn.Tensor, squares: Any) -> Windows:
        """Windows of patches, of those of squares."""
        count, places = windows.shape
        square = self.config.merge**2
        windows = op.check_range(windows, squares, "windows", lowest=-1)
        back = op.check_range(back, count * places, "back")
        each = op.arange(square)

        def patches(of: nn.Tensor) -> nn.Tensor:
            return op.expand_dims(of * square, -1) + each

        there = op.expand_dims(op.greater_equal(windows, 0), -1)
        bias = op.where(there, op.zeros((square,), "float32"), MASKED)
        return Windows(
            op.reshape(patches(op.maximum(windows, 0)), (count * places * square,)),
            op.astype(op.reshape(bias, (count, 1, 1, places * square)), self.config.dtype),
            op.reshape(patches(back), (squares * square,)),
        )

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
        pairs = _pairs(config, rope.get("mrope_section"))
        token = fields.get("image_token_id", 151655)
        if type(token) is not int or not 0 <= token < config.vocab_size:
            raise UsageError(
                "bad-config",
                f"image_token_id must be a token below {config.vocab_size}, got {token!r}",
            )
        seen = {"token": token, "pairs": pairs, "dtype": config.dtype}
        return replace(config, vision=cls.vision(fields, config, seen))

    @classmethod
    def vision(
        cls, fields: Mapping[str, Any], config: DecoderConfig, known: Mapping[str, Any]
    ) -> QwenVision:
        """The tower; `known` has what the decoder says of it. Raises: UsageError (`bad-config`)."""
        seen = dict(nested(fields, "vision_config", _VISION))
        ratio = seen["mlp_ratio"]
        if type(ratio) not in (int, float) or not 0 < ratio < 1000:
            raise UsageError("bad-config", f"mlp_ratio must be a positive number, got {ratio!r}")
        width = whole(seen, "embed_dim", most=1 << 20)
        _check_rows(config, whole(seen, "hidden_size"))
        return QwenVision(**known, **_sizes(seen, width), inner=int(width * ratio))


class Qwen25VLConfig(Qwen2VLConfig):
    """Reads the configuration of a Qwen2.5-VL."""

    model_type: ClassVar[str] = "qwen2_5_vl"

    @classmethod
    def vision(
        cls, fields: Mapping[str, Any], config: DecoderConfig, known: Mapping[str, Any]
    ) -> QwenVision:
        """See `Qwen2VLConfig.vision`."""
        seen = dict(nested(fields, "vision_config", _VISION25))
        _check_rows(config, whole(seen, "out_hidden_size"))
        sizes = _sizes(seen, whole(seen, "hidden_size", most=1 << 20))
        layers = seen["fullatt_block_indexes"]
        numbers = tuple(layers) if is_list(layers) else ()
        if not is_list(layers) or not all(type(each) is int and each >= 0 for each in numbers):
            raise UsageError(
                "bad-config", f"fullatt_block_indexes must be numbers of layers, got {layers!r}"
            )
        side = sizes["merge"] * sizes["patch"]
        if (window := whole(seen, "window_size", most=1 << 13) // side) < 1:
            raise UsageError(
                "bad-config",
                f"window_size is {seen['window_size']}, less than a square of {side} pixels",
            )
        inner = whole(seen, "intermediate_size", most=1 << 20)
        return QwenVision(**known, **sizes, inner=inner, window=window, whole=numbers, gated=True)


def _check_rows(config: DecoderConfig, made: int) -> None:
    if made != config.hidden_size:
        raise UsageError(
            "bad-config",
            f"the tower makes rows of {made} numbers, and the decoder reads {config.hidden_size}",
        )


def _pairs(config: DecoderConfig, sections: object) -> tuple[int, ...]:
    """How many pairs each position of a token rotates."""
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
    return found


def _sizes(seen: Mapping[str, Any], width: int) -> dict[str, Any]:
    """The sizes of a tower of some width."""
    heads = whole(seen, "num_heads", most=1 << 20)
    if whole(seen, "in_channels") != 3:
        raise UsageError(
            "bad-config", f"pictures have 3 channels, in_channels is {seen['in_channels']}"
        )
    if width % (4 * heads):
        raise UsageError(
            "bad-config",
            f"a tower of width {width} has no {heads} heads of a multiple of 4 numbers",
        )
    return {
        "layers": whole(seen, "depth", most=1 << 10), "width": width, "heads": heads, "act": str(seen["hidden_act"]),
        "patch": whole(seen, "patch_size", most=256), "frames": whole(seen, "temporal_patch_size", most=16),
        "merge": whole(seen, "spatial_merge_size", most=16),
    }  # fmt: skip
