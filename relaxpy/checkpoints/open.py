"""Checkpoints of any format, opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from relaxpy.checkpoints.config_file import CONFIG_FILE, config_of
from relaxpy.checkpoints.config_keys import check_rotary_share, unread_fields
from relaxpy.checkpoints.ggml import ggml_checkpoint
from relaxpy.checkpoints.gguf_models import gguf_checkpoint
from relaxpy.checkpoints.gguf_projector import Projector
from relaxpy.checkpoints.quantized import quantized_tensors
from relaxpy.checkpoints.stored import Checkpoint, Floats, Stored
from relaxpy.checkpoints.unread import warn_unread
from relaxpy.errors import UsageError
from relaxpy.files import given_path
from relaxpy.runtime.safetensors import map_tensors, weight_files
from relaxpy.runtime.tensor import Array

_HEADS: Mapping[str, tuple[str, ...]] = {
    "lm_head": ("model.embed_tokens", "embed_tokens", "transformer.wte", "wte"),
    "embed_out": ("gpt_neox.embed_in", "embed_in"),
}
"""The names of heads, and of the embeddings that they may be."""
_ROWS = 4096
"""Rows that are compared at a time."""


def open_checkpoint(
    place: str | os.PathLike[str], projector: Projector | None = None
) -> Checkpoint:
    """The checkpoint in a folder (`config.json` and safetensors), in a GGUF file, or in one of whisper.cpp. Its
    tensors are mapped, and not read. Warns (`UnreadWarning`) of fields of the configuration that are not read. Where
    the configuration says that the head is the embedding, and the files have another head, it is that one. A GGUF file
    with its `projector` (`relaxpy.checkpoints.gguf_projector.projector_of`) is a model that sees.

    Raises: UsageError (`bad-checkpoint`) for what cannot be read, is damaged or is not supported.
    """
    path = given_path(place, "a checkpoint", UsageError, "bad-checkpoint")
    config = config_of(path)
    if config is None:
        found = gguf_checkpoint(path)
        return found if projector is None else projector.joined(found)
    if path.is_file():
        return ggml_checkpoint(path)
    check_rotary_share(path / CONFIG_FILE, config)
    warn_unread(path / CONFIG_FILE, unread_fields(config))
    files = weight_files(path)
    arrays = map_tensors(files)
    if config.get("tie_word_embeddings") is not False and _has_another_head(arrays):
        config["tie_word_embeddings"] = False
    options = config.get("quantization_config") or config.get("compression_config")
    if not options:
        tensors: dict[str, Stored] = {name: Floats.of(array) for name, array in arrays.items()}
        return Checkpoint(path, tuple(files), config, tensors)
    if not isinstance(options, Mapping):
        raise UsageError(
            "bad-checkpoint",
            f"{path / CONFIG_FILE} has a quantization_config without fields: {options!r}",
        )
    tensors, quantization = quantized_tensors(path, cast("Mapping[str, Any]", options), arrays)
    return Checkpoint(path, tuple(files), config, tensors, quantization)


def _has_another_head(arrays: Mapping[str, Array]) -> bool:
    """Do the files have a head that is not the embedding a second time?"""
    for head, embeddings in _HEADS.items():
        if f"{head}.qweight" in arrays or f"{head}.weight_packed" in arrays:
            return True
        own = arrays.get(f"{head}.weight")
        for name in embeddings:
            other = arrays.get(f"{name}.weight")
            if own is not None and other is not None:
                return not _are_equal(own, other)
    return False


def _are_equal(one: Array, other: Array) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    places = [slice(at, at + _ROWS) for at in range(0, len(one), _ROWS)]
    return all(one[place].tobytes() == other[place].tobytes() for place in places)
