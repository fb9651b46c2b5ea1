"""Checkpoints: a directory with `config.json` and `model.safetensors`, read strictly.

A model says which tensor of the file each of its parameters is (`Source`); a missing, unexpected or mis-shaped name is
an error that lists all of them, not a model that runs on noise.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.errors import UsageError

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
EXTRA_HELP = "pip install 'relaxpy[demo]'"
"""What brings safetensors and tokenizers."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter comes from: a tensor of the checkpoint, perhaps transposed once, at load."""

    name: str
    transpose: bool = False


def read_config(directory: Path, model_type: str) -> dict[str, Any]:
    """The fields of `config.json`. UsageError if it cannot be read or is of another kind of model."""
    path = Path(directory) / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            "bad-checkpoint",
            f"{directory} is no checkpoint: it has no {CONFIG_FILE}",
            help=f"give a directory with {CONFIG_FILE}, {WEIGHTS_FILE} and tokenizer.json",
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError("bad-checkpoint", f"{path} is not JSON: {error}") from None
    found = config.get("model_type") if isinstance(config, dict) else None
    if found != model_type:
        raise UsageError(
            "bad-checkpoint",
            f"{path} describes a model of type {found!r}; this one reads {model_type!r}",
        )
    return config


def config_fields(cls: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `fields` that the dataclass `cls` has. UsageError that lists what it needs besides."""
    known = {field.name: field for field in dataclasses.fields(cls)}
    required = {
        name
        for name, field in known.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - fields.keys()):
        raise UsageError("bad-config", f"the configuration lacks {', '.join(missing)}")
    return {name: fields[name] for name in known if name in fields}


def read_weights(directory: Path) -> dict[str, np.ndarray]:
    """Every tensor of `model.safetensors`, or of the files that its index lists, by name. UsageError if one is missing
    or damaged."""
    tensors: dict[str, np.ndarray] = {}
    for path in _weight_files(Path(directory)):
        tensors |= _read_file(path)
    return tensors


def _weight_files(directory: Path) -> list[Path]:
    """The one file, or those of a large checkpoint."""
    whole, index = directory / WEIGHTS_FILE, directory / f"{WEIGHTS_FILE}.index.json"
    if whole.is_file():
        return [whole]
    if not index.is_file():
        raise UsageError("bad-checkpoint", f"{directory} has no {WEIGHTS_FILE}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            "bad-checkpoint", f"{index} does not say where tensors are: {error}"
        ) from None
    if missing := [name for name in names if not (directory / name).is_file()]:
        raise UsageError("bad-checkpoint", f"{directory} lacks {', '.join(missing)}")
    return [directory / name for name in names]


def _read_file(path: Path) -> dict[str, np.ndarray]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise UsageError(
            "extra-missing", "reading weights needs the package safetensors", help=EXTRA_HELP
        ) from None
    try:
        with safe_open(path, "numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, TypeError) as error:
        raise UsageError("bad-checkpoint", f"{path} cannot be read: {error}") from None


def gather(
    tensors: Mapping[str, np.ndarray],
    sources: Mapping[str, Source],
    shapes: Mapping[str, tuple[int, ...]],
    unused: Collection[str] = (),
    dtype: str = "float32",
) -> dict[str, np.ndarray]:
    """The parameters of a model, by our names.

    `sources` says where each parameter is, `shapes` what shape it must have (after transposition), `unused` which
    names of the checkpoint this model knowingly leaves alone. Floats of other widths are converted to `dtype`.
    Raises UsageError that lists every missing, unexpected and mis-shaped name.
    """
    problems: list[str] = []
    parameters: dict[str, np.ndarray] = {}
    for name, source in sources.items():
        tensor = tensors.get(source.name)
        if tensor is None:
            problems.append(f"missing: {source.name} {_expected(source, shapes[name])}")
            continue
        value = tensor.T if source.transpose else tensor
        if value.shape != shapes[name]:
            expected = _expected(source, shapes[name])
            problems.append(
                f"wrong shape: {source.name} is {tensor.shape}, the configuration says {expected}"
            )
            continue
        if "float" not in value.dtype.name:
            problems.append(f"wrong dtype: {source.name} is {value.dtype}, not a float")
            continue
        parameters[name] = np.ascontiguousarray(value, dtype=dtype)
    taken = {source.name for source in sources.values()}
    problems += [f"unexpected: {name}" for name in _unknown(tensors, taken, unused)]
    if problems:
        raise UsageError(
            "bad-weights",
            f"the weights do not fit the model: {len(problems)} names",
            notes=[
                *problems[:12],
                *([f"... and {len(problems) - 12} more"] if len(problems) > 12 else []),
            ],
            help=f"check that {CONFIG_FILE} belongs to these weights",
        )
    return parameters


def _expected(source: Source, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[::-1] if source.transpose else shape


def _unknown(names: Iterable[str], taken: Collection[str], unused: Collection[str]) -> list[str]:
    return [name for name in names if name not in taken and name not in unused]
