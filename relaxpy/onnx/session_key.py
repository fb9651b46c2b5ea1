"""Keys of sessions: a file that was built before is loaded without being read as a model, and without the compiler.

Beside the executable (`relaxpy.runtime.executable_cache`) are the facts that the session says of the model. The key
covers the bytes of the file, the options, the processor, the user's tuned schedules, and this installation of relaxpy.
A model whose weights are in other files has no key, nor have options that are objects: the build itself is in the build
cache still.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaxpy.files import tuning_path
from relaxpy.identity import installation

_PLAIN = frozenset(("target", "bounds", "check_arguments"))
"""Options of `relaxpy.build` that a key can have."""
_EXTERNAL = b"location"
"""A key that each tensor in another file has."""
_NAMING = ("vendor", "cpu family", "model", "flags", "Features", "CPU ")
"""The lines of a processor that say what the compiler knows of it."""


@dataclass(frozen=True)
class KeptSession:
    """The facts by which a session runs, and describes itself."""

    inputs: list[Any]
    defaults: list[Any]
    """Weights that are inputs, too."""
    outputs: list[Any]
    metadata: dict[str, Any]
    order: list[str]
    """The names of the inputs in the order of `main`."""
    draws: bool
    file: str
    """The name of the model in errors."""
    warnings: list[str]


def key_of(data: bytes, options: Mapping[str, Any]) -> str | None:
    """The key of a session of the file with these bytes; None if there is none."""
    if not options.keys() <= _PLAIN or _EXTERNAL in data:
        return None
    target = options.get("target", "llvm")
    own = installation()
    if own is None or not isinstance(target, str) or target.split(" ")[0] != "llvm":
        return None
    try:
        text = json.dumps([sorted(options.items()), _tuned()])
    except TypeError:
        return None
    parts = "session", own, platform.platform(), _processor(), text
    digest = hashlib.sha256("\n".join(parts).encode())
    digest.update(data)
    return digest.hexdigest()


def _processor() -> str:
    """The first processor and its features, where the system has them as text."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    first = lines[: lines.index("")] if "" in lines else lines
    return "\n".join(line for line in first if line.startswith(_NAMING))


def _tuned() -> list[int] | None:
    """Size and time of the user's tuned schedules."""
    path = tuning_path()
    if path is None or not path.is_file():
        return None
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
