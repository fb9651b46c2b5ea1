"""The memory of this machine that a process may still take: the smaller of what is free and what its control groups
allow.

This module is a leaf.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MachineMemory:
    """Sizes in bytes."""

    total: int
    """The most that this process could ever have."""
    available: int
    """The most that it can have now."""
    limit: str = "this machine"
    """The origin of the limit: the machine, or a control group."""


def machine_memory(root: str | os.PathLike[str] = "/") -> MachineMemory | None:
    """The memory that this process can have; None if the platform does not tell. `root` is the root of the file system
    whose `proc` and `sys` are read."""
    places = [*_machine(Path(root)), *_groups(Path(root))]
    if not places:
        return None
    least = min(places, key=lambda each: each.available)
    return MachineMemory(min(each.total for each in places), least.available, least.limit)


def _machine(root: Path) -> Iterator[MachineMemory]:
    fields: dict[str, int] = {}
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            fields[name] = int(words[0]) << 10
    if "MemTotal" in fields:
        free = fields.get("MemAvailable", fields.get("MemFree", fields["MemTotal"]))
        yield MachineMemory(fields["MemTotal"], free)
        return
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return
    yield MachineMemory(total, total)


def _groups(root: Path) -> Iterator[MachineMemory]:
    """The control groups of this process, from the innermost to the root, that limit memory (versions 1 and 2)."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        names = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if controllers
            else ("memory.max", "memory.current", "inactive_file")
        )
        # In a container the path may be that of the host: then its own group is mounted at the top.
        place = top / path.lstrip("/")
        for folder in (place, *place.parents) if place.is_dir() else (top,):
            if not folder.is_relative_to(top):
                break
            found = _limit(folder, *names)
            if found is not None:
                yield found


def _limit(folder: Path, limit: str, usage: str, reclaimable: str) -> MachineMemory | None:
    most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
    if not most.isdigit() or not used.isdigit() or int(most) >= 1 << 60:  # "max", or version 1's
        return None
    cached = [
        int(words[1])
        for words in map(str.split, _text(folder / "memory.stat").splitlines())
        if len(words) == 2 and words[0] == reclaimable and words[1].isdigit()
    ]
    free = int(most) - int(used) + sum(cached)
    return MachineMemory(int(most), min(max(free, 0), int(most)), "the limit of a control group")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
