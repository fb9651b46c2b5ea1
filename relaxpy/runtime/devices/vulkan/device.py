"""Vulkan devices. They are those of WebGPU that this machine has through Vulkan; on a Mac, through Metal."""

from __future__ import annotations

from typing import ClassVar

from relaxpy.runtime.devices.webgpu.device import WebGPURuntime


class VulkanRuntime(WebGPURuntime):
    """The runtime of a Vulkan device."""

    kind: ClassVar[str] = "vulkan"
    interfaces: ClassVar[tuple[str, ...]] = ("Vulkan", "Metal")


RUNTIME = VulkanRuntime
