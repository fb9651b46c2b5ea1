"""WebGPU devices of this machine through wgpu (`pip install 'relaxpy[wgpu]'`): over Vulkan, Metal or Direct3D.

A handle is a `Memory`, and a queue a `WorkQueue`; all queues of a device submit to its one queue, in order. Kernels are
WGSL, a pipeline each.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime.devices.base import DeviceError, DeviceRuntime, Launcher
from relaxpy.runtime.devices.image import Argument, Image, getter
from relaxpy.runtime.devices.webgpu.queue import BindGroups, Memory, Part, Pipeline, WorkQueue

if TYPE_CHECKING:
    from relaxpy.runtime.bytecode import KernelInfo

INSTALL = "install a driver of your GPU; for processors, on Debian: apt install mesa-vulkan-drivers"
_LIMITS = (
    "max-storage-buffers-per-shader-stage", "max-storage-buffer-binding-size", "max-buffer-size",
    "max-compute-workgroup-storage-size", "max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y", "max-compute-workgroup-size-z",
)  # fmt: skip
"""Limits for which the device gives what it has, beyond what WebGPU guarantees."""
_GIVEN = ("max-compute-workgroups-per-dimension", "min-storage-buffer-offset-alignment")
"""Other limits that decide what runs."""
_WORD = 4
_TRIED = 100_000
_COUNT = f"""
@group(0) @binding(0) var<storage, read_write> found: array<u32>;
@compute @workgroup_size(1) fn count() {{
  for (var i = 0u; i < {_TRIED}u; i++) {{ found[0] = found[0] + 1u; }}
}}
"""
"""A kernel that counts its rounds."""
_SHARED = "vulkan -threads=256"
"""Four times as many as usual, and as many as WebGPU guarantees."""
_LARGEST = (1 << 31) - 1
"""The largest `i32`."""
_FORMATS = {"int64": "q", "uint64": "Q", "int32": "i", "uint32": "I", "float32": "f", "bool": "I", "int8": "i",
            "int16": "i", "uint8": "I", "uint16": "I", "float16": "f", "bfloat16": "f"}  # fmt: skip
"""How numbers of each dtype are packed."""


class WebGPURuntime(DeviceRuntime):
    """The runtime of a WebGPU device."""

    kind: ClassVar[str] = "webgpu"
    interfaces: ClassVar[tuple[str, ...]] = ("Vulkan", "Metal", "D3D12")
    """The system's interfaces to devices of this kind."""
    offset_alignment = _WORD
    distinct_buffers = True
    shares_reads = True

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._wgpu = _wgpu()
        found = _adapters(self.interfaces)
        self.require_device(len(found), f"there is no {self.kind} device here", INSTALL)
        adapter = found[index]
        limits = {name: adapter.limits[name] for name in _LIMITS if name in adapter.limits}
        with self._errors():
            self._device = adapter.request_device_sync(required_limits=limits)
        self.limits: dict[str, int] = dict(self._device.limits)
        """By WebGPU's names."""
        self._window = min(self.limits["max-storage-buffer-binding-size"], _LARGEST) // 256 * 256
        """The most bytes that a kernel gets of a buffer, so that an `i32` indexes all of them."""
        self._most_groups = self.limits["max-compute-workgroups-per-dimension"]
        self._probe = self.allocate(_WORD, None)
        self._is_software = adapter.info["adapter_type"] == "CPU"

    @classmethod
    def devices(cls) -> Sequence[str]:
        try:
            return [_description(adapter) for adapter in _adapters(cls.interfaces)]
        except Exception:  # a driver that cannot be asked is none
            return ()

    def facts(self) -> Mapping[str, int | str]:
        """Those that decide what runs, of the device as relaxpy asks for it."""
        return {name: self.limits[name] for name in (*_LIMITS, *_GIVEN) if name in self.limits}

    # Queues

    def open_queue(self) -> WorkQueue:
        with self._errors():
            return WorkQueue(self._device, self._wgpu)

    def synchronise(self, queue: WorkQueue) -> None:
        with self._errors():
            queue.flush()
            # wgpu has no other way to wait: reading a word takes until all work before it is done.
            self._device.queue.read_buffer(self._probe.buffer, 0, _WORD)

    def wait(self, queue: WorkQueue, other: WorkQueue) -> None:
        """Submitted work runs in order."""
        with self._errors():
            queue.flush()
            other.flush()

    # Memory

    def allocate(self, nbytes: int, queue: WorkQueue | None) -> Memory:
        size = -(-nbytes // _WORD) * _WORD
        if size > self.limits["max-buffer-size"]:
            raise MemoryError
        flags = self._wgpu.BufferUsage
        usage = flags.STORAGE | flags.COPY_SRC | flags.COPY_DST
        try:
            return Memory(self._device.create_buffer(size=size, usage=usage), size)
        except self._wgpu.GPUOutOfMemoryError:
            raise MemoryError from None
        except self._wgpu.GPUError as error:
            if "memory" in str(error).lower():
                raise MemoryError from None
            raise DeviceError(_reason(error)) from error

    def free(self, handle: Memory, queue: WorkQueue) -> None:
        with queue.lock:
            handle.forget()

    def upload(self, queue: WorkQueue, target: Memory, offset: int, data: memoryview) -> None:
        with self._errors(), queue.lock:
            queue.flush()
            tail = data.nbytes % _WORD
            whole = data.nbytes - tail
            write = self._device.queue.write_buffer
            if whole:
                write(target.buffer, offset, data[:whole])
            if tail:  # tensors end with whole words in their buffers
                write(target.buffer, offset + whole, bytes(data[whole:]).ljust(_WORD, b"\0"))

    def download(self, queue: WorkQueue, source: Memory, offset: int, data: memoryview) -> None:
        with self._errors(), queue.lock:
            queue.flush()
            size = -(-data.nbytes // _WORD) * _WORD
            found = self._device.queue.read_buffer(source.buffer, offset, size)
            data[:] = memoryview(found).cast("B")[: data.nbytes]

    def copy(
        self,
        queue: WorkQueue,
        source: Memory,
        source_offset: int,
        target: Memory,
        target_offset: int,
        nbytes: int,
    ) -> None:
        size = -(-nbytes // _WORD) * _WORD
        with self._errors(), queue.lock:
            if source is not target:
                queue.copy(source, source_offset, target, target_offset, size)
                return
            between = self.allocate(size, queue)  # a buffer is not copied to itself
            queue.copy(source, source_offset, between, 0, size)
            queue.copy(between, 0, target, target_offset, size)

    # Kernels

    def load(self, objects: Sequence[bytes], kernels: Sequence[KernelInfo]) -> Sequence[Pipeline]:
        images = [(info, Image.of(info, objects, "a WGSL")) for info in kernels]
        for info, image in images:  # before anything is compiled or allocated
            self._require_limits(info, image)
        return [self._loaded(info, image) for info, image in images]

    def _require_limits(self, info: KernelInfo, image: Image) -> None:
        for name, least in image.limits.items():
            there = self.limits.get(name)
            if there is not None and there < least:
                raise ExecutableError(
                    "device-features",
                    f"the kernel {info.name!r} needs {name} of {least}; {self._name} has {there}",
                    help=f"build for the limits that WebGPU guarantees: target={self.kind!r}",
                )

    def _loaded(self, info: KernelInfo, image: Image) -> Pipeline:
        stage = self._wgpu.ShaderStage.COMPUTE
        memory = [arg for arg in image.args if "memory" in arg]
        entries: list[dict[str, Any]] = []
        for place, arg in enumerate(memory):
            kind = "storage" if arg.get("access") == "read-write" else "read-only-storage"
            entries.append({"binding": place, "visibility": stage, "buffer": {"type": kind}})
        numbers = {"type": "uniform", "has_dynamic_offset": True}
        entries.append({"binding": len(memory), "visibility": stage, "buffer": numbers})
        device = self._device
        try:
            layout = device.create_bind_group_layout(entries=entries)
            pipeline = device.create_compute_pipeline(
                layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={
                    "module": device.create_shader_module(code=image.source),
                    "entry_point": image.kernel,
                },
            )
        except (self._wgpu.GPUError, self._wgpu.GPUPipelineError, RuntimeError) as error:
            raise ExecutableError(
                "object-code",
                f"{self._name} does not compile the kernel {info.name!r}: {_reason(error)}",
            ) from error
        return Pipeline(pipeline, layout, image, _numbers(image.args), info.image.launch[2] == 1)

    def launcher(self, kernel: Pipeline, queue: WorkQueue) -> Launcher:
        args = kernel.image.args
        places = [arg["memory"] for arg in args if "memory" in arg]
        get = [getter(arg, offset=self._seen_offset) for arg in args if "memory" not in arg]
        guarded = [(arg["size"], arg["most"]) for arg in args if "most" in arg]
        counted = kernel.image.rounds
        most_rounds = None if counted is None else self._most_rounds
        known: BindGroups = {}
        errors = self._wgpu_errors

        def launch(numbers: Sequence[int], sizes: Sequence[int], *given: Any) -> None:
            del sizes
            x, y, z, threads = numbers[:4]
            if not (x and y and z):
                return
            for place, limit in guarded:
                if not -limit <= numbers[place] <= limit:
                    raise DeviceError(
                        f"a size of {numbers[place]} is beyond the 32 bits of WGSL's integers"
                    )
            if counted is not None and most_rounds is not None and numbers[counted] > most_rounds:
                raise DeviceError(
                    f"a thread runs up to {numbers[counted]} rounds of loops, and {self._name} ends it after "
                    f"{most_rounds} without a word: run it on another device, or, where threads share a row, build for "
                    f"more of them: target={_SHARED!r}"
                )
            groups = self._groups(kernel, x, y, z, threads)
            memory = tuple([self._part(given[place]) for place in places])
            values = (0, x, *[value(numbers, given) for value in get])
            try:
                queue.launch(kernel, known, memory, values, groups)
            except errors as error:
                raise self._translated(error) from error

        return launch

    def _groups(
        self, kernel: Pipeline, x: int, y: int, z: int, threads: int
    ) -> tuple[int, int, int]:
        """The grid of a launch with this many threads along x in a group; one that is too long along x is folded."""
        most = self._most_groups
        if x * threads > _LARGEST:
            raise DeviceError(
                f"a grid of {x * threads} threads is beyond the 32 bits of WGSL's integers"
            )
        if x > most and kernel.folds:
            z = -(-x // most)
            x = -(-x // z)
        if max(x, y, z) > most:
            raise DeviceError(
                f"a grid of {x} × {y} × {z} groups is too large: {most} along an axis"
            )
        return x, y, z

    def _part(self, tensor: Any) -> Part:
        """The part of a buffer that a kernel gets for a tensor: all of it, where that is allowed."""
        memory: Memory = tensor.buffer.handle
        if memory.size <= self._window:
            return memory, 0, memory.size
        start = tensor.offset // 256 * 256
        size = -(-(tensor.offset - start + tensor.nbytes) // _WORD) * _WORD
        if size > self._window:
            raise DeviceError(
                f"a tensor has {tensor.nbytes} bytes, and a kernel on {self._name} may get {self._window}"
            )
        return memory, start, max(size, _WORD)

    def _seen_offset(self, tensor: Any) -> int:
        """Where in the part of a buffer that a kernel gets its tensor begins, in bytes."""
        is_whole = tensor.buffer.handle.size <= self._window
        return tensor.offset if is_whole else tensor.offset % 256

    @cached_property
    def _most_rounds(self) -> int | None:
        """The most rounds of loops that a thread of the device runs, all loops together; None if there is no end. A
        driver for processors (llvmpipe) ends a thread early, and says nothing."""
        if not self._is_software:
            return None
        stage = self._wgpu.ShaderStage.COMPUTE
        with self._errors():
            device, found = self._device, self.allocate(_WORD, None)
            entry = {"binding": 0, "visibility": stage, "buffer": {"type": "storage"}}
            layout = device.create_bind_group_layout(entries=[entry])
            pipeline = device.create_compute_pipeline(
                layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={
                    "module": device.create_shader_module(code=_COUNT),
                    "entry_point": "count",
                },
            )
            bound = {"binding": 0, "resource": {"buffer": found.buffer, "offset": 0, "size": _WORD}}
            encoder = device.create_command_encoder()
            work = encoder.begin_compute_pass()
            work.set_pipeline(pipeline)
            work.set_bind_group(0, device.create_bind_group(layout=layout, entries=[bound]))
            work.dispatch_workgroups(1)
            work.end()
            device.queue.submit([encoder.finish()])
            (rounds,) = memoryview(device.queue.read_buffer(found.buffer)).cast("B").cast("I")
        return rounds if rounds < _TRIED else None

    # Errors

    @property
    def _name(self) -> str:
        return f"{self.kind}:{self.index}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._wgpu_errors as error:
            raise self._translated(error) from error

    @property
    def _wgpu_errors(self) -> tuple[type[Exception], ...]:
        return self._wgpu.GPUOutOfMemoryError, self._wgpu.GPUError, RuntimeError, ValueError

    def _translated(self, error: Exception) -> Exception:
        """The error of a call for an error of wgpu."""
        if isinstance(error, self._wgpu.GPUOutOfMemoryError):
            return MemoryError()
        return DeviceError(_reason(error))


def _numbers(args: Sequence[Argument]) -> struct.Struct:
    """The layout of a kernel's numbers: 0, the number of groups, and its parameters, in words."""
    formats = [
        _FORMATS["int64" if "first" in arg else str(arg["dtype"])]
        for arg in args
        if "memory" not in arg
    ]
    plain = struct.Struct("<II" + "".join(formats))
    return struct.Struct(f"{plain.format}{-plain.size % 16}x")


def _wgpu() -> Any:
    """The package wgpu. Raises: UsageError (`device`) where it is not installed."""
    try:
        import wgpu
    except ImportError as error:
        raise UsageError(
            "device",
            f"WebGPU and Vulkan need wgpu, which cannot be imported: {error}",
            help="pip install 'relaxpy[wgpu]'",
        ) from error
    return wgpu


@cache
def _adapters(interfaces: tuple[str, ...]) -> tuple[Any, ...]:
    """The devices behind these interfaces, GPUs first. Raises: UsageError (`device`) without wgpu."""
    # Mesa's layer that asks a desktop for its device prints an error where none runs.
    layer = "NODEVICE_SELECT"
    is_alone = os.environ.keys().isdisjoint((layer, "XDG_RUNTIME_DIR"))
    os.environ.update({layer: "1"} if is_alone else {})
    try:
        known = _wgpu().gpu.enumerate_adapters_sync()
    finally:
        if is_alone:
            del os.environ[layer]
    found = [adapter for adapter in known if adapter.info["backend_type"] in interfaces]
    return tuple(sorted(found, key=lambda adapter: adapter.info["adapter_type"] == "CPU"))


def _description(adapter: Any) -> str:
    info = adapter.info
    return f"{info['device']} ({info['backend_type']}, {info['description']})"


def _reason(error: Exception) -> str:
    """A driver's error message in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line or line.startswith("Caused by")]
    return "; ".join((telling or lines or [type(error).__name__])[:4])


RUNTIME = WebGPURuntime
