"""The backend for OpenCL: kind `opencl`."""

from __future__ import annotations

from typing import ClassVar

from relaxpy.backend.gpu.backend import GpuBackend
from relaxpy.backend.opencl.kernel_image import kernel_image
from relaxpy.backend.opencl.target import KIND, OpenCLTarget
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import Image
from relaxpy.tir.tvm import tirx


class OpenCLBackend(GpuBackend[OpenCLTarget]):
    """Compiles kernels as OpenCL C."""

    kinds: ClassVar[tuple[str, ...]] = (KIND,)

    def parse(self, text: str) -> OpenCLTarget:
        return OpenCLTarget.read(text)

    def image(
        self, func: tirx.PrimFunc, symbol: str, name: str, target: OpenCLTarget
    ) -> tuple[Image, tuple[IntExpr, ...]]:
        return kernel_image(func, symbol, target)
