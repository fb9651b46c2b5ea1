"""OpenCL devices through pyopencl (`pip install 'relaxpy[opencl]'`, which brings PoCL: OpenCL on CPUs).

A handle is a `cl.Buffer`, and a queue is an in-order `cl.CommandQueue`. Kernels are OpenCL C and are compiled by the
device's driver when an executable is loaded, all of them in one program: one program for each kernel would take the
driver several times as long.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime.devices.base import DeviceError, DeviceRuntime, Launcher
from relaxpy.runtime.devices.image import GRID, Argument, Image, getter
from relaxpy.runtime.dtype import to_numpy

if TYPE_CHECKING:
    from relaxpy.runtime.bytecode import KernelInfo, Requirement

_POCL = ("POCL_WORK_GROUP_METHOD", "loops")
"""PoCL's own setting, unless the user has one. Its other method vectorises over the threads of a group: with PoCL 3.1,
kernels with long bodies then compiled for minutes, and conditional stores behind barriers were not conditional."""
INSTALL = (
    "install a driver of your GPU, or OpenCL for processors: pip install 'relaxpy[opencl]' "
    "(on Debian also: apt install pocl-opencl-icd)"
)
_OPTIONS = "-cl-std=CL1.2"
"""Options of the driver's compiler. None of them lets it change floating-point results."""


@dataclass(frozen=True, slots=True)
class _LoadedKernel:
    """A kernel in a program that the driver has compiled."""

    program: Any
    image: Image


class OpenCLRuntime(DeviceRuntime):
    """The runtime of an OpenCL device. Devices are numbered over all platforms, GPUs before CPUs."""

    kind: ClassVar[str] = "opencl"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        cl = _pyopencl()
        found = _devices()
        self.require_device(len(found), "there is no OpenCL device here", INSTALL)
        self._cl = cl
        self._device = found[index]
        self._context = cl.Context([self._device])

    @classmethod
    def devices(cls) -> Sequence[str]:
        try:
            return [f"{d.name.strip()} ({d.platform.name.strip()})" for d in _devices()]
        except Exception:  # a driver that cannot be asked is none
            return ()

    def facts(self) -> Mapping[str, int | str]:
        device = self._device
        narrow = [
            e for e in ("cl_khr_fp64", "cl_khr_fp16", "cl_khr_subgroups") if e in self.features
        ]
        return {
            "version": device.version.strip(),
            "global_mem_size": device.global_mem_size,
            "max_mem_alloc_size": device.max_mem_alloc_size,
            "local_mem_size": device.local_mem_size,
            "max_work_group_size": device.max_work_group_size,
            "max_compute_units": device.max_compute_units,
            "max_parameter_size": device.max_parameter_size,
            "extensions": ", ".join(narrow) or "none of fp64, fp16 and subgroups",
        }

    # Queues

    def open_queue(self) -> Any:
        with self._errors():
            return self._cl.CommandQueue(self._context)

    def synchronise(self, queue: Any) -> None:
        with self._errors():
            queue.finish()

    def wait(self, queue: Any, other: Any) -> None:
        with self._errors():
            done = self._cl.enqueue_marker(other)
            other.flush()
            self._cl.enqueue_barrier(queue, wait_for=[done])

    # Memory

    def allocate(self, nbytes: int, queue: Any) -> Any:
        cl = self._cl
        if nbytes > self._device.max_mem_alloc_size:
            raise MemoryError
        try:
            return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)
        except cl.Error as error:
            if error.code in _no_memory(cl):
                raise MemoryError from None
            raise DeviceError(_reason(error)) from error

    def upload(self, queue: Any, target: Any, offset: int, data: memoryview) -> None:
        with self._errors():
            self._cl.enqueue_copy(queue, target, data, dst_offset=offset, is_blocking=True)

    def download(self, queue: Any, source: Any, offset: int, data: memoryview) -> None:
        with self._errors():
            self._cl.enqueue_copy(queue, data, source, src_offset=offset, is_blocking=True)

    def copy(
        self,
        queue: Any,
        source: Any,
        source_offset: int,
        target: Any,
        target_offset: int,
        nbytes: int,
    ) -> None:
        with self._errors():
            self._cl.enqueue_copy(
                queue,
                target,
                source,
                src_offset=source_offset,
                dst_offset=target_offset,
                byte_count=nbytes,
            )

    # Kernels

    @property
    def features(self) -> frozenset[str]:
        return frozenset(self._device.extensions.split())

    def missing(self, requirement: Requirement) -> Sequence[str]:
        """Features are the names of extensions."""
        arch = [requirement.arch] if requirement.arch else []
        return [*arch, *(each for each in requirement.features if each not in self.features)]

    def load(
        self, objects: Sequence[bytes], kernels: Sequence[KernelInfo]
    ) -> Sequence[_LoadedKernel]:
        images = {info.image.object: Image.of(info, objects, "an OpenCL") for info in kernels}
        extensions = set(self._device.extensions.split())
        for info in kernels:
            missing = [e for e in images[info.image.object].extensions if e not in extensions]
            if missing:
                raise ExecutableError(
                    "object-code",
                    f"the kernel {info.name!r} needs {', '.join(missing)}, which {self._name} lacks",
                )
        program = self._program(images, kernels)
        return [self._loaded(program, info, images[info.image.object]) for info in kernels]

    def _program(self, images: dict[int, Image], kernels: Sequence[KernelInfo]) -> Any:
        """Compiles all kernels in one program. On failure, raises an error for the first kernel that does not compile
        alone."""
        if not images:
            return None
        try:
            return self._built("\n".join({image.source: None for image in images.values()}))
        except self._cl.Error as together:
            for info in kernels:
                try:
                    self._built(images[info.image.object].source)
                except self._cl.Error as alone:
                    raise ExecutableError(
                        "object-code",
                        f"{self._name} does not compile the kernel {info.name!r}: {_reason(alone)}",
                    ) from alone
            raise ExecutableError(
                "object-code", f"{self._name} does not compile the kernels: {_reason(together)}"
            ) from together

    def _built(self, source: str) -> Any:
        return self._cl.Program(self._context, source).build([_OPTIONS])

    def _loaded(self, program: Any, info: KernelInfo, image: Image) -> _LoadedKernel:
        loaded = _LoadedKernel(program, image)
        # Report a missing kernel or a mismatch of its arguments now, not at the first launch.
        self._require_arguments(self._kernel(loaded), info, image)
        return loaded

    def _kernel(self, loaded: _LoadedKernel) -> Any:
        try:
            return self._cl.Kernel(loaded.program, loaded.image.kernel)
        except self._cl.Error as error:
            raise ExecutableError(
                "object-code", f"an image has no kernel {loaded.image.kernel!r}: {_reason(error)}"
            ) from error

    def launcher(self, kernel: _LoadedKernel, queue: Any) -> Launcher:
        """OpenCL stores the arguments of a launch in the kernel object. So each queue has its own kernel object, with a
        lock, since several threads may share the queue."""
        cl, lock = self._cl, threading.Lock()
        own = self._kernel(kernel)
        get = [getter(arg, None if "memory" in arg else _number(arg)) for arg in kernel.image.args]

        def launch(numbers: Sequence[int], sizes: Sequence[int], *args: Any) -> None:
            del sizes
            groups, threads = numbers[:3], numbers[3:GRID]
            if 0 in groups:
                return  # OpenCL has no empty grid
            grid = [group * count for group, count in zip(groups, threads, strict=True)]
            with self._errors(), lock:
                own.set_args(*(value(numbers, args) for value in get))
                cl.enqueue_nd_range_kernel(queue, own, grid, threads)

        return launch

    def _require_arguments(self, kernel: Any, info: KernelInfo, image: Image) -> None:
        """Checks that the kernel takes as many arguments as it will get, each of the right size."""
        if kernel.num_args != len(image.args):
            problem = f"it has {kernel.num_args}, and {len(image.args)} are described"
        else:
            try:
                kernel.set_args(*(None if "memory" in a else _number(a)(0) for a in image.args))
            except self._cl.Error as error:
                problem = _reason(error)
            else:
                return
        raise ExecutableError(
            "object-code",
            f"the arguments of the kernel {info.name!r} are not as described: {problem}",
        )

    # Errors

    @property
    def _name(self) -> str:
        return f"opencl:{self.index} ({self._device.name.strip()})"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._cl.Error as error:
            raise DeviceError(_reason(error)) from error


