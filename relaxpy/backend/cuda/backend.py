"""The backend for NVIDIA's GPUs: kind `cuda`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from relaxpy.backend.arrangement import Rule
from relaxpy.backend.cuda.kernel_image import kernel_image
from relaxpy.backend.cuda.library import RULE, cublas_passes
from relaxpy.backend.cuda.target import CUBLAS, KIND, CudaTarget
from relaxpy.backend.gpu.backend import RULES, GpuBackend
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import Image
from relaxpy.tir.tvm import tirx
from relaxpy.transform.phases import Pipeline


class CudaBackend(GpuBackend[CudaTarget]):
    """Compiles kernels as CUDA C, by NVRTC."""

    kinds: ClassVar[tuple[str, ...]] = (KIND,)
    tuned: ClassVar[Path | None] = Path(__file__).with_name("tuned.json")
    rules: ClassVar[tuple[Rule, ...]] = (RULE, *RULES)

    def parse(self, text: str) -> CudaTarget:
        return CudaTarget.read(text)

    def pipeline(self, standard: Pipeline, target: CudaTarget) -> Pipeline:
        """Linear layers keep their weights as (out, in): a few rows read them by vectors along the depth."""
        own = super().pipeline(standard, target).without("transpose-linear")
        return own.after("match", *cublas_passes()) if CUBLAS in target.libraries else own

    def image(
        self, func: tirx.PrimFunc, symbol: str, name: str, target: CudaTarget
    ) -> tuple[Image, tuple[IntExpr, ...]]:
        return kernel_image(func, symbol, name, target)
