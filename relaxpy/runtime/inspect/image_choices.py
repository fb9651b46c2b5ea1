"""The images of an executable's kernels, and which of them run on this machine.

for image in image_choices(exe):
    print(image.name, image.features, image.lacks, image.chosen)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relaxpy.runtime.host.features import missing_here

if TYPE_CHECKING:
    from relaxpy.runtime.executable import Executable


@dataclass(frozen=True, slots=True)
class ImageChoice:
    """The kernel images of an executable for one kind of hardware."""

    name: str
    """The processor or device that they were built for, e.g. `x86-64-v4`."""
    slot: str
    """The kind of device: `cpu`, …"""
    arch: str
    features: tuple[str, ...]
    """The features that they need."""
    images: int
    """The number of kernels that have an image for it."""
    lacks: tuple[str, ...] | None
    """The needed features that are missing or excluded; None: unknown, because it is for another device than a CPU."""
    chosen: int
    """The number of kernels whose image for it is the one that runs."""

    def __str__(self) -> str:
        kernels = f"{self.images} kernel{'s' * (self.images != 1)}"
        if self.lacks is None:
            verdict = f"chosen by the device ({self.slot})"
        elif self.lacks:
            verdict = f"cannot run here without {', '.join(self.lacks)}"
        elif self.chosen:
            verdict = "runs here"
        else:
            verdict = "could run here; another is preferred"
        return f"{self.name or 'any'}: {kernels}, {verdict}"


def image_choices(exe: Executable, without: Collection[str] = ()) -> tuple[ImageChoice, ...]:
    """The images by requirement, in order of preference. Features in `without` count as missing, as for a
    `VirtualMachine`. Kernels without a requirement are left out."""
    lacks = [
        tuple(dict.fromkeys((*missing_here(each), *(f for f in each.features if f in without))))
        for each in exe.requirements
    ]
    images, chosen = [0] * len(lacks), [0] * len(lacks)
    kinds = ["cpu"] * len(lacks)
    for kernel in exe.kernels:
        kind, free = exe.slots[kernel.slot].kind, True
        for image in kernel.images:
            needs = image.needs
            if needs < 0:
                free = False  # it runs anywhere
                continue
            images[needs] += 1
            kinds[needs] = kind
            if kind == "cpu" and free and not lacks[needs]:
                chosen[needs] += 1
                free = False
    return tuple(
        ImageChoice(
            each.name,
            kinds[n],
            each.arch,
            each.features,
            images[n],
            lacks[n] if kinds[n] == "cpu" else None,
            chosen[n],
        )
        for n, each in enumerate(exe.requirements)
    )
