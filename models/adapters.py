"""Low-rank adapters as PEFT writes them: a folder with `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.checkpoints.config_file import ADAPTER_CONFIG, read_fields
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import read_tensors

ADAPTER_WEIGHTS = "adapter_model.safetensors"

_IGNORED = frozenset(
    """
    auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config exclude_modules fan_in_fan_out
    inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config lora_alpha lora_dropout
    lora_ga_config megatron_core peft_type peft_version qalora_group_size r revision runtime_config target_modules
    task_type use_rslora
""".split()
)
"""Settings that are read here, and those that do not change what an adapter computes: they are of training, or say
which maps have an adapter, as the tensors' names do."""
_NEUTRAL = None, False, "none", {}, []
"""The values of other settings that ask for nothing."""
_INITS = None, True, False, "gaussian", "orthogonal", "eva"
"""Ways to initialise an adapter that leave the weights of the model as they are."""

Adapter = tuple[Mapping[str, np.ndarray], float]
"""The tensors of an adapter by name, and its scale."""


def load_adapter(directory: str | Path) -> Adapter:
    """The tensors of a PEFT adapter by name, and its scale: lora_alpha / r, or lora_alpha / sqrt(r) with rsLoRA. It is
    what `stack_adapters` of a model takes.

    Raises: UsageError (`bad-checkpoint`) for files that cannot be read, (`bad-config`) that names all settings that are
    not supported: DoRA, biases, modules saved whole, ranks or alphas by pattern, and any that is not known here.
    """
    folder = Path(directory)
    config = read_fields(folder / ADAPTER_CONFIG, "an adapter")
    problems = _problems(config)
    if problems:
        raise UsageError(
            "bad-config",
            f"{folder / ADAPTER_CONFIG} asks for what is not supported: {', '.join(problems)}",
            help="merge such an adapter into the model's weights (merge_and_unload of PEFT), or train without it",
        )
    rank, alpha = config["r"], config["lora_alpha"]
    path = folder / ADAPTER_WEIGHTS
    if not path.is_file():
        raise UsageError(
            "bad-checkpoint",
            f"{folder} has no {ADAPTER_WEIGHTS}",
            help="adapter_model.bin is a pickle, which may run code: save it again as safetensors",
        )
    tensors = read_tensors(path)
    wrong = [n for n, x in tensors.items() if ".lora_A." in n and len(x) != rank]
    if wrong:
        raise UsageError(
            "bad-checkpoint",
            f"{ADAPTER_CONFIG} says r = {rank}, but {wrong[0]} has the shape {tensors[wrong[0]].shape}",
        )
    return tensors, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _problems(config: Mapping[str, Any]) -> list[str]:
    """The settings that are not supported, with their values."""

    def said(name: str) -> str:
        return f"{name} = {config.get(name)!r}"

    found = [said("peft_type")] if config.get("peft_type") != "LORA" else []
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        found.append(said("r"))
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        found.append(said("lora_alpha"))
    if config.get("init_lora_weights") not in _INITS:
        found.append(f"{said('init_lora_weights')} (the model's own weights were changed)")
    return [*found, *(said(n) for n in sorted({*config} - _IGNORED) if config[n] not in _NEUTRAL)]
