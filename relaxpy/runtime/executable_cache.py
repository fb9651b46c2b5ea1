"""Executables on disk under a key of what they are built from, so that a process that finds one loads no compiler.

    <cache>/executables/<key>.rxe       the executable; its section `links` has its functions as they were linked
    <cache>/executables/<key>.json      facts that the builder returned with it, as JSON

`relaxpy.build` has a cache, too: its key is the module, which takes the compiler to make. Here the key is the caller's:
a digest of the module's recipe. Files are written beside their place and moved, and the least recently used ones are
deleted above `RELAXPY_CACHE_SIZE`. No failure of this cache fails a call.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relaxpy.errors import ExecutableError
from relaxpy.files import CACHE_SIZE, cache_size, kept_folder, moved_to, read_regular, trim
from relaxpy.runtime.container import open_container, write_container
from relaxpy.runtime.executable import Executable, load
from relaxpy.runtime.links import load_links
from relaxpy.runtime.vm import VirtualMachine

_NAME = "executables"
_MOST_FACTS = 1 << 30
"""Facts of more bytes are not read."""


def find_executable(key: str, cache: Path | None = None) -> tuple[Executable, Any] | None:
    """The executable that is kept under a key, in this cache in place of the user's, and its facts; None if there is
    none, or one that is damaged or of another version."""
    folder = _folder(cache)
    if folder is None:
        return None
    path, beside = _places(folder, key)
    try:
        facts = json.loads(read_regular(beside, _MOST_FACTS))
        exe = _linked(path) or load(path)
    except (OSError, ValueError, RecursionError, ExecutableError):
        return None
    with contextlib.suppress(OSError):  # another user's
        for each in (path, beside):
            os.utime(each)
    return exe, facts


def kept_or_made(
    key: str | None, make: Callable[[], tuple[Executable, Any]]
) -> tuple[VirtualMachine, Any]:
    """A machine and its facts: those that the user's cache has under a key, else those that are made, which are kept
    from now on. None: nothing is kept."""
    found = find_executable(key) if key is not None else None
    exe, facts = found or make()
    machine = VirtualMachine(exe)
    if found is None and key is not None:
        keep_executable(key, machine, facts)
    return machine, facts


def keep_executable(
    key: str, machine: VirtualMachine, facts: Any, cache: Path | None = None
) -> None:
    """Store the executable of a machine and facts under a key, which names this installation of relaxpy."""
    folder = _folder(cache)
    if folder is None:
        return
    path, beside = _places(folder, key)
    with contextlib.suppress(OSError, ExecutableError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with moved_to(beside) as new:
            new.write_text(json.dumps(facts), encoding="utf-8")
        sections = machine.executable.sections()
        if (links := machine.links()) is not None:
            sections["links"] = links
        with moved_to(path) as new:
            write_container(new, sections)
        trim(folder, cache_size() if cache is None else CACHE_SIZE, path)


def _linked(path: Path) -> Executable | None:
    """The executable with its functions linked; None for one without, or of another user."""
    container = open_container(path)
    if "links" not in container.sections or not _is_own(path):
        return None
    try:
        found = load_links(container.read("links"))
    except Exception:  # pickle's are many
        return None
    if found is None:
        return None
    exe = Executable.from_links(container, *found)
    exe.require_host(str(path))
    return exe


def _is_own(path: Path) -> bool:
    """Has this process's user written the file?"""
    return not hasattr(os, "geteuid") or path.stat().st_uid == os.geteuid()


def _folder(cache: Path | None) -> Path | None:
    return kept_folder(_NAME) if cache is None else cache / _NAME


def _places(folder: Path, key: str) -> tuple[Path, Path]:
    return folder / f"{key}.rxe", folder / f"{key}.json"
