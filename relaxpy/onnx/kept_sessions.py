"""Sessions in the build cache: a file that was built before is loaded without being read as a model, and without the
compiler.

An entry is the executable and what the session says of the model. Its key covers the bytes of the file, the options,
the processor, the user's tuned schedules, and this installation of relaxpy. A model whose weights are in other files
has no key, nor have options that are objects: the build itself is in the cache still.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from relaxpy.build_cache import BuildCache
from relaxpy.files import tuning_path
from relaxpy.identity import installation
from relaxpy.ir.garbage import garbage_kept
from relaxpy.runtime.container import MemoryContainer
from relaxpy.runtime.executable import Executable

_FACTS = "session"
"""The section of an entry that is not one of the executable's."""
_PLAIN = frozenset(("target", "bounds", "check_arguments"))
"""Options of `relaxpy.build` that a key can have."""
_EXTERNAL = b"location"
"""A key that each tensor in another file has."""
_NAMING = ("vendor", "cpu family", "model", "flags", "Features", "CPU ")
"""The lines of a processor that say what the compiler knows of it."""
_SHARE = 0.5
"""The largest fraction of the cache for one session."""


@dataclass(frozen=True)
class KeptSession:
    """What a session needs to run, and to describe itself."""

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


def key_of(data: bytes, options: Mapping[str, Any]) -> bytes | None:
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
    return digest.digest()


def find(cache: BuildCache, key: bytes) -> tuple[KeptSession, Executable] | None:
    """The session of this key, and its executable."""
    entry = cache.get(key)
    if entry is None:
        return None
    container = MemoryContainer.of(entry)
    facts = KeptSession(**json.loads(container.read(_FACTS)))
    with garbage_kept():
        return facts, Executable.from_sections(container)


def keep(cache: BuildCache, key: bytes, session: KeptSession, exe: Executable) -> None:
    """Store a session, unless it would take too large a part of the cache."""
    facts = json.dumps(asdict(session)).encode()
    pieces = MemoryContainer.pieces({**exe.sections(), _FACTS: facts})
    if sum(map(len, pieces)) <= cache.max_bytes * _SHARE and cache.put(key, *pieces):
        cache.trim()


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
