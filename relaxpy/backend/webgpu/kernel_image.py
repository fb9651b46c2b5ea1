"""Compile a launch, with its loops bound to threads, to the image that WebGPU's devices load."""

from __future__ import annotations

import math

from relaxpy.backend.gpu.device_kernel import device_kernel
from relaxpy.backend.gpu.launch_args import launch_args, size_numbers
from relaxpy.backend.gpu.offsets import with_offsets
from relaxpy.backend.gpu.rounds import rounds_of
from relaxpy.backend.int_expr import int_expr
from relaxpy.backend.webgpu.source import wgsl_source
from relaxpy.backend.webgpu.target import WebGPUTarget
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import Argument, Image
from relaxpy.runtime.kernel_params import launched
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx

_MOST = (1 << 31) - 1
_ROUNDS = (1 << 15) - 1
"""No device stops a thread after so few rounds of loops."""


def kernel_image(
    func: tirx.PrimFunc, symbol: str, name: str, target: WebGPUTarget
) -> tuple[Image, tuple[IntExpr, ...]]:
    """The image of a launch, and its launch parameters (`KernelImage.launch`). The kernel's name is the symbol that it
    is launched under; errors call it `name`.

    Raises: BuildError (`kernel-compile`, `device-dtype`).
    """
    kernel = device_kernel(func, symbol, target.to_tvm())
    program = PrimFunc(func)
    called = launch_args(kernel, program)
    rounds, launch = rounds_of(func), called.launch
    if rounds.value is None or rounds.value > _ROUNDS:
        launch = (*launch, int_expr(rounds, size_numbers(program)))
    own = launched(symbol, launch)
    source = wgsl_source(with_offsets(kernel.func.with_attr("global_symbol", own)), name)
    args: list[Argument] = []
    for arg, is_written, is_narrow in zip(called.args, source.written, source.narrow, strict=True):
        if "memory" in arg:
            args.append({**arg, "access": "read-write" if is_written else "read"})
        elif "size" in arg and is_narrow:
            args.append({**arg, "most": _MOST})
        else:
            args.append(arg)
    limits = {
        "max-storage-buffers-per-shader-stage": sum("memory" in arg for arg in args),
        "max-compute-invocations-per-workgroup": math.prod(kernel.threads),
        "max-compute-workgroup-storage-size": source.shared_bytes,
    }
    limits = {limit: value for limit, value in limits.items() if value}
    counted = len(called.launch) if len(launch) > len(called.launch) else None
    image = Image(own, tuple(args), source.text.encode(), limits=limits, rounds=counted)
    return image, launch
