"""The backend for NVIDIA's GPUs: kind `cuda`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from relaxpy.backend.arrangement import Rule
from relaxpy.backend.cuda.cublas import CUBLAS_RULE, cublas_patterns
from relaxpy.backend.cuda.cudnn import CUDNN_RULE, cudnn_patterns
from relaxpy.backend.cuda.kernel_image import kernel_image
from relaxpy.backend.cuda.target import CUBLAS, CUDNN, KIND, CudaTarget
from relaxpy.backend.gpu.backend import RULES, GpuBackend
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import Image
from relaxpy.tir.tvm import tirx
from relaxpy.transform.base import Pass
from relaxpy.transform.convert_to_dataflow import ConvertToDataflow
from relaxpy.transform.fuse_ops_by_pattern import FuseOpsByPattern
from relaxpy.transform.phases import Pipeline

_PATTERNS = {CUBLAS: cublas_patterns, CUDNN: cudnn_patterns}


def library_passes(target: CudaTarget) -> tuple[Pass, ...]:
    """The passes that mark what the target's libraries compute. An operator by itself is a block, too."""
    patterns = [pattern for library in target.libraries for pattern in _PATTERNS[library]()]
    return (ConvertToDataflow(min_size=1), FuseOpsByPattern(tuple(patterns))) if patterns else ()


class CudaBackend(GpuBackend[CudaTarget]):
    """Compiles kernels as CUDA C, by NVRTC."""

    kinds: ClassVar[tuple[str, ...]] = (KIND,)
    tuned: ClassVar[Path | None] = Path(__file__).with_name("tuned.json")
    rules: ClassVar[tuple[Rule, ...]] = (CUBLAS_RULE, CUDNN_RULE, *RULES)

    def parse(self, text: str) -> CudaTarget:
        return CudaTarget.read(text)

    def pipeline(self, standard: Pipeline, target: CudaTarget) -> Pipeline:
        """Linear layers keep their weights as (out, in): a few rows read them by vectors along the depth."""
        own = super().pipeline(standard, target).without("transpose-linear")
        return own.after("match", *library_passes(target))

    def image(
        self, func: tirx.PrimFunc, symbol: str, name: str, target: CudaTarget
    ) -> tuple[Image, tuple[IntExpr, ...]]:
        return kernel_image(func, symbol, name, target)
