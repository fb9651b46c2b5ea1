"""The families of models, by the name that a checkpoint's `config.json` gives: decoders, models with an encoder and a
decoder, encoders of text and of sound, and models of pictures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from relaxpy.checkpoints.config_file import CONFIG_FILE, config_of
from relaxpy.errors import UsageError
from relaxpy.models.bart import BartConfig, M2M100Config, MarianConfig, MBartConfig
from relaxpy.models.bert import BertConfig
from relaxpy.models.clip import CLIPConfig
from relaxpy.models.ctc import CtcConfig
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.models.dinov2 import Dinov2Config
from relaxpy.models.encoder_decoder import EncoderDecoderConfig
from relaxpy.models.gemma import Gemma2Config, Gemma3Config, GemmaConfig
from relaxpy.models.gemma3 import Gemma3VisionConfig
from relaxpy.models.gpt2 import GPT2Config
from relaxpy.models.gpt_neox import GPTNeoXConfig
from relaxpy.models.gpt_oss import GptOssConfig
from relaxpy.models.hubert import HubertConfig
from relaxpy.models.llama import LlamaConfig
from relaxpy.models.llava import LlavaConfig
from relaxpy.models.mistral import MistralConfig
from relaxpy.models.moonshine import MoonshineConfig
from relaxpy.models.parakeet import ParakeetConfig
from relaxpy.models.phi3 import Phi3Config
from relaxpy.models.qwen2 import Qwen2Config
from relaxpy.models.qwen2_vl import Qwen2VLConfig, Qwen25VLConfig
from relaxpy.models.qwen3 import Qwen3Config
from relaxpy.models.qwen3_moe import Qwen3MoeConfig
from relaxpy.models.siglip import SiglipConfig
from relaxpy.models.t5 import MT5Config, T5Config, UMT5Config
from relaxpy.models.tower_config import PictureModelConfig
from relaxpy.models.vision import SeeingConfig
from relaxpy.models.vit import ViTConfig
from relaxpy.models.wav2vec2 import Wav2Vec2Config
from relaxpy.models.whisper import WhisperConfig
from relaxpy.runtime.safetensors import Source, map_tensors, weight_files

T = TypeVar("T")

FAMILIES: dict[str, type[DecoderConfig]] = {
    each.model_type: each
    for each in (
        LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, GemmaConfig, Gemma2Config, Gemma3Config, Phi3Config,
        GPTNeoXConfig, GPT2Config, Qwen3MoeConfig, GptOssConfig,
    )
}  # fmt: skip
"""The decoders."""
SEEING: dict[str, type[SeeingConfig]] = {
    each.model_type: each
    for each in (LlavaConfig, Qwen2VLConfig, Qwen25VLConfig, Gemma3VisionConfig)
}
"""Decoders that see pictures: what reads their configurations, which are those of a decoder of any family."""
SEQ2SEQ: dict[str, type[EncoderDecoderConfig]] = {
    each.model_type: each
    for each in (
        WhisperConfig, MoonshineConfig, BartConfig, MBartConfig, MarianConfig, M2M100Config, T5Config, MT5Config,
        UMT5Config,
    )
}  # fmt: skip
"""Models with an encoder and a decoder."""
ENCODERS: dict[str, type[BertConfig]] = {BertConfig.model_type: BertConfig}
CTC: dict[str, type[CtcConfig]] = {
    each.model_type: each for each in (Wav2Vec2Config, HubertConfig, ParakeetConfig)
}
"""Encoders of sound, which give the tokens of frames."""
PICTURES: dict[str, type[PictureModelConfig]] = {
    each.model_type: each for each in (ViTConfig, Dinov2Config, CLIPConfig, SiglipConfig)
}
"""Models of pictures, or of pictures and texts."""


def checkpoint_sources(
    config: DecoderConfig, directory: str | os.PathLike[str]
) -> dict[str, Source]:
    """Where the parameters of a decoder are in a checkpoint directory: `names` of `VirtualMachine.pack`. Unlike
    `config.sources()` it looks at the names that are there: some checkpoints are saved without the family's prefix.

    Raises: UsageError (`bad-checkpoint`) for files that cannot be read.
    """
    return config.sources_in(map_tensors(weight_files(directory)))


def model_config(
    directory: str | os.PathLike[str], dtype: str | None = None
) -> DecoderConfig | BertConfig | PictureModelConfig:
    """The configuration of a checkpoint directory, of the family that its `config.json` names. `dtype` is that of a
    decoder's computation; None: that of the checkpoint.

    Raises: UsageError: `bad-checkpoint` without a readable `config.json`, `bad-config` for a family that is not there,
    or settings of it that are not supported.
    """
    path = Path(directory) / CONFIG_FILE
    fields = config_of(Path(directory)) or {}
    family = _family(fields, str(path))
    if issubclass(family, DecoderConfig | SeeingConfig):
        return family.from_dict(fields, dtype)
    return family.from_dict(fields)


def decoder_config(directory: str | os.PathLike[str], dtype: str | None = None) -> DecoderConfig:
    """The same of a decoder. Raises: UsageError, also (`bad-config`) for an encoder."""
    path = Path(directory) / CONFIG_FILE
    return config_from(config_of(path.parent) or {}, dtype, str(path))


def config_from(
    fields: Mapping[str, Any], dtype: str | None = None, place: str = CONFIG_FILE
) -> DecoderConfig:
    """The configuration of a decoder, with an encoder or without, by the fields of a `config.json`; `place` names it in
    messages. Raises: UsageError (`bad-config`)."""
    family = _family(fields, place)
    if not issubclass(family, DecoderConfig | SeeingConfig):
        raise UsageError(
            "bad-config",
            f"{place} is for a model of type {family.model_type!r}, an encoder, which writes no text",
            help="relaxpy embed --model, relaxpy serve --embeddings, or relaxpy.models.sentence_embedding, takes it",
        )
    return family.from_dict(fields, dtype)


def ctc_config(fields: Mapping[str, Any], place: str = CONFIG_FILE) -> CtcConfig:
    """The configuration of an encoder of sound, by the fields of a `config.json`. Raises: UsageError (`bad-config`)."""
    return family_of(fields, CTC, place, "which gives no tokens of frames").from_dict(fields)


def family_of(
    fields: Mapping[str, Any],
    families: Mapping[str, type[T]],
    place: str,
    lack: str,
    code: str = "bad-config",
) -> type[T]:
    """The one of these families that the fields of a `config.json` name. Raises: UsageError with this code: the others
    are models with this lack ("which read no pictures")."""
    kind = fields.get("model_type")
    if (family := families.get(str(kind))) is None:
        raise UsageError(
            code,
            f"{place} is for a model of type {kind!r}, {lack}",
            help=f"those that do are {', '.join(sorted(families))}",
        )
    return family


def _family(
    fields: Mapping[str, Any], place: str
) -> type[DecoderConfig | BertConfig | PictureModelConfig | SeeingConfig]:
    """The family that the fields name."""
    known = {**FAMILIES, **SEEING, **SEQ2SEQ, **ENCODERS, **PICTURES}
    family = known.get(str(fields.get("model_type")))
    if str(fields.get("model_type")) in CTC:
        raise UsageError(
            "bad-config",
            f"{place} is for a model of type {fields['model_type']!r}, which hears, and writes no other texts",
            help="relaxpy transcribe --model, or relaxpy.speech.load_transcriber, takes it",
        )
    if family is None:
        raise UsageError(
            "bad-config",
            f"{place} is for a model of type {fields.get('model_type')!r}, which is not supported",
            help=f"supported are {', '.join(sorted({*known, *CTC}))}",
        )
    return family
