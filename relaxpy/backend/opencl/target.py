"""Targets of OpenCL: `opencl [-threads=N] [-max-buffers=N]`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from relaxpy.target import Target, fail, options_of
from relaxpy.tir.tvm import tvm

KIND = "opencl"
_THREADS = 64
"""Default number of threads per group: a multiple of the number that devices run in lockstep."""
_MOST = 256
"""The largest group size that nearly every device supports."""
_BUFFERS = 48
"""Every device accepts 1024 bytes of arguments. A buffer takes 16 of them, including the number of its first element;
the rest is for sizes."""
_FEWEST_BUFFERS = 4


@dataclass(frozen=True)
class OpenCLTarget(Target):
    """Any OpenCL device: kernels are source text, which the device's own compiler compiles when it is loaded."""

    device: ClassVar[str] = KIND

    kind: str = KIND
    threads: int = _THREADS
    """Threads per group."""
    max_buffers: int = _BUFFERS
    """The most buffers per launch."""

    @classmethod
    def read(cls, text: str) -> OpenCLTarget:
        """Raises: BuildError (`target-option`)."""
        options = options_of(text, ("threads", "max-buffers"), "-threads=64")
        given = options.get("threads", str(_THREADS))
        if not given.isdecimal() or not 1 <= int(given) <= _MOST:
            fail("target-option", f"-threads must be a number from 1 to {_MOST}, got {given}")
        buffers = options.get("max-buffers", str(_BUFFERS))
        if not buffers.isdecimal() or int(buffers) < _FEWEST_BUFFERS:
            fail(
                "target-option",
                f"-max-buffers must be at least {_FEWEST_BUFFERS}, got {buffers}",
            )
        return cls(threads=int(given), max_buffers=int(buffers))

    def __str__(self) -> str:
        threads = "" if self.threads == _THREADS else f" -threads={self.threads}"
        buffers = "" if self.max_buffers == _BUFFERS else f" -max-buffers={self.max_buffers}"
        return KIND + threads + buffers

    @property
    def max_buffers_per_launch(self) -> int:
        return self.max_buffers

    @property
    def is_host_loadable(self) -> bool:
        """Source text can be loaded anywhere; whether a device exists is known when a machine is created."""
        return True

    def to_tvm(self) -> tvm.target.Target:
        """The corresponding TVM target."""
        return _tvm_target(self)


@cache
def _tvm_target(target: OpenCLTarget) -> Any:
    return tvm.target.Target({"kind": KIND, "max_num_threads": max(target.threads, _MOST)})
