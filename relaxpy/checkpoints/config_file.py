"""The configuration of a checkpoint, `config.json`, and what to do if there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from relaxpy.checkpoints.ggml import is_ggml, read_ggml
from relaxpy.checkpoints.gguf import is_gguf
from relaxpy.errors import UsageError
from relaxpy.files import open_regular
from relaxpy.narrow import is_mapping
from relaxpy.runtime.safetensors import read_json

CONFIG_FILE = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
_SNAPSHOTS = "snapshots"
"""The folder of a hub's cache that has the versions of a model."""
_MOST_NAMES = 3


def config_of(place: Path) -> dict[str, Any] | None:
    """The fields of `config.json` in a checkpoint's folder, or those of a file of whisper.cpp; None for a GGUF file.

    Raises: UsageError (`bad-checkpoint`) for another file, for a folder without it, and if there is nothing.
    """
    try:
        place.stat()
    except (OSError, ValueError):  # nothing is there, or it cannot be a path
        raise UsageError(
            "bad-checkpoint",
            f"there is no checkpoint at {place}",
            help="give the folder of a checkpoint on this machine, or OWNER/MODEL, a name on the Hugging Face hub",
        ) from None
    if not place.is_dir():
        if place.suffix == ".gguf" or is_gguf(place):
            return None
        if is_ggml(place):
            return read_ggml(place).config()
        if _is_pickle(place):
            raise UsageError(
                "bad-checkpoint",
                f"{place} is a pickle of torch: a program, which is not run",
                help="take the model as safetensors (openai/whisper-tiny, say) or as whisper.cpp's ggml-tiny.bin; "
                "transformers converts it: python -m transformers.models.whisper.convert_openai_to_hf",
            )
        folder = place.parent if (place.parent / CONFIG_FILE).is_file() else None
        raise UsageError(
            "bad-checkpoint",
            f"{place} is neither a folder with {CONFIG_FILE} nor a GGUF file, nor one of whisper.cpp",
            help=f"use the folder, {folder}"
            if folder
            else f"use the folder that {CONFIG_FILE} is in",
        )
    return read_fields(place / CONFIG_FILE, "a checkpoint")


def _is_pickle(path: Path) -> bool:
    """Does a file begin as torch writes them: a zip file, or a pickle?"""
    try:
        with open_regular(path) as file:
            return file.read(4).startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04"))
    except OSError:
        return False


def read_fields(path: Path, kind: str) -> dict[str, Any]:
    """The fields of the JSON file that every folder of this kind has. Raises: UsageError (`bad-checkpoint`)."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            "bad-checkpoint",
            f"{path.parent} is not {kind}: it has no {path.name}",
            help=_instead(path),
        ) from None
    except OSError:
        pass  # told below
    fields = read_json(path)
    if not is_mapping(fields):
        raise UsageError("bad-checkpoint", f"{path} has no fields: it is a {type(fields).__name__}")
    return dict(cast("dict[str, Any]", fields))


def _instead(path: Path) -> str:
    """A place to use instead: the model of an adapter, a folder inside that has the file, or a GGUF file."""
    folder = path.parent
    if path.name == CONFIG_FILE and (folder / ADAPTER_CONFIG).is_file():
        return f"it is an adapter ({ADAPTER_CONFIG}), a part: give the folder of the model that it is for"
    inside = [*_sorted(folder), *_sorted(folder / _SNAPSHOTS)]
    found = [each for each in inside if (each / path.name).is_file() or each.suffix == ".gguf"]
    if not found:
        return f"use the folder that {path.name} is in"
    more = " …" if len(found) > _MOST_NAMES else ""
    return f"use {', '.join(map(str, found[:_MOST_NAMES]))}{more}"


def _sorted(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
