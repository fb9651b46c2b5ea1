"""GPUs of Macs through PyObjC (`pip install 'relaxpy[metal]'`). Experimental: not run on a Mac yet.

A handle is an `MTLBuffer` that the host sees too. Kernels are source in Metal's language, which macOS compiles when an
executable is loaded, all of them in one library, without fast math.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime.devices.base import DeviceError, DeviceRuntime, Launcher
from relaxpy.runtime.devices.image import GRID, Argument, Image, getter
from relaxpy.runtime.devices.metal.queue import Frameworks, WorkQueue, reason

if TYPE_CHECKING:
    from relaxpy.runtime.bytecode import KernelInfo

_WORD = 4
"""Copies on macOS begin at multiples of so many bytes, and are as long."""
_MOST_BUFFERS = 30
"""Metal has 31 places for buffers, and one of them is for the numbers."""
_MOST_NUMBERS = 4096
"""The most bytes that a launch brings itself."""
_MOST_GROUPS = (1 << 32) - 1
"""A kernel sees the number of its group in 32 bits."""
_FORMATS = {
    "int64": "q", "uint64": "Q", "int32": "i4x", "uint32": "I4x", "float32": "f4x", "int16": "h6x", "uint16": "H6x",
    "float16": "e6x", "int8": "b7x", "uint8": "B7x", "bool": "?7x",
}  # fmt: skip
"""Numbers of a launch have 8 bytes each, whatever their type."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A compiled kernel."""

    state: Any
    """An `MTLComputePipelineState`."""
    image: Image
    numbers: struct.Struct
    """The layout of the numbers that it gets behind its buffers."""


class MetalRuntime(DeviceRuntime):
    """The runtime of a GPU of a Mac."""

    kind: ClassVar[str] = "metal"
    offset_alignment = _WORD

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._frameworks = _frameworks()
        found = _devices()
        self.require_device(len(found), "macOS has no GPU for Metal here", 'build for "llvm"')
        self._device = found[index]

    @classmethod
    def devices(cls) -> Sequence[str]:
        try:
            return [f"{device.name()} (experimental)" for device in _devices()]
        except Exception:  # a framework that cannot be asked has none
            return ()

    def facts(self) -> Mapping[str, int | str]:
        device = self._device
        return {
            "state": "experimental: not run on a Mac yet",
            "maxBufferLength": int(device.maxBufferLength()),
            "recommendedMaxWorkingSetSize": int(device.recommendedMaxWorkingSetSize()),
            "maxThreadgroupMemoryLength": int(device.maxThreadgroupMemoryLength()),
        }

    # Queues

    def open_queue(self) -> WorkQueue:
        return WorkQueue(self._device, self._frameworks)

    def synchronise(self, queue: WorkQueue) -> None:
        queue.finish()
        if failure := queue.failure():
            raise DeviceError(failure)

    def wait(self, queue: WorkQueue, other: WorkQueue) -> None:
        if queue is not other:
            queue.follow(*other.signal())

    # Memory

    def allocate(self, nbytes: int, queue: WorkQueue) -> Any:
        size = _whole_words(nbytes)
        if size > self._device.maxBufferLength():
            raise MemoryError
        with self._frameworks.calls():
            shared = self._frameworks.metal.MTLResourceStorageModeShared
            buffer = self._device.newBufferWithLength_options_(size, shared)
        if buffer is None:
            raise MemoryError
        return buffer

    def upload(self, queue: WorkQueue, target: Any, offset: int, data: memoryview) -> None:
        if data.nbytes:
            between = self.allocate(data.nbytes, queue)  # earlier work may still read the target
            _bytes_of(between)[: data.nbytes] = data.cast("B")
            queue.copy(between, 0, target, offset, _whole_words(data.nbytes))

    def download(self, queue: WorkQueue, source: Any, offset: int, data: memoryview) -> None:
        queue.finish()
        data.cast("B")[:] = _bytes_of(source)[offset : offset + data.nbytes]

    def copy(
        self,
        queue: WorkQueue,
        source: Any,
        source_offset: int,
        target: Any,
        target_offset: int,
        nbytes: int,
    ) -> None:
        if nbytes:
            queue.copy(source, source_offset, target, target_offset, _whole_words(nbytes))

    # Kernels

    def load(self, objects: Sequence[bytes], kernels: Sequence[KernelInfo]) -> Sequence[Pipeline]:
        images = {info.image.object: Image.of(info, objects, "a Metal") for info in kernels}
        for info in kernels:  # before anything is compiled
            self._require_places(info, images[info.image.object])
        with self._frameworks.calls():
            library = self._library(images, kernels)
            return [self._pipeline(library, info, images[info.image.object]) for info in kernels]

    def _require_places(self, info: KernelInfo, image: Image) -> None:
        """Metal ends the process for launches that have too much."""
        buffers = sum("memory" in arg for arg in image.args)
        unknown = [a["dtype"] for a in image.args if a.get("dtype", "int64") not in _FORMATS]
        if unknown:
            problem = f"takes a number of {unknown[0]}, which Metal's kernels cannot take"
        elif buffers > _MOST_BUFFERS:
            problem = f"takes {buffers} buffers, and Metal's kernels take {_MOST_BUFFERS}"
        elif (size := _layout(image.args).size) > _MOST_NUMBERS:
            problem = f"takes {size} bytes of numbers, and a launch has {_MOST_NUMBERS}"
        else:
            return
        raise ExecutableError("object-code", f"the kernel {info.name!r} {problem}")

    def _library(self, images: Mapping[int, Image], kernels: Sequence[KernelInfo]) -> Any:
        """Compiles all kernels in one library. On failure, raises an error for the first kernel that does not compile
        alone."""
        if not images:
            return None
        library, together = self._compiled(
            "\n".join({image.source: None for image in images.values()})
        )
        if library is not None:
            return library
        for info in kernels:
            library, alone = self._compiled(images[info.image.object].source)
            if library is None:
                raise ExecutableError(
                    "object-code",
                    f"{self._name} does not compile the kernel {info.name!r}: {reason(alone)}",
                )
        raise ExecutableError(
            "object-code", f"{self._name} does not compile the kernels: {reason(together)}"
        )

    def _compiled(self, source: str) -> tuple[Any, Any]:
        """A library, or None and the error."""
        options = self._frameworks.metal.MTLCompileOptions.alloc().init()
        options.setFastMathEnabled_(False)
        library, error = self._device.newLibraryWithSource_options_error_(source, options, None)
        return library, error

    def _pipeline(self, library: Any, info: KernelInfo, image: Image) -> Pipeline:
        function = library.newFunctionWithName_(image.kernel)
        if function is None:
            raise ExecutableError("object-code", f"an image has no kernel {image.kernel!r}")
        state, error = self._device.newComputePipelineStateWithFunction_error_(function, None)
        if state is None:
            raise ExecutableError(
                "object-code", f"{self._name} has no place for {info.name!r}: {reason(error)}"
            )
        threads, most = math.prod(_threads(info)), state.maxTotalThreadsPerThreadgroup()
        if threads > most:
            raise ExecutableError(
                "device-features",
                f"the kernel {info.name!r} has groups of {threads} threads; {self._name} runs {most} of it",
                help='build for smaller groups: target="metal -threads=32"',
            )
        return Pipeline(state, image, _layout(image.args))

    def launcher(self, kernel: Pipeline, queue: WorkQueue) -> Launcher:
        args = kernel.image.args
        places = [arg["memory"] for arg in args if "memory" in arg]
        get = [getter(arg) for arg in args if "memory" not in arg]
        state, pack, size = kernel.state, kernel.numbers.pack, self._frameworks.metal.MTLSizeMake

        def launch(numbers: Sequence[int], sizes: Sequence[int], *given: Any) -> None:
            del sizes
            groups, threads = numbers[:3], numbers[3:GRID]
            if 0 in groups:
                return  # Metal has no empty grid
            if max(groups) > _MOST_GROUPS:
                raise DeviceError(f"a grid of {' × '.join(map(str, groups))} groups is too large")
            try:
                packed = pack(*[value(numbers, given) for value in get])
            except (struct.error, OverflowError) as error:
                raise DeviceError(f"a number of a launch does not fit its type: {error}") from error
            memory = [given[place].buffer.handle for place in places]
            queue.launch(state, memory, packed, size(*groups), size(*threads))

        return launch

    @property
    def _name(self) -> str:
        return f"metal:{self.index} ({self._device.name()})"


