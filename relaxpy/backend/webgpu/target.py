"""Targets of WGSL: `webgpu [-threads=N] [-max-buffers=N]`, and `vulkan` with the same options."""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.backend.gpu.target import GpuTarget
from relaxpy.target import first_word

KINDS = ("webgpu", "vulkan")
_BUFFERS = {"webgpu": 8, "vulkan": 16}
"""The most buffers of a launch (`maxStorageBuffersPerShaderStage`): what WebGPU guarantees, and what drivers of GPUs
for Vulkan and Metal have at least."""


@dataclass(frozen=True)
class WebGPUTarget(GpuTarget):
    """A device of WebGPU (a browser's, or a GPU of this machine), with the limits that the standard guarantees. As
    `vulkan` it is a GPU of this machine through Vulkan."""

    kind: str = "webgpu"
    threads: int = GpuTarget.default_threads
    max_buffers: int = _BUFFERS["webgpu"]

    @classmethod
    def read(cls, text: str) -> WebGPUTarget:
        """Raises: BuildError (`target-option`)."""
        kind = first_word(text)
        return cls(kind=kind, **cls.options(text, cls.default_threads, _BUFFERS[kind]))

    @property
    def default_buffers(self) -> int:  # type: ignore[override]
        return _BUFFERS[self.kind]

    @property
    def device(self) -> str:  # type: ignore[override]
        return self.kind

    @property
    def lowered_for(self) -> str:
        return "webgpu"
