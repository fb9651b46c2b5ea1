"""The arguments of a device kernel as an image describes them, and the numbers of its launch."""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.backend.gpu.device_kernel import DeviceKernel, Given
from relaxpy.backend.int_expr import int_expr
from relaxpy.ir.dim import Dim
from relaxpy.ir.module import BufferParam
from relaxpy.runtime.bytecode import IntExpr
from relaxpy.runtime.devices.image import Argument
from relaxpy.runtime.dtype import info
from relaxpy.tir.prim_func import PrimFunc


@dataclass(frozen=True)
class LaunchArgs:
    """How a kernel is called."""

    args: tuple[Argument, ...]
    """One for each parameter of the device function, then one for each buffer's first element
    (`relaxpy.backend.gpu.offsets`)."""
    launch: tuple[IntExpr, ...]
    """Groups of threads and threads of a group along three axes, and the sizes that the arguments refer to
    (`KernelImage.launch`)."""


def launch_args(kernel: DeviceKernel, program: PrimFunc) -> LaunchArgs:
    """The arguments of a kernel that was made from a program."""
    numbers = size_numbers(program)
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
    return LaunchArgs((*args, *offsets), tuple(launch))


def size_numbers(program: PrimFunc) -> dict[Dim, int]:
    """The kernel's size parameters: the program's variables, in the order of their first use in its parameters."""
    numbers: dict[Dim, int] = {}
    for param in program.params:
        dims = param.shape if isinstance(param, BufferParam) else (param.var.dim,)
        for var in (var for dim in dims for var in dim.vars):
            numbers.setdefault(var.dim, len(numbers))
    return numbers