def _whole_words(nbytes: int) -> int:
    return -(-nbytes // _WORD) * _WORD


def _bytes_of(buffer: Any) -> memoryview:
    """The memory of a buffer, on the host."""
    return memoryview(buffer.contents().as_buffer(buffer.length())).cast("B")


def _threads(info: KernelInfo) -> list[int]:
    """Threads of a group along three axes. Raises: ExecutableError (`object-code`) where they are not constant."""
    counts = info.image.launch[3:GRID]
    found = [count for count in counts if isinstance(count, int)]
    if len(found) < len(counts):
        raise ExecutableError(
            "object-code", f"the kernel {info.name!r} has groups whose number of threads is unknown"
        )
    return found


def _layout(args: Sequence[Argument]) -> struct.Struct:
    """The layout of a kernel's numbers."""
    dtypes = [arg.get("dtype", "int64") for arg in args if "memory" not in arg]
    return struct.Struct("<" + "".join(_FORMATS[dtype] for dtype in dtypes))


@cache
def _frameworks() -> Frameworks:
    """Metal through PyObjC. Raises: UsageError (`device`) where it is not installed."""
    try:
        import Metal
        import objc
    except ImportError as error:
        is_mac = sys.platform == "darwin"
        raise UsageError(
            "device",
            f"Metal needs PyObjC, which cannot be imported: {error}"
            if is_mac
            else f"Metal is in macOS only, and this is {sys.platform}",
            help="pip install 'relaxpy[metal]'" if is_mac else 'build for "vulkan" or "opencl"',
        ) from error
    return Frameworks(Metal, objc)


@cache
def _devices() -> tuple[Any, ...]:
    """All GPUs, the one that macOS prefers first. Raises: UsageError (`device`) without PyObjC."""
    metal = _frameworks().metal
    first = metal.MTLCreateSystemDefaultDevice()
    if first is None:
        return ()
    others = [d for d in metal.MTLCopyAllDevices() if d.registryID() != first.registryID()]
    return (first, *others)


RUNTIME = MetalRuntime
