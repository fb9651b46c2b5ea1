"""The backend for NVIDIA's GPUs: kind `cuda`."""

from __future__ import annotations

from typing import ClassVar

from relaxpy.backend.cuda.kernel_image import kernel_image
from relaxpy.backend.cuda.target import KIND, CudaTarget
from relaxpy.backend.gpu.backend import GpuBackend
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import Image
from relaxpy.tir.tvm import tirx
from relaxpy.transform.phases import Pipeline


class CudaBackend(GpuBackend[CudaTarget]):
    """Compiles kernels as CUDA C, by NVRTC."""

    kinds: ClassVar[tuple[str, ...]] = (KIND,)

    def parse(self, text: str) -> CudaTarget:
        return CudaTarget.read(text)

    def pipeline(self, standard: Pipeline, target: CudaTarget) -> Pipeline:
        """Linear layers keep their weights as (out, in): a few rows read them by vectors along the depth."""
        return super().pipeline(standard, target).without("transpose-linear")

    def image(
        self, func: tirx.PrimFunc, symbol: str, name: str, target: CudaTarget
    ) -> tuple[Image, tuple[IntExpr, ...]]:
        return kernel_image(func, symbol, name, target)
