"""CUDA devices through NVIDIA's driver (`pip install 'relaxpy[cuda]'`, and the driver of the GPU).

A handle is an address of the device, and a queue a `Stream`. Kernels are cubin or PTX. The runtime needs numpy and
cuda-bindings; TVM, and a compiler, are not loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from relaxpy.runtime.devices.base import DeviceError, DeviceRuntime, Launcher
from relaxpy.runtime.devices.cuda import stream as streams
from relaxpy.runtime.devices.cuda.driver import (
    INSTALL,
    OUT_OF_MEMORY,
    Context,
    CudaError,
    ask,
    bindings,
    error_of,
    version_text,
)
from relaxpy.runtime.devices.cuda.kernels import LIMITS, LoadedKernel, load_kernels
from relaxpy.runtime.devices.cuda.launch import write_launcher
from relaxpy.runtime.devices.cuda.staging import Staging
from relaxpy.runtime.devices.cuda.stream import RecordedGraph, Stream

if TYPE_CHECKING:
    from relaxpy.runtime.bytecode import KernelInfo, Requirement

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_SHOWN = {
    "multiprocessor_count": "MULTIPROCESSOR_COUNT",
    "max_registers_per_block": "MAX_REGISTERS_PER_BLOCK",
    "l2_cache_size": "L2_CACHE_SIZE",
    "clock_rate_khz": "CLOCK_RATE",
    "memory_clock_rate_khz": "MEMORY_CLOCK_RATE",
    "memory_bus_width_bits": "GLOBAL_MEMORY_BUS_WIDTH",
}
"""Facts for people, and the driver's names of them."""


