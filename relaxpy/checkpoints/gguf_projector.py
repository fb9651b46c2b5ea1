"""Pairs of GGUF files, as llama.cpp has models that see: a language model, and a projector (`mmproj*.gguf`) with the
tower that pictures are read by, and what makes rows for the language model of them.

    projector = projector_of(Path("model.gguf"))           the one beside it, if it is for this model
    checkpoint = open_checkpoint("model.gguf", projector)  a LLaVA, as transformers has it

Projectors of LLaVA 1.5 (`mlp`) are read: a CLIP or a SigLIP, and two linear maps. What the files say is written by
llama.cpp's `convert_image_encoder_to_gguf.py`; they leave out the tower's last layer, whose states nobody reads.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaxpy.checkpoints.config_file import CONFIG_FILE
from relaxpy.checkpoints.gguf import GgufFile, bad, is_gguf, parts_of, read_gguf
from relaxpy.checkpoints.gguf_models import Metadata
from relaxpy.checkpoints.stored import Checkpoint, Stored
from relaxpy.checkpoints.unread import warn_unread
from relaxpy.errors import UsageError
from relaxpy.files import given_path
from relaxpy.narrow import is_list

ARCHITECTURE = "clip"
"""The `general.architecture` of projectors."""
_TEXTS = ("llama", "qwen2")
"""The architectures of language models of which a LLaVA is made."""
_KINDS = ("mlp",)
_IMAGE = "<image>"
"""The token that stands for pictures, where the vocabulary has it."""
_TOWER, _PROJECTOR = "vision_tower.vision_model", "multi_modal_projector"
_NAMES = {
    "v.class_embd": f"{_TOWER}.embeddings.class_embedding",
    "v.patch_embd.weight": f"{_TOWER}.embeddings.patch_embedding.weight",
    "v.patch_embd.bias": f"{_TOWER}.embeddings.patch_embedding.bias",
    "v.position_embd.weight": f"{_TOWER}.embeddings.position_embedding.weight",
    **{f"v.pre_ln.{kind}": f"{_TOWER}.pre_layrnorm.{kind}" for kind in ("weight", "bias")},
    **{f"mm.0.{kind}": f"{_PROJECTOR}.linear_1.{kind}" for kind in ("weight", "bias")},
    **{f"mm.2.{kind}": f"{_PROJECTOR}.linear_2.{kind}" for kind in ("weight", "bias")},
}
"""The names of a file, and transformers'."""
_IN_LAYER = re.compile(r"v\.blk\.(\d{1,4})\.(\w+)\.(weight|bias)")
_LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj", "ln1": "layer_norm1", "ln2": "layer_norm2", "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}  # fmt: skip
"""The same in a layer."""
_SWAPPED = {**_LAYER, "ffn_down": "mlp.fc1", "ffn_up": "mlp.fc2"}
"""The same in files of the older converter, which calls them the other way round."""
_UNREAD = "v.head."
"""What makes one vector of a picture in a SigLIP, which no LLaVA reads."""
_FREE = (
    "has_text_encoder", "has_vision_encoder", "has_audio_encoder", "has_llava_projector", "projector_type",
    "vision.projector_type", "vision.image_mean", "vision.image_std", "vision.feature_layer",
    "vision.image_grid_pinpoints", "vision.mm_patch_merge_type",
    # those of CLIP's own vector, of tiles (which are refused), and of the same projector by another name
    "vision.projection_dim", "vision.image_crop_resolution", "vision.image_split_resolution",
    "vision.mm_projector_type",
)  # fmt: skip
"""Fields that are read beside `Metadata.get`, and those that change nothing."""


@dataclass(frozen=True, eq=False)
class Projector:
    """The second file of a pair, read for the first."""

    path: Path
    config: Mapping[str, Any]
    """The fields of a LLaVA's `config.json`, without those of the language model."""
    tensors: Mapping[str, Stored]
    """By transformers' names."""
    files: tuple[Path, ...]
    processor: Mapping[str, Any]
    """The fields of a `preprocessor_config.json`."""
    placeholder: str
    """The text of the token that stands for pictures."""

    def joined(self, texts: Checkpoint) -> Checkpoint:
        """The pair as one checkpoint: a LLaVA."""
        ids = {name: x for name, x in texts.config.items() if name.endswith("_token_id")}
        tied = texts.config["tie_word_embeddings"]
        config = {
            **self.config, **ids, "model_type": "llava", "text_config": dict(texts.config), "dtype": "float32",
            "tie_word_embeddings": tied,
        }  # fmt: skip
        files, tensors = (*texts.files, *self.files), {**texts.tensors, **self.tensors}
        return Checkpoint(texts.place, files, config, tensors, texts.quantization)


