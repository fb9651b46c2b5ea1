"""Compile a launch, with its loops bound to threads, to the image that CUDA devices load."""

from __future__ import annotations

import math

from relaxpy.backend.cuda.compiler import compile_source
from relaxpy.backend.cuda.library import library_call
from relaxpy.backend.cuda.source import cuda_source
from relaxpy.backend.cuda.target import CudaTarget
from relaxpy.backend.gpu.device_kernel import device_kernel
from relaxpy.backend.gpu.launch_args import launch_args
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.kernel_params import launched
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx


def kernel_image(
    func: tirx.PrimFunc, symbol: str, name: str, target: CudaTarget
) -> tuple[Image, tuple[IntExpr, ...]]:
    """The image of a launch for the one architecture of the target, and its launch parameters (`KernelImage.launch`).
    The kernel's name is the symbol that it is launched under; errors call it `name`.

    Raises: BuildError (`kernel-compile`, `cuda-compiler`).
    """
    (arch,) = target.archs
    kernel = device_kernel(func, symbol, target.to_tvm())
    called = launch_args(kernel, PrimFunc(func))
    library, launch = library_call(func, called.launch)
    own = launched(symbol, launch)
    source = cuda_source(kernel.func.with_attr("global_symbol", own), target.to_tvm())
    compiled = compile_source(source, arch, name)
    limits = {"threads": math.prod(kernel.threads)}
    if shared := compiled.resources.get("shared"):
        limits["shared"] = shared
    # A pointer is the address of a tensor's first element.
    args = tuple(arg for arg in called.args if "first" not in arg)
    image = Image(
        own, args, compiled.code,
        limits=limits, format=compiled.format, resources=compiled.resources, library=library,
    )  # fmt: skip
    return image, launch
