"""Compile a launch, with its loops bound to threads, to the image that OpenCL devices load."""

from __future__ import annotations

import re

from relaxpy.backend.gpu.device_kernel import device_kernel
from relaxpy.backend.gpu.launch_args import launch_args
from relaxpy.backend.gpu.offsets import with_offsets
from relaxpy.backend.opencl.source import opencl_source
from relaxpy.backend.opencl.target import OpenCLTarget
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.kernel_params import launched
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx

_EXTENSION = re.compile(r"#pragma OPENCL EXTENSION (cl_khr_\w+)")


def kernel_image(
    func: tirx.PrimFunc, symbol: str, target: OpenCLTarget
) -> tuple[Image, tuple[IntExpr, ...]]:
    """The image of a launch, and its launch parameters (`KernelImage.launch`). The kernel's name is the symbol that it
    is launched under.

    Raises: BuildError (`kernel-compile`).
    """
    kernel = device_kernel(func, symbol, target.to_tvm())
    called = launch_args(kernel, PrimFunc(func))
    name = launched(symbol, called.launch)
    func = kernel.func.with_attr("global_symbol", name)
    source = opencl_source(with_offsets(func), target.to_tvm())
    extensions = tuple(dict.fromkeys(_EXTENSION.findall(source)))
    return Image(name, called.args, source.encode(), extensions), called.launch
