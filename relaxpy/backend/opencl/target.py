"""Targets of OpenCL: `opencl [-threads=N] [-max-buffers=N]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relaxpy.backend.gpu.target import GpuTarget

KIND = "opencl"
_BUFFERS = 48
"""Every device accepts 1024 bytes of arguments. A buffer takes 16 of them, including the number of its first element;
the rest is for sizes."""


@dataclass(frozen=True)
class OpenCLTarget(GpuTarget):
    """Any OpenCL device."""

    device: ClassVar[str] = KIND
    default_buffers: ClassVar[int] = _BUFFERS
    barriers_in_branches: ClassVar[bool] = False
    """The standard allows it, but some kernels with PoCL 3.1 then stored what is outside of the result, and others did
    not end."""

    kind: str = KIND
    threads: int = GpuTarget.default_threads
    max_buffers: int = _BUFFERS

    @classmethod
    def read(cls, text: str) -> OpenCLTarget:
        """Raises: BuildError (`target-option`)."""
        return cls(**cls.options(text, cls.default_threads, _BUFFERS))
