"""The backend for OpenCL: kind `opencl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from relaxpy.analysis.index_checks import is_checked, name_of
from relaxpy.backend.base import Backend, CompileOptions, KernelImages
from relaxpy.backend.gpu.launches import launches_of
from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.backend.knobs import Choices
from relaxpy.backend.opencl.kernel_image import kernel_image
from relaxpy.backend.opencl.target import KIND, OpenCLTarget
from relaxpy.backend.schedule import ScheduledKernel
from relaxpy.errors import BuildError, RelaxError
from relaxpy.runtime.bytecode import KernelImage
from relaxpy.tir.lowering.workspace import Launches
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.schedule import asserts
from relaxpy.tir.tvm import tirx


class OpenCLBackend(Backend[OpenCLTarget]):
    """Compiles one launch for each loop nest of a program, with one thread per element."""

    kinds: ClassVar[tuple[str, ...]] = (KIND,)

    def parse(self, text: str) -> OpenCLTarget:
        return OpenCLTarget.read(text)

    def schedule(
        self, func: tirx.PrimFunc, target: OpenCLTarget, choices: Choices
    ) -> ScheduledKernel:
        if is_checked(func) or asserts(func):
            name = f' "{name_of(func)}"' if is_checked(func) else ""
            raise BuildError(
                "device-assert",
                f"the tensor program{name} may raise an error at run time, which kernels of {target} cannot",
                help="clamp its indices to their range: T.max(T.min(i, n - 1), 0)",
            )
        bound = bind_threads(func, target.threads)
        return ScheduledKernel(bound, bound, "threads")

    def launches(self, program: PrimFunc, target: OpenCLTarget) -> Launches | None:
        return launches_of(program)

    def compile(
        self,
        kernels: Mapping[str, ScheduledKernel],
        target: OpenCLTarget,
        options: CompileOptions,
        called: str = "",
    ) -> KernelImages:
        objects: list[bytes] = []
        images: dict[str, KernelImage] = {}
        for symbol, scheduled in kernels.items():
            try:
                image, launch = kernel_image(scheduled.parallel, symbol, target)
            except RelaxError:
                raise
            except Exception as error:
                raise _refused(error, called or symbol, target, scheduled.parallel) from error
            own = image.kernel
            images[symbol] = KernelImage(own, own, len(objects), launch=launch)
            objects.append(image.encode())
        return KernelImages(tuple(objects), images)


def _refused(error: Exception, name: str, target: OpenCLTarget, func: tirx.PrimFunc) -> BuildError:
    """The error for a program that TVM refuses, from the last informative line of its message, which is preceded by a
    C++ trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[-1] if lines else type(error).__name__
    return BuildError(
        "kernel-compile",
        f'the kernel "{name}" does not compile for {target}: {reason}',
        notes=(f"the tensor program:\n{func.script()}",),
    )
