"""WebGPU and Vulkan: kernels in WGSL, WebGPU's shading language."""
