"""The backend for WebGPU and Vulkan: kinds `webgpu` and `vulkan`."""

from __future__ import annotations

from typing import ClassVar

from relaxpy.backend.gpu.backend import GpuBackend
from relaxpy.backend.webgpu.kernel_image import kernel_image
from relaxpy.backend.webgpu.target import KINDS, WebGPUTarget
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import Image
from relaxpy.tir.tvm import tirx


class WebGPUBackend(GpuBackend[WebGPUTarget]):
    """Compiles kernels as WGSL."""

    kinds: ClassVar[tuple[str, ...]] = KINDS

    def parse(self, text: str) -> WebGPUTarget:
        return WebGPUTarget.read(text)

    def image(
        self, func: tirx.PrimFunc, symbol: str, name: str, target: WebGPUTarget
    ) -> tuple[Image, tuple[IntExpr, ...]]:
        return kernel_image(func, symbol, name, target)
