"""Kernels of CUDA images: modules, and what a kernel asks of a device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relaxpy.errors import ExecutableError
from relaxpy.runtime.devices.cuda.cublas import CublasLt
from relaxpy.runtime.devices.cuda.cudnn import Cudnn
from relaxpy.runtime.devices.cuda.driver import Context, CudaError, ask, version_text
from relaxpy.runtime.devices.cuda.launch import layout, offsets
from relaxpy.runtime.devices.cuda.library import Library, LibraryKernel, library_for
from relaxpy.runtime.devices.image import GRID, Image

if TYPE_CHECKING:
    from relaxpy.runtime.bytecode import KernelInfo

_LOG = 4096
"""Bytes of a log of the driver's compiler."""
_DESCRIBES_PARAMETERS = 12040
"""The first driver that tells a kernel's parameters."""
_LIBRARIES = (CublasLt, Cudnn)
Limits = Mapping[str, int]
"""A device's limits, by the names of `LIMITS`."""
LIMITS = {
    "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
    "max_shared_memory_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "max_grid_dim_x": "MAX_GRID_DIM_X",
    "max_grid_dim_y": "MAX_GRID_DIM_Y",
    "max_grid_dim_z": "MAX_GRID_DIM_Z",
}
"""The limits that decide what runs, and the driver's names of them."""


class _Module:
    """Code in a context."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, context: Context, handle: Any) -> None:
        self.handle = handle
        context.finally_do(self, context.cu.cuModuleUnload, handle)


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel in a module."""

    name: str
    module: _Module
    function: Any
    image: Image
    limits: Limits
    """Of the device."""
    most_threads: int
    """The most threads of a block with which the kernel runs: its registers are the device's."""
    library: LibraryKernel | None = None
    """The library call that runs in its place where there is much to do."""

    def misfit(self, numbers: Sequence[int]) -> str:
        """Which numbers of a launch the device does not take, or ""."""
        limits = self.limits
        most = [limits[f"max_grid_dim_{axis}"] for axis in "xyz"]
        grid, threads = numbers[:3], math.prod(numbers[3:GRID])
        if any(not 0 <= size <= limit for size, limit in zip(grid, most, strict=True)):
            sizes, largest = (" × ".join(map(str, each)) for each in (grid, most))
            return f"its grid of {sizes} blocks is larger than {largest}"
        if threads > self.most_threads:
            return f"its blocks have {threads} threads, and it runs with {self.most_threads}"
        return ""


def load_kernels(
    context: Context,
    name: str,
    limits: Limits,
    version: int,
    objects: Sequence[bytes],
    kernels: Sequence[KernelInfo],
) -> list[LoadedKernel]:
    """Loads kernels into the current context, each code once. `name` is the device's, `version` the driver's.

    Raises: ExecutableError (`object-code`, `device-features`).
    """
    loader = _Loader(context, name, limits, version)
    images = [(info, Image.of(info, objects, "a CUDA")) for info in kernels]
    for info, image in images:  # before anything is loaded
        loader.require(info, image)
    return [loader.load(info, image) for info, image in images]


