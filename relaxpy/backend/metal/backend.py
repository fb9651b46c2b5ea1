"""The backend for Metal: kind `metal`."""

from __future__ import annotations

from typing import ClassVar

from relaxpy.backend.gpu.backend import GpuBackend
from relaxpy.backend.metal.kernel_image import kernel_image
from relaxpy.backend.metal.target import KIND, MetalTarget
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import Image
from relaxpy.tir.tvm import tirx


class MetalBackend(GpuBackend[MetalTarget]):
    """Compiles kernels as Metal's shading language."""

    kinds: ClassVar[tuple[str, ...]] = (KIND,)

    def parse(self, text: str) -> MetalTarget:
        return MetalTarget.read(text)

    def image(
        self, func: tirx.PrimFunc, symbol: str, name: str, target: MetalTarget
    ) -> tuple[Image, tuple[IntExpr, ...]]:
        return kernel_image(func, symbol, name, target)
