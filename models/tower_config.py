"""Configurations of towers: encoders of pictures and of texts that give vectors.

A family is a subclass of `PictureModelConfig`, which reads a `config.json` and says where its weights are
(`relaxpy.models.vit` is the simplest). `relaxpy.models.tower` has the modules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import Source, config_fields, flag, positive, read_config, whole
from relaxpy.narrow import is_list, is_mapping
from relaxpy.nn.mlp import activation
from relaxpy.runtime.safetensors import best_layout

_SIZES = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"
_MOST = 1 << 20
POOLINGS = ("cls", "mean")
"""How the states of a picture become one vector, where the family has no head for it: the state of the first position,
which stands for the picture, or the mean of the patches."""


@dataclass(frozen=True)
class TowerConfig:
    """The sizes of an encoder, by transformers' names."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    rms_norm_eps: float
    """That of all norms, which subtract the mean, too."""
    dtype: str = "float32"
    qkv_bias: bool = True
    gated: bool = False
    """Whether the feed-forward network has a gate."""

    norm_after: ClassVar[bool] = False
    mlp_bias: ClassVar[bool] = True
    attention_scale: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise UsageError(
                "bad-config",
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}",
            )
        activation(self.hidden_act)

    @property
    def encoder_attention_heads(self) -> int:
        """By the name that models with an encoder and a decoder have."""
        return self.num_attention_heads

    @property
    def encoder_width(self) -> int:
        """Numbers of all heads."""
        return self.hidden_size

    @property
    def encoder_ffn_dim(self) -> int:
        """The same."""
        return self.intermediate_size

    def has_bias(self, linear: str) -> bool:
        """Has this linear map of attention a bias?"""
        return self.qkv_bias or linear == "output"


