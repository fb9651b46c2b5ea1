"""The families of decoders, by the name that a checkpoint's `config.json` gives."""

from __future__ import annotations

import os
from pathlib import Path

from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import CONFIG_FILE, read_json
from relaxpy.models.decoder import DecoderConfig
from relaxpy.models.gemma import Gemma2Config, Gemma3Config, GemmaConfig
from relaxpy.models.gpt2 import GPT2Config
from relaxpy.models.gpt_neox import GPTNeoXConfig
from relaxpy.models.llama import LlamaConfig
from relaxpy.models.mistral import MistralConfig
from relaxpy.models.phi3 import Phi3Config
from relaxpy.models.qwen2 import Qwen2Config
from relaxpy.models.qwen3 import Qwen3Config
from relaxpy.runtime.checkpoint import Source, map_tensors, weight_files

FAMILIES: dict[str, type[DecoderConfig]] = {
    each.model_type: each
    for each in (
        LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, GemmaConfig, Gemma2Config, Gemma3Config, Phi3Config,
        GPTNeoXConfig, GPT2Config,
    )
}  # fmt: skip


def checkpoint_sources(
    config: DecoderConfig, directory: str | os.PathLike[str]
) -> dict[str, Source]:
    """Where the parameters of a decoder are in a checkpoint directory: `names` of `VirtualMachine.pack`. Unlike
    `config.sources()` it looks at the names that are there: some checkpoints are saved without the family's prefix.

    Raises: UsageError (`bad-checkpoint`) for files that cannot be read.
    """
    return config.sources_in(map_tensors(weight_files(directory)))


def decoder_config(directory: str | os.PathLike[str], dtype: str | None = None) -> DecoderConfig:
    """The configuration of a checkpoint directory, of the family that its `config.json` names. `dtype` is that of the
    computation; None: that of the checkpoint.

    Raises: UsageError: `bad-checkpoint` without a readable `config.json`, `bad-config` for a family that is not there,
    or settings of it that are not supported.
    """
    path = Path(directory) / CONFIG_FILE
    fields = read_json(path, "a checkpoint")
    family = FAMILIES.get(str(fields.get("model_type")))
    if family is None:
        raise UsageError(
            "bad-config",
            f"{path} is for a model of type {fields.get('model_type')!r}, which is not supported",
            help=f"supported are {', '.join(sorted(FAMILIES))}",
        )
    return family.from_dict(fields, dtype)
