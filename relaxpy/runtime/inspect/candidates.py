"""Schedules of kernels that are to be measured elsewhere: an archive of executables, and what is known of them.

`relaxpy tune --emit` writes it (`relaxpy.build.emit`), and `relaxpy.runtime.inspect.measure` runs it beside a device.
An executable has one kernel in one schedule, and for each size two functions: `at0` calls the kernel once, and `many0`
calls it `LAUNCHES` times with arguments of their own, as a graph where the device has graphs.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.runtime.inspect.random_tensors import Weight

ARCHIVE = "candidates.zip"
LAUNCHES = 8
"""Launches of a `many`. Their weights are in different places: eight take more than the caches of most devices hold."""
_PLAN = "plan.json"


@dataclass(frozen=True)
class Site:
    """Arguments that a kernel is measured with."""

    sizes: Mapping[str, int]
    """The values of the program's symbols."""
    inputs: tuple[Weight, ...]
    flops: int
    """Floating-point operations of a launch; 0: unknown."""
    nbytes: int
    """The bytes that it must move; 0: unknown."""


@dataclass(frozen=True)
class Candidates:
    """A kernel and the schedules that are to be measured, the present one first."""

    kernel: str
    family: str
    sites: tuple[Site, ...]
    choices: tuple[Mapping[str, int | str], ...]
    """The settings of knobs of each schedule."""


@dataclass(frozen=True)
class Archive:
    """A folder with the archive."""

    folder: Path
    target: str
    """The target without alternatives that all are compiled for."""
    kernels: tuple[Candidates, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the archive's bytes."""
        return hashlib.sha256((self.folder / ARCHIVE).read_bytes()).hexdigest()

    def executable(self, kernel: int, candidate: int) -> bytes:
        """The executable of a schedule, by the numbers of its kernel and of itself."""
        with zipfile.ZipFile(self.folder / ARCHIVE) as file:
            return file.read(_name(kernel, candidate))

    @classmethod
    def read(cls, folder: Path) -> Archive:
        """The archive of a folder. Raises: UsageError (`tuning-archive`)."""
        path = folder / ARCHIVE
        try:
            with zipfile.ZipFile(path) as file:
                plan: dict[str, Any] = json.loads(file.read(_PLAN))
            kernels = tuple(map(_candidates, plan["kernels"]))
            return cls(folder, str(plan["target"]), kernels)
        except FileNotFoundError:
            reason = "there is no such file"
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            reason = f"it is damaged: {type(error).__name__}: {error}"
        raise UsageError(
            "tuning-archive",
            f"{path} is no archive of schedules: {reason}",
            help="make one with `relaxpy tune --emit FOLDER PROGRAM`",
        )

    def write(self, executables: Sequence[Sequence[bytes]]) -> int:
        """Write the archive, with the executable of each schedule of each kernel. Returns its bytes."""
        path = self.folder / ARCHIVE
        path.parent.mkdir(parents=True, exist_ok=True)
        plan = {"target": self.target, "kernels": [asdict(kernel) for kernel in self.kernels]}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(_entry(_PLAN), json.dumps(plan))
            for kernel, own in enumerate(executables):
                for candidate, data in enumerate(own):
                    file.writestr(_entry(_name(kernel, candidate)), data)
        return path.stat().st_size


def _name(kernel: int, candidate: int) -> str:
    return f"{kernel}/{candidate}.rxe"


def _entry(name: str) -> zipfile.ZipInfo:
    """An entry without the time of day, so that equal archives have equal bytes."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _candidates(data: Mapping[str, Any]) -> Candidates:
    sites = tuple(
        Site(
            {str(name): int(size) for name, size in each["sizes"].items()},
            tuple(Weight(tuple(map(int, w["shape"])), str(w["dtype"]), float(w["scale"])) for w in each["inputs"]),
            int(each["flops"]),
            int(each["nbytes"]),
        )
        for each in data["sites"]
    )  # fmt: skip
    choices = tuple(dict(each) for each in data["choices"])
    return Candidates(str(data["kernel"]), str(data["family"]), sites, choices)
