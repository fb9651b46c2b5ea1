"""Whether there is a Vulkan device for tests."""

from __future__ import annotations

import pytest


def no_device() -> str:
    """Why tests on a device are skipped, or ""."""
    try:
        import wgpu  # noqa: F401
    except ImportError:
        return "wgpu is not installed: pip install 'relaxpy[wgpu]'"
    from relaxpy.runtime.devices.vulkan.device import VulkanRuntime

    driver = "there is no Vulkan device: apt install mesa-vulkan-drivers"
    return "" if VulkanRuntime.devices() else driver


needs_vulkan = pytest.mark.skipif(bool(no_device()), reason=no_device())
