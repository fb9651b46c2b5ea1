"""Targets of Metal: `metal [-threads=N] [-max-buffers=N]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relaxpy.backend.gpu.target import GpuTarget

KIND = "metal"
_BUFFERS = 30
"""A kernel has 31 places for buffers, and one of them is for its numbers."""


@dataclass(frozen=True)
class MetalTarget(GpuTarget):
    """Any GPU that macOS has."""

    device: ClassVar[str] = KIND
    default_buffers: ClassVar[int] = _BUFFERS

    kind: str = KIND
    threads: int = GpuTarget.default_threads
    max_buffers: int = _BUFFERS

    @classmethod
    def read(cls, text: str) -> MetalTarget:
        """Raises: BuildError (`target-option`)."""
        return cls(**cls.options(text, cls.default_threads, _BUFFERS))