def projector_of(
    place: str | os.PathLike[str], mmproj: str | os.PathLike[str] | None = None
) -> Projector | None:
    """The projector of the model in a GGUF file: `mmproj`, or else the one `mmproj*.gguf` in its folder. If that is not
    for the model, or there are several, a warning (`UnreadWarning`) says so, and the model reads texts alone; None
    then, without one, and for a place that is no GGUF file.

    Raises: UsageError (`bad-checkpoint`) for an `mmproj` that cannot be read, is not for this model, is of a kind that
    is not supported, or is given with another checkpoint than a GGUF file.
    """
    path = given_path(place, "a checkpoint", UsageError, "bad-checkpoint")
    if not is_gguf(path):
        if mmproj is not None and path.exists():
            raise UsageError(
                "bad-checkpoint",
                f"{mmproj} is the second file of a pair, and {path} is no GGUF file",
                help="give the language model's GGUF file with it; other checkpoints that see have their tower inside",
            )
        return None
    if mmproj is not None:
        return _read(path, given_path(mmproj, "a projector", UsageError, "bad-checkpoint"))
    found = [each for each in _beside(path) if each.name != path.name]
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        warn_unread(path, [f"one of the projectors beside it, {names}: name it as mmproj"])
    if len(found) != 1:
        return None
    try:
        return _read(path, found[0])
    except UsageError as error:
        warn_unread(path, [f"the projector beside it, since {error.message}"])
        return None


def is_projector(name: str) -> bool:
    """Is a GGUF file of this name the second one of a pair?"""
    return name.endswith(".gguf") and "mmproj" in name.lower()


def gguf_names(names: Iterable[str]) -> list[str]:
    """The GGUF files of models among names of files, each by its first part."""
    found = sorted(each for each in names if each.endswith(".gguf") and not is_projector(each))
    return [each for each in found if parts_of(each)[0] == each]


def gguf_inside(path: Path) -> Path:
    """The model in a folder without `config.json` that has one GGUF model; others are places as they are."""
    if not path.is_dir() or (path / CONFIG_FILE).exists():
        return path
    try:
        found = gguf_names(each.name for each in path.iterdir())
    except OSError:
        return path
    return path / found[0] if len(found) == 1 else path


def _beside(path: Path) -> list[Path]:
    try:
        return sorted(each for each in path.parent.iterdir() if is_projector(each.name))
    except OSError:
        return []


def _read(model: Path, path: Path) -> Projector:
    """The projector in a file, for the model in another one."""
    texts, file = read_gguf(model), read_gguf(path)
    _check_kind(file)
    data = Metadata(file, ARCHITECTURE)
    _check_fits(texts, data)
    vision, layer = _tower(data)
    token, placeholder = _placeholder(texts)
    tensors = _tensors(file, vision["hidden_size"])
    config = {
        "vision_config": vision,
        "vision_feature_layer": layer,
        "vision_feature_select_strategy": "default" if "v.class_embd" in file.tensors else "full",
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": "mm.0.bias" in file.tensors,
        "image_token_index": token,
    }
    side = {"height": vision["image_size"], "width": vision["image_size"]}
    processor = {
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": vision["image_size"]},
        "crop_size": side, "image_mean": _channels(data, "image_mean"), "image_std": _channels(data, "image_std"),
    }  # fmt: skip
    data.used.update(_FREE)
    warn_unread(path, data.unread())
    return Projector(path, config, tensors, file.files, processor, placeholder)


def _check_kind(file: GgufFile) -> None:
    """Raises: UsageError (`bad-checkpoint`) unless the file is a projector that is supported."""
    fields = file.fields
    name = fields.get("general.architecture")
    if name != ARCHITECTURE:
        raise bad(
            file.path,
            f"it is for the architecture {name!r}, not a projector of pictures ({ARCHITECTURE})",
            help="a projector is published beside its model, and has mmproj in its name",
        )
    if not fields.get(f"{ARCHITECTURE}.has_vision_encoder"):
        what = next(
            (
                each
                for each in ("audio", "text")
                if fields.get(f"{ARCHITECTURE}.has_{each}_encoder")
            ),
            None,
        )
        of = f", and one of {what} is not supported" if what else ""
        raise bad(
            file.path, f"it has no encoder of pictures ({ARCHITECTURE}.has_vision_encoder){of}"
        )
    kinds = [fields.get(f"{ARCHITECTURE}.{each}projector_type") for each in ("vision.", "")]
    kind = next((each for each in kinds if each is not None), None)
    if kind is None and fields.get(f"{ARCHITECTURE}.has_llava_projector"):
        kind = "mlp"  # of files from before there were others
    if kind not in _KINDS:
        raise bad(
            file.path,
            f"its projector is of the kind {kind!r}, which is not supported",
            help=f"supported is {', '.join(_KINDS)}, that of LLaVA 1.5",
        )
    if fields.get(f"{ARCHITECTURE}.has_audio_encoder"):
        raise bad(
            file.path,
            f"it has an encoder of sound, too ({ARCHITECTURE}.has_audio_encoder), which is not supported",
        )
    merge = fields.get(f"{ARCHITECTURE}.vision.mm_patch_merge_type", "flat")
    if fields.get(f"{ARCHITECTURE}.vision.image_grid_pinpoints") or merge != "flat":
        raise bad(
            file.path,
            "it reads pictures in tiles (image_grid_pinpoints), as LLaVA 1.6 does, which is not supported",
        )


