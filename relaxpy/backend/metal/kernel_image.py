"""Compile a launch, with its loops bound to threads, to the image that Metal loads."""

from __future__ import annotations

from relaxpy.backend.gpu.device_kernel import device_kernel, shared_bytes
from relaxpy.backend.gpu.launch_args import launch_args
from relaxpy.backend.gpu.offsets import with_offsets
from relaxpy.backend.metal.source import metal_source
from relaxpy.backend.metal.target import MetalTarget
from relaxpy.errors import BuildError
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.kernel_params import launched
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import element_types

_MOST_SHARED = 32768
"""Bytes of threadgroup memory that every Apple GPU has for a group. A library with a kernel of more compiles, and the
kernel has no pipeline."""


def kernel_image(
    func: tirx.PrimFunc, symbol: str, name: str, target: MetalTarget
) -> tuple[Image, tuple[IntExpr, ...]]:
    """The image of a launch, and its launch parameters (`KernelImage.launch`). The kernel's name is the symbol that it
    is launched under; errors call it `name`.

    Raises: BuildError (`kernel-compile`, `device-dtype`, `group-memory`).
    """
    kernel = device_kernel(func, symbol, target.to_tvm())
    if "float64" in {*kernel.dtypes, *element_types(kernel.func)}:
        raise BuildError(
            "device-dtype",
            f'the kernel "{name}" has values of float64, which Metal cannot represent',
            help='compute in float32, or build for "vulkan", which wgpu runs over Metal on a Mac',
        )
    shared = shared_bytes(kernel.func)
    if shared > _MOST_SHARED:
        raise BuildError(
            "group-memory",
            f'the threads of a group of the kernel "{name}" share {shared} bytes; {_MOST_SHARED} are the most on Metal',
            help="share less memory: smaller tiles, or a narrower dtype",
        )
    called = launch_args(kernel, PrimFunc(func))
    own = launched(symbol, called.launch)
    source = metal_source(
        with_offsets(kernel.func.with_attr("global_symbol", own)), target.to_tvm()
    )
    return Image(own, called.args, source.encode()), called.launch
