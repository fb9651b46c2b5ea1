"""LLaVA 1.5 (Liu et al., 2024): a CLIP or SigLIP, of whose states in an inner layer two linear maps make rows of a
decoder, one for each patch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import flag, whole
from relaxpy.models.clip import CLIPConfig
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.models.encoder_decoder import both
from relaxpy.models.llama import LlamaConfig
from relaxpy.models.mistral import MistralConfig
from relaxpy.models.qwen2 import Qwen2Config
from relaxpy.models.siglip import SiglipConfig
from relaxpy.models.tower import PictureEncoder
from relaxpy.models.tower_config import PictureModelConfig, PictureTowerConfig, nested
from relaxpy.models.vision import SeeingConfig, VisionConfig, renamed
from relaxpy.narrow import is_mapping
from relaxpy.nn import op
from relaxpy.nn.mlp import activation
from relaxpy.runtime.safetensors import Source, best_layout
from relaxpy.serve.pictures import PictureShape

TEXTS: Mapping[str, type[DecoderConfig]] = {
    each.model_type: each for each in (LlamaConfig, MistralConfig, Qwen2Config)
}
"""The families of decoders."""
TOWERS: Mapping[str, type[PictureModelConfig]] = {
    "clip_vision_model": CLIPConfig,
    "siglip_vision_model": SiglipConfig,
}
"""The families of towers."""
_LLAMA = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "vocab_size": 32000,
}  # fmt: skip
"""transformers' values of fields that a `text_config` of a Llama leaves out."""
_CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
}  # fmt: skip
"""The same of a `vision_config` that is left out."""
PROJECTOR = "multi_modal_projector"


@dataclass(frozen=True)
class TowerVision(VisionConfig):
    """A tower of a family that stands alone, too, and a projector of its states."""

    family: type[PictureModelConfig]
    """Of the tower."""
    tower: PictureTowerConfig
    """With the layers that are computed."""
    layers: int
    """All layers of the tower in the checkpoint."""

    has_norm: ClassVar[bool] = False
    """Whether states are read after the tower's last norm."""

    def projector(self) -> dict[str, Source]:
        """The checkpoint tensor of each parameter of the projector."""
        raise NotImplementedError

    def spec(self) -> dict[str, Any]:
        """One picture (1, 3, height, width), of the size that the tower's positions are of."""
        return {"pixels": nn.spec.Tensor((1, 3, *self.tower.image_size), "float32")}

    def sources_in(self, names: Iterable[str]) -> dict[str, Source]:
        """See `VisionConfig.sources_in`."""
        tower: dict[str, Source] = {}
        left = ("head.",) if self.has_norm else ("norm.", "head.")
        for own, source in self.family(self.tower, pooling="norm").sources().items():
            part, _, rest = own.partition(".")
            if part == "pictures" and not rest.startswith(left):
                tower[rest if rest.startswith("norm.") else f"tower.{rest}"] = source
        layouts = [
            {own: renamed(source, place) for own, source in tower.items()}
            | {own: renamed(source, lambda n, lead=lead: lead + n) for own, source in self.projector().items()}
            for place, lead in product(_tower_places(), _LEADS)
        ]  # fmt: skip
        return best_layout(layouts, names)

    def unused(self) -> Collection[str]:
        """The last layers, of which no state is read, and what makes one vector of a picture."""
        whole = replace(self.tower, num_hidden_layers=self.layers)
        config = self.family(whole, pooling="norm")
        computed = {
            source.name for source in self.family(self.tower, pooling="norm").sources().values()
        }
        lasts = {source.name for source in config.sources().values()} - computed
        if not self.has_norm:
            lasts |= {f"vision_model.post_layernorm.{kind}" for kind in ("weight", "bias")}
        lasts |= {*config.unused()} | {*_HEAD}
        found = {name for name in lasts if name.startswith("vision_model.")}
        return {place(name) for name in found for place in _tower_places()}


@dataclass(frozen=True)
class LlavaVision(TowerVision):
    """The tower and the projector of a LLaVA."""

    drops_first: bool
    """Whether the first position, which stands for the whole picture, has no row."""
    projector_act: str = "gelu"
    projector_bias: bool = True

    def __post_init__(self) -> None:
        activation(self.projector_act)

    @property
    def most_tokens(self) -> int:
        """The tokens of every picture."""
        rows, columns = self.tower.grid
        return rows * columns + len(self.tower.class_shape[:1]) - self.drops_first

    def shape(self, hidden: int) -> PictureShape:
        """See `VisionConfig.shape`."""
        return PictureShape(hidden, self.token, self.most_tokens, self.tower.image_size)

    def module(self, config: DecoderConfig) -> nn.Module:
        """See `VisionConfig.module`."""
        return LlavaEyes(self, config.hidden_size)

    def projector(self) -> dict[str, Source]:
        """See `TowerVision.projector`."""
        found = both("first", f"{PROJECTOR}.linear_1", self.projector_bias)
        return found | both("second", f"{PROJECTOR}.linear_2", self.projector_bias)