def _check_fits(texts: GgufFile, data: Metadata) -> None:
    """Raises: UsageError (`bad-checkpoint`) if the projector's rows are not those of this language model."""
    name, file = texts.fields.get("general.architecture"), data.file
    if name not in _TEXTS:
        raise data.bad(
            f"it is a LLaVA's, whose language model is one of {', '.join(_TEXTS)}, and {texts.path} is for {name!r}"
        )
    wide = file.tensors.get("mm.2.weight")
    if wide is None or "mm.0.weight" not in file.tensors:
        found = ", ".join(sorted(each for each in file.tensors if each.startswith("mm."))) or "none"
        raise data.bad(
            f"its projector has not the two linear maps of LLaVA 1.5, mm.0 and mm.2, but {found}"
        )
    hidden = texts.fields.get(f"{name}.embedding_length")
    if wide.shape[0] != hidden:
        raise data.bad(
            f"its rows have {wide.shape[0]} numbers, and tokens of {texts.path} have {hidden}: it is for another model"
        )
    if (
        "mm.1.weight" in file.tensors
        or "mm.3.weight" in file.tensors
        or "mm.4.weight" in file.tensors
    ):
        raise data.bad(
            "its projector has norms between its linear maps (Yi-VL), which is not supported"
        )


def _tower(data: Metadata) -> tuple[dict[str, Any], int]:
    """The fields of a `vision_config`, and the number of layers whose states are read."""
    file = data.file
    is_clip = "v.class_embd" in file.tensors
    if "v.post_ln.weight" in file.tensors:
        raise data.bad("its tower has a norm after its layers (v.post_ln), which no LLaVA 1.5 has")
    quick, silu = not data.get("use_gelu", bool, False), data.get("use_silu", bool, False)
    hidden = data.need("vision.embedding_length")
    places = [_IN_LAYER.fullmatch(name) for name in file.tensors]
    layers = 1 + max((int(place[1]) for place in places if place), default=-1)
    count = data.need("vision.block_count")
    feature: Any = file.fields.get(f"{ARCHITECTURE}.vision.feature_layer", [count])
    if not is_list(feature) or len(feature) != 1 or type(feature[0]) is not int:
        raise data.bad(
            f"clip.vision.feature_layer is {feature}, and the states of one layer are supported"
        )
    if not 0 <= feature[0] <= layers:
        raise data.bad(
            f"it has {layers} layers of a tower, and the states of layer {feature[0]} are read"
        )
    vision = {
        "model_type": "clip_vision_model" if is_clip else "siglip_vision_model",
        "hidden_size": hidden,
        "intermediate_size": data.need("vision.feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": data.need("vision.attention.head_count"),
        "layer_norm_eps": data.need("vision.attention.layer_norm_epsilon", float),
        "image_size": data.need("vision.image_size"),
        "patch_size": data.need("vision.patch_size"),
        # The converter says only whether it is GELU, which ggml computes by tanh.
        "hidden_act": "silu" if silu else "quick_gelu" if quick else "gelu_pytorch_tanh",
    }
    return vision, feature[0]


def _channels(data: Metadata, name: str) -> list[float]:
    """A number for each of red, green and blue."""
    value: Any = data.file.fields.get(f"{ARCHITECTURE}.vision.{name}")
    if not is_list(value) or len(value) != 3 or {*map(type, value)} != {float}:
        raise data.bad(
            f"clip.vision.{name} must be a number for each of red, green and blue, got {value!r:.60}"
        )
    return [float(f"{each:.7g}") for each in value]  # as files have what was rounded to float32


def _placeholder(texts: GgufFile) -> tuple[int, str]:
    """The token that stands for pictures: the vocabulary's own, or the unknown one, which no text has."""
    tokens: Any = texts.fields.get("tokenizer.ggml.tokens")
    unknown = texts.fields.get("tokenizer.ggml.unknown_token_id")
    if is_list(tokens) and _IMAGE in tokens:
        return tokens.index(_IMAGE), _IMAGE
    if is_list(tokens) and type(unknown) is int and 0 <= unknown < len(tokens):
        return unknown, str(tokens[unknown])
    raise bad(
        texts.path,
        f"no token of its vocabulary can stand for pictures: it has neither {_IMAGE} nor an unknown one",
    )


def _tensors(file: GgufFile, hidden: int) -> dict[str, Stored]:
    """The tensors by transformers' names, as floats; those that have none keep their own."""
    down = file.tensors.get("v.blk.0.ffn_down.weight")
    names = _SWAPPED if down is not None and down.shape[-1] == hidden else _LAYER
    found: dict[str, Stored] = {}
    for name, tensor in file.tensors.items():
        place = _IN_LAYER.fullmatch(name)
        own = _NAMES.get(name, name)
        if name.startswith(_UNREAD):
            continue
        if place is not None and place[2] in names:
            own = f"{_TOWER}.encoder.layers.{int(place[1])}.{names[place[2]]}.{place[3]}"
        found[own] = dataclasses.replace(tensor, codes=None)
    return found
