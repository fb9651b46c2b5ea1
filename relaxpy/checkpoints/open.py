"""Checkpoints of any format, opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from relaxpy.checkpoints.config_file import CONFIG_FILE, config_of
from relaxpy.checkpoints.gguf_models import gguf_checkpoint
from relaxpy.checkpoints.quantized import quantized_tensors
from relaxpy.checkpoints.stored import Checkpoint, Floats, Stored
from relaxpy.errors import UsageError
from relaxpy.runtime.checkpoint import map_tensors, weight_files


def open_checkpoint(place: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint in a folder (`config.json` and safetensors), or in a GGUF file. Its tensors are mapped, and not
    read.

    Raises: UsageError (`bad-checkpoint`) for what cannot be read, is damaged or is not supported.
    """
    path = Path(place)
    config = config_of(path)
    if config is None:
        return gguf_checkpoint(path)
    files = weight_files(path)
    arrays = map_tensors(files)
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