class LlavaEyes(nn.Module):
    """Tower and projector."""

    def __init__(self, config: LlavaVision, hidden: int) -> None:
        self.config = config
        width, dtype, bias = config.tower.hidden_size, config.tower.dtype, config.projector_bias
        self.tower = PictureEncoder(config.tower)
        self.first = nn.Linear(width, hidden, bias, dtype)
        self.second = nn.Linear(hidden, hidden, bias, dtype)

    def forward(self, pixels: nn.Tensor) -> nn.Tensor:
        """(1, 3, height, width) → (tokens, hidden)."""
        x = op.squeeze(self.tower.encode(pixels), 0)
        if self.config.drops_first:
            _, x = op.split(x, [1], axis=0)
        return self.second(activation(self.config.projector_act)(self.first(x)))


class LlavaConfig(SeeingConfig):
    """Reads the configuration of a LLaVA."""

    model_type: ClassVar[str] = "llava"

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], dtype: str | None = None) -> DecoderConfig:
        """The configuration of the decoder, of whatever family it is, with what sees pictures. Raises: UsageError
        (`bad-config`)."""
        texts = text_fields(fields)
        family = _family(TEXTS, "text_config", texts)
        config = family.from_dict(texts, dtype)
        seen = nested(fields, "vision_config", {})
        seen = seen or _CLIP
        tower_family = _family(TOWERS, "vision_config", {"model_type": "clip_vision_model", **seen})
        vision = _vision(fields, tower_family, seen, config)
        return replace(config, vision=vision)


def text_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the decoder, those that a Llama's leaves out included."""
    texts = fields.get("text_config")
    if texts is not None and not is_mapping(texts):
        raise UsageError("bad-config", f"text_config has no fields: it is a {type(texts).__name__}")
    own = {key: value for key, value in (texts or {}).items() if value is not None}
    own = {"model_type": "llama", **own}
    own = {**(_LLAMA if own["model_type"] == "llama" else {}), **own}
    for name in ("dtype", "torch_dtype"):
        if fields.get(name) is not None:
            own[name] = fields[name]
    if fields.get("tie_word_embeddings") is not None:
        own.setdefault("tie_word_embeddings", fields["tie_word_embeddings"])
    return own


def _vision(
    fields: Mapping[str, Any],
    family: type[PictureModelConfig],
    seen: Mapping[str, Any],
    config: DecoderConfig,
) -> LlavaVision:
    tower = tower_of(family, seen, config.dtype)
    layer = fields.get("vision_feature_layer", -2)
    layers = tower.num_hidden_layers
    if type(layer) is not int or not -layers - 1 <= layer <= layers:
        raise UsageError(
            "bad-config",
            f"vision_feature_layer must be the number of one layer of the tower, which has {layers}, got {layer!r}",
        )
    strategy = fields.get("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise UsageError(
            "bad-config",
            f"vision_feature_select_strategy is default or full, got {strategy!r}",
        )
    tokens = [fields.get(n) for n in ("image_token_index", "image_token_id")]
    token = next((each for each in tokens if each is not None), 32000)
    if type(token) is not int or not 0 <= token < config.vocab_size:
        raise UsageError(
            "bad-config",
            f"image_token_index must be a token below {config.vocab_size}, got {token!r}",
        )
    act = fields.get("projector_hidden_act") or "gelu"
    if not isinstance(act, str):
        raise UsageError("bad-config", f"projector_hidden_act must be a name, got {act!r}")
    return LlavaVision(
        token,
        family,
        replace(tower, num_hidden_layers=layer if layer >= 0 else layers + 1 + layer),
        layers,
        strategy == "default",
        act,
        flag(fields, "multimodal_projector_bias", True),
    )


def tower_of(
    family: type[PictureModelConfig], seen: Mapping[str, Any], dtype: str
) -> PictureTowerConfig:
    """All layers of the tower."""
    whole(seen, "num_hidden_layers", most=1 << 10)
    given = {"vision_config": {**seen, "vision_use_head": True}}
    if issubclass(family, SiglipConfig):  # whose texts have vectors of the same width
        given["text_config"] = {
            "projection_size": seen.get("hidden_size", family.sizes["hidden_size"])
        }
    return family.from_dict(given, dtype).pictures


def _family(known: Mapping[str, type[Any]], part: str, fields: Mapping[str, Any]) -> type[Any]:
    found = known.get(str(fields.get("model_type")))
    if found is None:
        raise UsageError(
            "bad-config",
            f"{part} is for a model of type {fields.get('model_type')!r}, which is not supported in a LLaVA",
            help=f"supported are {', '.join(known)}",
        )
    return found


_LEADS = "", "model."
_HEAD = tuple(
    f"vision_model.head.{name}"
    for name in (
        "probe", "attention.in_proj_weight", "attention.in_proj_bias",
        *(
            f"{part}.{kind}"
            for part in ("attention.out_proj", "layernorm", "mlp.fc1", "mlp.fc2")
            for kind in ("weight", "bias")
        ),
    )
)  # fmt: skip
"""What makes one vector of a picture in a SigLIP."""


def _tower_places() -> list[Callable[[str], str]]:
    """The names that the tensors of a tower have in a LLaVA, with what they are called in a model of their own."""
    return [
        lambda name, lead=lead, model=model: (
            f"{lead}vision_tower.{model}{name.removeprefix('vision_model.')}"
        )
        for lead in _LEADS
        for model in ("vision_model.", "")
    ]
