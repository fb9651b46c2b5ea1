"""Vulkan devices, through wgpu."""
