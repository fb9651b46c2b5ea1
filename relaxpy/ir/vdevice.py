"""Virtual devices: the entries of a module's device table, and their names.

In the IR a name is complete: target, number and memory scope, `opencl:0:global`. A script may shorten it, or count
entries of the module's table as TVM does: `find` says which device a name means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from relaxpy.errors import UsageError

TABLE = "vdevice"
"""The key of the module's global information that lists its virtual devices, and the target in names of its entries:
`vdevice:1` is entry 1."""

_NAME = re.compile(r"(?P<target>.+?)(?::(?P<number>\d{1,9})(?::(?P<scope>[^:\s]+))?)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class VDevice:
    """A virtual device, part of the module's global information."""

    target: str
    """Name or description of the target, as accepted by `relaxpy.build`."""
    device: int = 0
    memory_scope: str = "global"

    def __str__(self) -> str:
        """Its name in annotations: `llvm:0:global`."""
        return f"{self.target}:{self.device}:{self.memory_scope}"

    @property
    def kind(self) -> str:
        """The kind of its target: `cuda` for `cuda -arch=sm_80`, which may also be written as JSON."""
        if self.target.startswith("{"):
            with suppress(ValueError):
                return str(json.loads(self.target).get("kind", ""))
        return self.target.split(maxsplit=1)[0] if self.target.strip() else ""


@lru_cache(maxsize=256)
def vdevice_of(name: str) -> VDevice:
    """The virtual device with the name `target:number:scope`. Without a number it is 0, without a scope `global`.

    Raises: UsageError (`device-name`).
    """
    found = _NAME.fullmatch(name)
    target = "" if found is None else found["target"].strip()
    options = target.startswith("{") or " " in target  # which may contain colons
    if found is None or not target or (":" in target and not options):
        raise _wrong(f"{name!r} is no name of a virtual device")
    return VDevice(target, int(found["number"] or 0), found["scope"] or "global")


@lru_cache(maxsize=256)
def complete_name(name: str) -> str:
    """The complete form of a name: `opencl` is `opencl:0:global`. Raises: UsageError (`device-name`)."""
    found = vdevice_of(name)
    if found.target == TABLE:
        raise _wrong(f"{name!r} counts the entries of a module's table, which is not known here")
    return str(found)


def find(name: str, table: Sequence[VDevice]) -> VDevice:
    """The virtual device that a name means in a module with this table: the entry with this complete name, else entry
    i for `vdevice:i`, or the i-th entry whose target is of the kind `k` for `k:i`, as in TVM. Other names mean a device
    that the table does not list.

    Raises: UsageError (`device-name`).
    """
    found = vdevice_of(name)
    if found in table:
        return found
    entries = table if found.target == TABLE else [v for v in table if v.kind == found.target]
    if found.device < len(entries):
        return entries[found.device]
    if found.target == TABLE:
        known = ", ".join(map(str, table)) or "none"
        raise _wrong(
            f"there is no virtual device {found.device}: the module lists {known}",
            'I.module_global_infos({"vdevice": [I.vdevice("llvm", 0)]}) lists them',
        )
    return next((entry for entry in entries if entry.device == found.device), found)


def _wrong(message: str, help: str | None = None) -> UsageError:
    form = 'write "kind", "kind:0" or "kind:0:global", e.g. "opencl:0"; "vdevice:0" is the first entry of the table'
    return UsageError("device-name", message, help=help or form)
