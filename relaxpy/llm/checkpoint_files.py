"""Small files that a checkpoint may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.narrow import is_mapping
from relaxpy.runtime.safetensors import read_json


def optional_json(path: Path) -> dict[str, Any]:
    """The fields of a JSON file that a checkpoint may have; none without it. Raises: UsageError (`bad-checkpoint`)."""
    if not path.exists():
        return {}
    fields = read_json(path)
    if not is_mapping(fields):
        raise UsageError("bad-checkpoint", f"{path} has no fields: it is a {type(fields).__name__}")
    return dict(fields)
