"""Checkpoints: a directory with `config.json` and `model.safetensors`, read strictly.

A model maps each of its parameters to a tensor of the file (`Source`). A missing, unexpected or mis-shaped tensor is an
error that lists all of them, so that no model runs on wrong weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.checkpoints.config_file import CONFIG_FILE, config_of
from relaxpy.errors import UsageError, wrong_weights
from relaxpy.runtime.safetensors import Decoded, Source, weight_files

_MOST = (1 << 31) - 1
EXTRA_HELP = "pip install 'relaxpy[demo]'"
"""The command that installs safetensors and tokenizers."""


def read_config(directory: Path, model_type: str) -> dict[str, Any]:
    """The fields of `config.json`. UsageError if it cannot be read or its `model_type` is a different one."""
    path = Path(directory) / CONFIG_FILE
    config = config_of(Path(directory)) or {}
    if (found := config.get("model_type")) != model_type:
        raise UsageError(
            "bad-checkpoint",
            f"{path} is for a model of type {found!r}, not {model_type!r}",
        )
    return config


def config_fields(cls: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The items of `fields` that are fields of the dataclass `cls`. UsageError lists missing required fields."""
    known = {field.name: field for field in dataclasses.fields(cls)}
    required = {
        name
        for name, field in known.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - fields.keys()):
        raise UsageError("bad-config", f"the configuration lacks {', '.join(missing)}")
    return {name: fields[name] for name in known if name in fields}


def whole(
    fields: Mapping[str, Any],
    name: str,
    default: int | None = None,
    *,
    least: int = 1,
    most: int = _MOST,
) -> Any:
    """An integer of a configuration, or None where the field is null. Raises: UsageError (`bad-config`)."""
    value = fields.get(name, default)
    is_one = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    if not is_one and value is not None:
        raise UsageError(
            "bad-config", f"{name} must be an integer from {least} to {most}, got {value!r}"
        )
    return value


def positive(fields: Mapping[str, Any], name: str, default: float | None = None) -> Any:
    """A positive number of a configuration, or None where the field is null. Raises: UsageError (`bad-config`)."""
    value = fields.get(name, default)
    is_one = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e38
    if not is_one and value is not None:
        raise UsageError("bad-config", f"{name} must be a positive number, got {value!r}")
    return value


def flag(fields: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """A field that is true or false, the default where it is null. Raises: UsageError (`bad-config`)."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise UsageError("bad-config", f"{name} must be true or false, got {value!r}")
    return default if value is None else value


def read_weights(directory: Path) -> dict[str, np.ndarray]:
    """All tensors of `model.safetensors`, or of the shards in its index, by name. UsageError if a file is missing or
    damaged."""
    tensors: dict[str, np.ndarray] = {}
    for path in weight_files(directory):
        tensors |= read_tensors(path)
    return tensors


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file by name. UsageError if it is damaged."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise UsageError(
            "extra-missing", "reading weights needs the package safetensors", help=EXTRA_HELP
        ) from None
    import ml_dtypes  # noqa: F401 (numpy has bfloat16 once it is imported)

    try:
        with safe_open(path, "numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, TypeError) as error:
        raise UsageError("bad-checkpoint", f"{path} cannot be read: {error}") from None


def safetensors_numpy() -> Any:
    """The module that writes safetensors files. Raises: UsageError without the package."""
    try:
        import safetensors.numpy
    except ImportError:
        raise UsageError(
            "extra-missing", "writing weights needs the package safetensors", help=EXTRA_HELP
        ) from None
    return safetensors.numpy


def gather(
    tensors: Mapping[str, np.ndarray],
    sources: Mapping[str, Source],
    shapes: Mapping[str, tuple[int, ...]],
    unused: Collection[str] = (),
    dtype: str = "float32",
) -> dict[str, np.ndarray]:
    """The parameters of a model, by its own names.

    `sources` maps each parameter to a checkpoint tensor. `shapes` gives the required shape, after transposition.
    `unused` lists the checkpoint names that the model ignores. Floats of other widths are converted to `dtype`. Raises
    UsageError that lists every missing, unexpected and mis-shaped name.
    """
    problems: list[str] = []
    parameters: dict[str, np.ndarray] = {}
    for name, source in sources.items():
        if missing := [each for each in source.names if each not in tensors]:
            expected = "" if source.parts else f" {_expected(source, shapes[name])}"
            problems += [f"missing: {each}{expected}" for each in missing]
            continue
        value = source.joined([tensors[each] for each in source.names])
        if value.shape != shapes[name]:
            found = value.shape if source.parts else tensors[source.name].shape
            problems.append(
                f"wrong shape: {source.name} is {found}, but the configuration requires "
                f"{_expected(source, shapes[name])}"
            )
            continue
        if "float" not in str(value.dtype):
            problems.append(f"wrong dtype: {source.name} is {value.dtype}, not a float")
            continue
        value = value.read() if isinstance(value, Decoded) else value
        parameters[name] = np.ascontiguousarray(value, dtype=dtype)
    taken = {each for source in sources.values() for each in source.names}
    problems += [f"unexpected: {name}" for name in _unknown(tensors, taken, unused)]
    if problems:
        raise wrong_weights("model", problems, f"check that {CONFIG_FILE} belongs to these weights")
    return parameters


def _expected(source: Source, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the checkpoint's tensor, for that of a parameter."""
    found = shape if source.rows is None else (source.rows[2], *shape[1:])
    return (*found[:-2], *found[:-3:-1]) if source.transpose else found


def _unknown(names: Iterable[str], taken: Collection[str], unused: Collection[str]) -> list[str]:
    return [name for name in names if name not in taken and name not in unused]