class CudaRuntime(DeviceRuntime):
    """The runtime of a CUDA device."""

    kind: ClassVar[str] = "cuda"
    dlpack_type: ClassVar[int] = 2
    dlpack_also: ClassVar[tuple[int, ...]] = (13,)
    """Managed memory, which the host and all devices have in common."""
    offset_alignment = 16
    """Kernels load vectors of 16 bytes."""
    has_graphs = True

    def __init__(self, index: int) -> None:
        super().__init__(index)
        cu = bindings()
        self.require_device(ask(cu.cuDeviceGetCount), f"no device cuda:{index}", INSTALL)
        self._cu = cu
        self._context = Context(index)
        self._version: int = ask(cu.cuDriverGetVersion)
        self._limits = {name: self._attribute(key) for name, key in LIMITS.items()}
        self._memory: int = ask(cu.cuDeviceTotalMem, self._context.device)
        self._has_pools = bool(self._attribute("MEMORY_POOLS_SUPPORTED"))
        self._capability = (
            self._attribute("COMPUTE_CAPABILITY_MAJOR"),
            self._attribute("COMPUTE_CAPABILITY_MINOR"),
        )
        self._staging = Staging(self._context)

    @classmethod
    def devices(cls) -> Sequence[str]:
        try:
            cu = bindings()
            return [_name(cu, number) for number in range(ask(cu.cuDeviceGetCount))]
        except Exception:  # a driver that cannot be asked has none
            return ()

    def facts(self) -> Mapping[str, int | str]:
        return {
            "compute_capability": ".".join(map(str, self._capability)),
            "total_memory": self._memory,
            **{name: self._attribute(key) for name, key in _SHOWN.items()},
            **self._limits,
            "driver": f"for CUDA {version_text(self._version)}",
        }

    def _attribute(self, name: str) -> int:
        key = getattr(self._cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        value: int = ask(self._cu.cuDeviceGetAttribute, key, self._context.device)
        return value

    # Queues

    def open_queue(self) -> Stream:
        with self._context.current():
            return Stream(self._context)

    def synchronise(self, queue: Stream) -> None:
        with self._context.current():
            queue.synchronise(self._context)

    def wait(self, queue: Stream, other: Stream) -> None:
        with self._context.current():
            # The wait is for the event as recorded now, or by another thread since, which is later work.
            other.record(self._context)
            ask(self._cu.cuStreamWaitEvent, queue.handle, other.event, 0)

    def seconds(self, queue: Stream, work: Callable[[], object]) -> float:
        with self._context.current():
            watch = streams.Stopwatch(self._context, queue)
            watch.start(self._context)
        work()
        with self._context.current():
            return watch.stop(self._context)

    # Memory

    def allocate(self, nbytes: int, queue: Stream) -> int:
        if nbytes > self._memory:
            raise MemoryError(f"the device has {self._memory} bytes")
        with self._context.current():
            try:
                return self._allocated(nbytes, queue)
            except CudaError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
            try:  # memory that was freed in the queue comes back when its work is done
                ask(self._cu.cuStreamSynchronize, queue.handle)
                return self._allocated(nbytes, queue)
            except CudaError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
            status, free, total = self._cu.cuMemGetInfo()
            left = "" if status else f"{free} of {total} bytes are free"
        raise MemoryError(left)

    def _allocated(self, nbytes: int, queue: Stream) -> int:
        cu = self._cu
        if self._has_pools:
            return int(ask(cu.cuMemAllocAsync, nbytes, queue.handle))
        return int(ask(cu.cuMemAlloc, nbytes))

    def free(self, handle: int, queue: Stream) -> None:
        cu = self._cu
        try:
            with self._context.current():
                if self._has_pools:
                    ask(cu.cuMemFreeAsync, handle, queue.handle)
                else:
                    ask(cu.cuMemFree, handle)
        except DeviceError:
            pass  # the context has failed, which is told where its work is waited for

    def upload(self, queue: Stream, target: int, offset: int, data: memoryview) -> None:
        with self._context.current():
            self._staging.upload(queue, target + offset, data)

    def download(self, queue: Stream, source: int, offset: int, data: memoryview) -> None:
        with self._context.current():
            self._staging.download(queue, source + offset, data)

    def copy(
        self,
        queue: Stream,
        source: int,
        source_offset: int,
        target: int,
        target_offset: int,
        nbytes: int,
    ) -> None:
        places = target + target_offset, source + source_offset
        self._enqueue(self._cu.cuMemcpyDtoDAsync, *places, nbytes, queue.handle)

    # Kernels

    def missing(self, requirement: Requirement) -> Sequence[str]:
        """`sm_80` runs on compute capability 8.0 and later ones of 8, `compute_80` on 8.0 and all later ones; `sm_90a`
        and `compute_90a` on 9.0 alone, and those with an `f` on later ones of the same family."""
        match = _ARCH.fullmatch(requirement.arch)
        runs = not requirement.arch
        if match is not None:
            have, wanted = self._capability, (int(match[2]), int(match[3]))
            in_family = wanted[0] == have[0] and wanted <= have
            is_portable = match[1] == "compute" and not match[4]
            runs = wanted == have or (
                match[4] != "a" and (in_family or (is_portable and wanted <= have))
            )
        return (*([] if runs else [requirement.arch]), *requirement.features)

    def load(
        self, objects: Sequence[bytes], kernels: Sequence[KernelInfo]
    ) -> Sequence[LoadedKernel]:
        name = f"cuda:{self.index} ({_name(self._cu, self.index)})"
        with self._context.current():
            return load_kernels(self._context, name, self._limits, self._version, objects, kernels)

    def launcher(self, kernel: LoadedKernel, queue: Stream) -> Launcher:
        own = write_launcher(kernel, self._context, queue)
        return own if kernel.library is None else kernel.library.launcher(queue, own)

    # Graphs

    def begin_capture(self, queue: Stream) -> None:
        with self._context.current():
            streams.begin(self._context, queue)

    def end_capture(self, queue: Stream) -> RecordedGraph:
        with self._context.current():
            return streams.end(self._context, queue)

    def replay(self, queue: Stream, graph: RecordedGraph) -> None:
        self._enqueue(self._cu.cuGraphLaunch, graph.handle, queue.handle)

    def _enqueue(self, call: Callable[..., tuple[Any]], *args: Any) -> None:
        """Makes a call of the driver, and again in the device's context if another one was current or none. As for
        launches, to ask before costs more than the call. Raises: CudaError."""
        (status,) = call(*args)
        if status and not self._context.is_current():
            with self._context.current():
                (status,) = call(*args)
        if status:
            raise error_of(status)

    # DLPack

    def address(self, handle: int) -> int:
        return handle

    def wrap(self, address: int, nbytes: int) -> int:
        """Raises: BufferError for memory where vectors cannot be loaded."""
        if address % self.offset_alignment:
            raise BufferError(
                f"its address is no multiple of {self.offset_alignment} bytes: pass a copy"
            )
        return address

    def stream(self, queue: Stream) -> int:
        return queue.address

    def queue_of(self, stream: int | None) -> Stream:
        """DLPack calls the legacy default stream 1 or None, and that of the thread 2. Raises: BufferError for 0, which
        could be either."""
        if stream == 0:
            raise BufferError(
                "the stream 0 could be either default stream: pass 1 (legacy) or 2 (of the thread)"
            )
        with self._context.current():
            return Stream(self._context, streams.LEGACY if stream is None else stream)


def _name(cu: Any, number: int) -> str:
    text: bytes = ask(cu.cuDeviceGetName, 256, ask(cu.cuDeviceGet, number))
    return text.split(b"\0")[0].decode()


RUNTIME = CudaRuntime
