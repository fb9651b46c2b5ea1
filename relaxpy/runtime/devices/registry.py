"""The registry of device kinds, and the one `DeviceRuntime` of each device.

A kind is a package beside this file, whose module `device` names its class `RUNTIME`, or an entry point of the group
`relaxpy.devices` in any installed package:

    [project.entry-points."relaxpy.devices"]
    npu = "relaxpy_npu.device:NpuRuntime"
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from relaxpy.errors import UsageError
from relaxpy.runtime.devices.base import DeviceRuntime

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "relaxpy.devices"
_HERE = Path(__file__).parent


@cache
def _built_in() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in _HERE.glob("*/device.py")))


def _found() -> dict[str, EntryPoint]:
    """Kinds of other packages. They do not replace kinds of this package. If two have the same name, the first is
    used."""
    # Its import takes a seventh of that of `relaxpy.runtime`, and few programs need it.
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        if point.name not in _built_in():
            found.setdefault(point.name, point)
    return found


def kinds() -> tuple[str, ...]:
    """The kinds of devices of this installation."""
    return (*_built_in(), *_found())


@cache
def runtime_class(kind: str) -> type[DeviceRuntime]:
    """The class of a kind of device. Raises: UsageError (`device`)."""
    if kind in _built_in():
        module = importlib.import_module(f"{__package__}.{kind}.device")
        built_in: type[DeviceRuntime] = module.RUNTIME
        return built_in
    point = _found().get(kind)
    if point is None:
        raise UsageError(
            "device",
            f"there is no device kind {kind!r}",
            help=f"there are: {', '.join(kinds())}; packages can add others (entry points of {GROUP})",
        )
    try:
        loaded = point.load()
    except Exception as error:
        raise _broken(point, f"{type(error).__name__}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, DeviceRuntime)):
        raise _broken(point, "it is not a DeviceRuntime")
    if loaded.kind != kind:
        raise _broken(point, f"its kind is {loaded.kind!r}")
    return loaded


@cache
def runtime_of(kind: str, index: int) -> DeviceRuntime:
    """The runtime of a device, one object for each device. Raises: UsageError (`device`)."""
    return runtime_class(kind)(index)


def forget() -> None:
    """Clears the cache, so that kinds and devices of packages installed since are found."""
    for each in (_built_in, runtime_class, runtime_of):
        each.cache_clear()


def _broken(point: EntryPoint, reason: str) -> UsageError:
    package = point.dist.name if point.dist is not None else point.value
    return UsageError(
        "device",
        f"the package {package} declares the device kind {point.name!r}, but cannot be used: {reason}",
        help=f"its entry point is {point.value}",
    )
