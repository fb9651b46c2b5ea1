"""Low-rank adapters as PEFT writes them: a folder with `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.checkpoints.config_file import ADAPTER_CONFIG, read_fields
from relaxpy.errors import UsageError
from relaxpy.files import replacing, write_text
from relaxpy.models.checkpoint import read_tensors, safetensors_numpy

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


def save_adapter(
    directory: str | Path,
    tensors: Mapping[str, np.ndarray],
    *,
    rank: int,
    alpha: float,
    target_modules: Sequence[str],
    base: str = "",
    fan_in_fan_out: bool = False,
) -> None:
    """Write an adapter as PEFT does: tensors by PEFT's names (`LoraDecoder.tensors`), and what they are adapters of.
    `base` names the checkpoint, and `fan_in_fan_out` says that it has weights as (in, out), as GPT-2's. Raises:
    UsageError without the package safetensors."""
    safetensors = safetensors_numpy()
    config = {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": fan_in_fan_out,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": sorted(target_modules),
        "task_type": "CAUSAL_LM",
    }
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: np.ascontiguousarray(each) for name, each in tensors.items()}
    with replacing(folder / ADAPTER_WEIGHTS) as beside:
        safetensors.save_file(contiguous, beside, {"format": "pt"})
    write_text(folder / ADAPTER_CONFIG, json.dumps(config, indent=2) + "\n")


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