@dataclass(frozen=True)
class PictureTowerConfig(TowerConfig):
    """An encoder of pictures: their patches are the positions."""

    image_size: tuple[int, int] = (224, 224)
    """Height and width of the pictures that the positions are of."""
    patch_size: tuple[int, int] = (16, 16)
    class_shape: tuple[int, ...] = ()
    """The shape that the vector of the first position, which stands for the picture, has in checkpoints; (): there is
    none."""
    positions_lead: tuple[int, ...] = ()
    """Axes of size 1 that the table of positions begins with in checkpoints."""
    patch_bias: bool = True
    first_norm: bool = False
    """Whether embeddings are normalised."""
    layer_scale: bool = False
    """Whether what attention and the feed-forward network give is scaled, number by number."""
    interpolates: bool = False
    """Whether pictures of other sizes are read, with positions in between."""

    def __post_init__(self) -> None:
        super().__post_init__()
        (height, width), (down, across) = self.image_size, self.patch_size
        if height < down or width < across:
            raise UsageError(
                "bad-config",
                f"pictures of {height} × {width} have no patch of {down} × {across}",
            )
        if self.interpolates and self.grid[0] != self.grid[1]:
            raise UsageError(
                "bad-config", f"a grid of positions is square, and image_size is {height} × {width}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        (height, width), (down, across) = self.image_size, self.patch_size
        return height // down, width // across


@dataclass(frozen=True)
class TextTowerConfig(TowerConfig):
    """An encoder of texts."""

    vocab_size: int = 0
    max_position_embeddings: int = 0
    causal: bool = False
    """Whether a token reads those up to its own."""
    end: int | None = None
    """The token at whose first place a text is read; None: at the last place, and texts are padded to
    `max_position_embeddings`."""


@dataclass(frozen=True)
class PictureModelConfig:
    """A model of pictures, or of pictures and texts: its towers, and what is above them."""

    pictures: PictureTowerConfig
    texts: TextTowerConfig | None = None
    projection: int = 0
    """Numbers of the vectors that both towers give; 0: as many as the tower of pictures has."""
    pooling: Literal["cls", "mean", "head", "norm"] = "cls"
    """How one vector is made of a picture's states: one of `POOLINGS`, by SigLIP's head, or by the first position's
    norm, as CLIP has it."""
    labels: tuple[str, ...] = ()
    """What a picture may be, if the checkpoint has a head that says it."""

    model_type: ClassVar[str] = ""
    prefix: ClassVar[str] = ""
    """With which the names of a checkpoint with a head begin, those of the head excepted."""
    sigmoid: ClassVar[bool] = False
    """Whether a picture and a text are compared by themselves, and not each text with the others."""
    reads_mean: ClassVar[bool] = False
    """Whether the head that classifies reads the mean of the patches, too."""

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], dtype: str = "float32") -> Self:
        """Read the fields of a `config.json`. `dtype` is that of the computation. Raises: UsageError (`bad-config`) for
        what is not supported."""
        raise NotImplementedError

    @classmethod
    def from_checkpoint(cls, directory: str | Path, dtype: str = "float32") -> Self:
        """Read `config.json` of a checkpoint directory."""
        return cls.from_dict(read_config(Path(directory), cls.model_type), dtype)

    def sources(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter, by transformers' names."""
        raise NotImplementedError

    def sources_in(self, names: Iterable[str]) -> dict[str, Source]:
        """The same in a checkpoint with tensors of these names, with the prefix or without it."""
        found = self.sources()
        bare = {own: source.without(self.prefix) for own, source in found.items()}
        return best_layout([found, bare], names)

    def unused(self) -> Collection[str]:
        """Tensors that are not needed, without the prefix."""
        return ()

    def ignored(self) -> set[str]:
        """The same, with the prefix and without it."""
        return {*self.unused(), *(f"{self.prefix}{name}" for name in self.unused())}

    def with_head(self, shapes: Mapping[str, Any], names: Sequence[str]) -> Self:
        """The configuration with the labels of the head, if the checkpoint's tensors have one; `names` are those of
        `config.json`."""
        head = shapes.get("classifier.weight")
        if head is None:
            return self
        count = head.shape[0]
        numbered = [f"LABEL_{k}" for k in range(count)]
        return replace(self, labels=tuple(names if len(names) == count else numbered))


def tower_fields(fields: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """What all towers read of a `config.json`. Raises: UsageError (`bad-config`)."""
    read = {
        **{name: whole(fields, name, most=_MOST) for name in _SIZES},
        "hidden_act": fields.get("hidden_act"),
        "rms_norm_eps": positive(fields, "layer_norm_eps"),
    }
    given = {name: value for name, value in read.items() if value is not None}
    config_fields(TowerConfig, given)
    if not isinstance(given["hidden_act"], str):
        raise UsageError("bad-config", f"hidden_act must be a name, got {given['hidden_act']!r}")
    return {**given, "dtype": dtype}


def picture_fields(fields: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The same of towers of pictures."""
    if (channels := whole(fields, "num_channels", 3)) != 3:
        raise UsageError(
            "bad-config",
            f"pictures have 3 channels (red, green, blue), and num_channels is {channels}",
        )
    return {
        **tower_fields(fields, dtype),
        "image_size": _pair(fields, "image_size"),
        "patch_size": _pair(fields, "patch_size"),
        "qkv_bias": flag(fields, "qkv_bias", True),
    }


def _pair(fields: Mapping[str, Any], name: str) -> tuple[int, int]:
    """A height and a width, or a number for both."""
    value = fields.get(name)
    both = value if is_list(value) else [value, value]
    sizes = [each for each in both if type(each) is int and 0 < each <= _MOST]
    if len(both) != 2 or len(sizes) != 2:
        raise UsageError("bad-config", f"{name} must be a size or two, in pixels, got {value!r}")
    return sizes[0], sizes[1]


def nested(fields: Mapping[str, Any], part: str, defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a part of a configuration, `text_config` or `vision_config`, with those that are left out. Older
    checkpoints have them a second time (`text_config_dict`), which are the valid ones."""
    for name in (f"{part}_dict", part):
        found = fields.get(name)
        if is_mapping(found):
            return {**defaults, **{key: value for key, value in found.items() if value is not None}}
        if found is not None:
            raise UsageError("bad-config", f"{name} has no fields: it is a {type(found).__name__}")
    return defaults


def label_names(fields: Mapping[str, Any]) -> list[str]:
    """The names of `id2label`, by their numbers; none where they are not 0, 1, 2, …"""
    names = fields.get("id2label")
    if not is_mapping(names):
        return []
    by_number = {str(number): str(name) for number, name in names.items()}
    return [by_number[str(k)] for k in range(len(by_number)) if str(k) in by_number]
