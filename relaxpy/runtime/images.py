"""Selects the image of each kernel: the first one whose requirement the device of its slot meets.

A build for several CPUs compiles each kernel for each of them (`relaxpy.target.Target.alternatives`). The images of a
kernel are in order of preference. The choice is made once, when an executable is linked, and costs nothing at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from relaxpy.errors import ExecutableError
from relaxpy.runtime.terms import KernelInfo, Requirement, Slot

Missing: TypeAlias = Callable[[Requirement], Sequence[str]]
"""The parts of a requirement that a device does not meet (`relaxpy.runtime.devices.base.DeviceRuntime.missing`)."""

NOTHING = Requirement("")


def choose_images(
    kernels: Sequence[KernelInfo],
    requirements: Sequence[Requirement],
    slots: Sequence[Slot],
    missing: Mapping[int, Missing],
    without: Collection[str] = (),
    file: str = "",
) -> tuple[KernelInfo, ...]:
    """The kernels, each with the image that runs. `missing` has a function for the device of each slot; kernels of
    other slots keep all their images. Features in `without` count as missing. Errors name `file`.

    Raises: ExecutableError: `cpu-features`, `device-features` where a device meets no requirement of a kernel's images.
    """
    lacks: dict[tuple[int, int], tuple[str, ...]] = {}

    def needed(needs: int) -> Requirement:
        return requirements[needs] if needs >= 0 else NOTHING

    def lack(slot: int, needs: int) -> tuple[str, ...]:
        key = slot, needs
        if key not in lacks:
            requirement = needed(needs)
            refused = [each for each in requirement.features if each in without]
            lacks[key] = tuple(dict.fromkeys((*missing[slot](requirement), *refused)))
        return lacks[key]

    found: list[KernelInfo] = []
    for info in kernels:
        if info.slot not in missing:
            found.append(info)
            continue
        image = next((each for each in info.images if not lack(info.slot, each.needs)), None)
        if image is None:
            kinds = dict.fromkeys(image.needs for image in info.images)
            wanted = [(needed(each), lack(info.slot, each)) for each in kinds]
            raise _none_fits(slots[info.slot], wanted, file, without)
        found.append(info if len(info.images) == 1 else replace(info, images=(image,)))
    return tuple(found)


def _none_fits(
    slot: Slot,
    wanted: Sequence[tuple[Requirement, tuple[str, ...]]],
    file: str,
    without: Collection[str],
) -> ExecutableError:
    where = f"{file}: " if file else ""
    is_cpu = slot.kind == "cpu"
    code = "cpu-features" if is_cpu else "device-features"
    help = f'build for this machine: target="{"llvm" if is_cpu else slot.kind}"'
    if is_cpu:
        help += ', or for several: target="llvm -mcpu=x86-64-v2,x86-64-v3,x86-64-v4"'
    if len(wanted) == 1:
        lacked = _some(wanted[0][1])
        what = (
            "CPU features that this machine lacks" if is_cpu else "features that the device lacks"
        )
        if any(feature in without for feature in wanted[0][1]):
            what += " or that are left out"
        return ExecutableError(code, f"{where}the kernels need {what}: {lacked}", help=help)
    what = "this machine" if is_cpu else f"the device of the slot {slot.name!r}"
    names = _some([needs.name or needs.arch or "any" for needs, _ in wanted])
    notes = [
        f"{needs.name or 'one'} needs {_some([*filter(None, (needs.arch, *needs.features))])}; "
        f"not there: {_some(lacked)}"
        for needs, lacked in wanted[:MOST_SHOWN]
    ]
    message = f"{where}the kernels have images for {names}, and {what} runs none of them"
    return ExecutableError(code, message, notes=notes, help=help)


MOST_SHOWN = 32
"""The number of names that a message lists."""


def _some(names: Sequence[str]) -> str:
    """The names, or the first ones and the number of the others."""
    shown = ", ".join(names[:MOST_SHOWN])
    return shown if len(names) <= MOST_SHOWN else f"{shown} and {len(names) - MOST_SHOWN} more"
