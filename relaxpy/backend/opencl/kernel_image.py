"""Compile a launch, with its loops bound to threads, to the image that OpenCL devices load."""

from __future__ import annotations

import re

from relaxpy.backend.gpu.device_kernel import Given, device_kernel
from relaxpy.backend.gpu.offsets import with_offsets
from relaxpy.backend.int_expr import int_expr
from relaxpy.backend.opencl.source import opencl_source
from relaxpy.backend.opencl.target import OpenCLTarget
from relaxpy.ir.dim import Dim
from relaxpy.ir.module import BufferParam
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.opencl.image import Argument, Image
from relaxpy.runtime.dtype import info
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
    numbers = size_numbers(PrimFunc(func))
    launch = [*(int_expr(count, numbers) for count in kernel.groups), *kernel.threads]
    args: list[Argument] = []
    offsets: list[Argument] = []
    for arg, dtype in zip(kernel.args, kernel.dtypes, strict=True):
        if not isinstance(arg, Given):
            args.append({"size": len(launch), "dtype": dtype})
            launch.append(int_expr(arg, numbers))
        elif arg.is_memory:
            args.append({"memory": arg.position})
            offsets.append({"first": arg.position, "itemsize": info(dtype).itemsize})
        else:
            args.append({"scalar": arg.position, "dtype": dtype})
    name = launched(symbol, launch)
    func = kernel.func.with_attr("global_symbol", name)
    source = opencl_source(with_offsets(func), target.to_tvm())
    extensions = tuple(dict.fromkeys(_EXTENSION.findall(source)))
    return Image(name, (*args, *offsets), source, extensions), tuple(launch)


def size_numbers(program: PrimFunc) -> dict[Dim, int]:
    """The kernel's size parameters: the program's variables, in the order of their first use in its parameters."""
    numbers: dict[Dim, int] = {}
    for param in program.params:
        dims = param.shape if isinstance(param, BufferParam) else (param.var.dim,)
        for var in (var for dim in dims for var in dim.vars):
            numbers.setdefault(var.dim, len(numbers))
    return numbers