class _Loader:
    def __init__(self, context: Context, name: str, limits: Limits, version: int) -> None:
        self._context = context
        self._cu = context.cu
        self._name = name
        self._limits = limits
        self._version = version
        self._modules: dict[bytes, _Module] = {}
        self._libraries: dict[str, Library] = {}

    def require(self, info: KernelInfo, image: Image) -> None:
        """Compares what a kernel needs with the device."""
        if image.format not in ("cubin", "ptx"):
            raise ExecutableError(
                "object-code",
                f"the kernel {info.name!r} is {image.format}, and CUDA loads cubin and PTX",
            )
        try:
            layout(image.args)
        except ValueError as error:
            raise ExecutableError("object-code", f"the kernel {info.name!r}: {error}") from error
        shared = image.limits.get("shared", 0) + image.limits.get("dynamic-shared", 0)
        self._within(info, "bytes of shared memory", shared, "max_shared_memory_per_block")
        threads = image.limits.get("threads", 0)
        self._within(info, "threads of a block", threads, "max_threads_per_block")

    def _within(self, info: KernelInfo, what: str, need: int, limit: str) -> None:
        if need > self._limits[limit]:
            raise ExecutableError(
                "device-features",
                f"the kernel {info.name!r} needs {need} {what}; {self._name} has {self._limits[limit]}",
                help='build for this machine: target="cuda"',
            )

    def load(self, info: KernelInfo, image: Image) -> LoadedKernel:
        cu = self._cu
        module = self._modules.get(image.code)
        if module is None:
            module = self._modules[image.code] = self._module(info, image)
        try:
            function = ask(cu.cuModuleGetFunction, module.handle, image.kernel.encode())
        except CudaError as error:
            message = f"an image has no kernel {image.kernel!r}: {error}"
            raise ExecutableError("object-code", message) from error
        self._require_arguments(info, image, function)
        attribute = cu.CUfunction_attribute
        most = ask(
            cu.cuFuncGetAttribute, attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function
        )
        if most < image.limits.get("threads", 0):
            raise ExecutableError(
                "device-features",
                f"the kernel {info.name!r} is launched with {image.limits['threads']} threads of a block, and its "
                f"registers are enough for {most} on {self._name}",
            )
        dynamic = image.limits.get("dynamic-shared", 0)
        if dynamic:  # without it, 48 KiB are the most
            key = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            try:
                ask(cu.cuFuncSetAttribute, function, key, dynamic)
            except CudaError as error:
                raise ExecutableError(
                    "device-features",
                    f"the kernel {info.name!r} needs {dynamic} bytes of shared memory beside its own: {error}",
                ) from error
        library = self._library(info, image)
        return LoadedKernel(info.name, module, function, image, self._limits, most, library)

    def _library(self, info: KernelInfo, image: Image) -> LibraryKernel | None:
        """The library call of an image. Each library has one handle."""
        call = image.library
        if call is None:
            return None
        prefix, _, _ = call.name.partition(".")
        given = self._libraries.get(prefix)
        library = library_for(self._context, info.name, call, _LIBRARIES, given)
        self._libraries[prefix] = library
        return LibraryKernel(library, call)

    def _module(self, info: KernelInfo, image: Image) -> _Module:
        cu = self._cu
        log = bytes(_LOG)  # the driver writes into it, and the bindings take nothing else
        option = cu.CUjit_option
        options = {
            option.CU_JIT_ERROR_LOG_BUFFER: log,
            option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: _LOG,
        }
        code = image.code + b"\0"  # the end of PTX
        try:
            handle = ask(cu.cuModuleLoadDataEx, code, len(options), [*options], [*options.values()])
        except CudaError as error:
            said = log.split(b"\0")[0].decode(errors="replace").strip().splitlines()
            raise ExecutableError(
                "object-code",
                f"{self._name} does not load the {image.format} of the kernel {info.name!r}: {error}",
                notes=[f"the driver is for CUDA {version_text(self._version)}", *said[:4]],
                help="install a newer driver, or build for this machine",
            ) from error
        return _Module(self._context, handle)

    def _require_arguments(self, info: KernelInfo, image: Image, function: Any) -> None:
        """Compares the described arguments with the code's parameters, where the driver tells these."""
        if self._version < _DESCRIBES_PARAMETERS:
            return
        described = offsets(image.args)
        for number in range(len(described) + 1):
            status, *place = self._cu.cuFuncGetParamInfo(function, number)
            there = None if status else tuple(place)
            want = described[number] if number < len(described) else None
            if there != want:
                raise ExecutableError(
                    "object-code",
                    f"the arguments of the kernel {info.name!r} are not as described: number {number} is "
                    f"{_place(there)} of the code, and {_place(want)} is described",
                )


def _place(place: tuple[int, ...] | None) -> str:
    return "none" if place is None else f"{place[1]} bytes at byte {place[0]}"