def _number(arg: Argument) -> Callable[[Any], Any]:
    """The numpy type of a numeric argument."""
    return np.int64 if "first" in arg else to_numpy(str(arg["dtype"])).type


def _pyopencl() -> Any:
    """Pyopencl. Raises: UsageError (`device`) where it is not installed."""
    os.environ.setdefault(*_POCL)  # read when a kernel is compiled
    try:
        import pyopencl
    except ImportError as error:
        raise UsageError(
            "device",
            f"OpenCL needs pyopencl, which cannot be imported: {error}",
            help="pip install 'relaxpy[opencl]'",
        ) from error
    return pyopencl


@cache
def _devices() -> tuple[Any, ...]:
    """The devices of all platforms, GPUs first. Raises: UsageError (`device`) without pyopencl."""
    cl = _pyopencl()
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # no driver at all
        return ()
    found = [device for platform in platforms for device in platform.get_devices()]
    return tuple(sorted(found, key=lambda device: not device.type & cl.device_type.GPU))


def _no_memory(cl: Any) -> tuple[int, ...]:
    codes = cl.status_code
    return (
        codes.MEM_OBJECT_ALLOCATION_FAILURE,
        codes.OUT_OF_HOST_MEMORY,
        codes.OUT_OF_RESOURCES,
        codes.INVALID_BUFFER_SIZE,
    )


def _reason(error: Exception) -> str:
    """A driver's error message without pyopencl's repetitions."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line]
    return (telling or lines or [type(error).__name__])[0]


RUNTIME = OpenCLRuntime
