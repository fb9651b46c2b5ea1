"""Work of a queue that is recorded and not submitted yet.

WebGPU runs what is submitted, so launches are recorded into one compute pass until something needs their results, or
until there are many. The numbers of recorded launches are collected on the host and written to one buffer just before
the submission: a write takes effect before all work that is submitted later. For the same reason a pass is submitted
before anything else is written.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from threading import RLock
from typing import Any, TypeAlias

from relaxpy.runtime.devices.image import Image

SLOT = 256
"""The numbers of a launch begin at a multiple of this, WebGPU's guaranteed `minUniformBufferOffsetAlignment`."""
_ROOM = 256 * 1024
_MOST_LAUNCHES = 64
"""Launches that are recorded before they are submitted, so that the device begins with them."""


class Pipeline:
    """A kernel that the driver has compiled."""

    def __init__(self, pipeline: Any, layout: Any, image: Image, numbers: Any, folds: bool) -> None:
        self.pipeline = pipeline
        self.layout = layout
        self.image = image
        self.numbers = numbers
        """A `struct.Struct` of the numbers of a launch."""
        self.folds = folds
        """Whether a grid that is too long along x continues along z."""
        self.slot = -(-self.numbers.size // SLOT) * SLOT


Part: TypeAlias = "tuple[Memory, int, int]"
"""A part of a buffer: its first byte and its size."""
BindGroups: TypeAlias = "dict[tuple[Part, ...], Any]"
"""The bind groups of a kernel in a queue, by the memory that they bind."""


class Memory:
    """A buffer, and the bind groups in which it is."""

    __slots__ = ("buffer", "groups", "size")

    def __init__(self, buffer: Any, size: int) -> None:
        self.buffer = buffer
        self.size = size
        self.groups: dict[tuple[int, tuple[Part, ...]], BindGroups] = {}
        """The dictionary of each, by its identity and the key in it."""

    def forget(self) -> None:
        """Remove the bind groups from their dictionaries: they keep the buffer alive."""
        while self.groups:
            (owner, key), groups = self.groups.popitem()
            groups.pop(key, None)
            for memory, _, _ in key:
                memory.groups.pop((owner, key), None)


Record: TypeAlias = Callable[[Any, Any, int, "tuple[int, int, int]"], None]
"""Records a launch in a pass: a bind group, where the numbers of the launch begin, the grid."""


def _checked(into: Any, group: Any, offset: int, groups: tuple[int, int, int]) -> None:
    into.set_bind_group(0, group, (offset,))
    into.dispatch_workgroups(*groups)


def _direct() -> Record | None:
    """As `_checked`, by the functions of wgpu's library: the package looks for errors after each call, which takes
    longer than the call, and finds none: they come when the pass ends. None where a version of wgpu has other names."""
    try:
        native: Any = import_module("wgpu.backends.wgpu_native")
        bind = native.lib.wgpuComputePassEncoderSetBindGroup
        dispatch = native.lib.wgpuComputePassEncoderDispatchWorkgroups
        place = native.ffi.new("uint32_t[1]")
    except (ImportError, AttributeError):
        return None

    def record(into: Any, group: Any, offset: int, groups: tuple[int, int, int]) -> None:
        own = into._internal
        place[0] = offset
        bind(own, 0, group._internal, 1, place)
        dispatch(own, *groups)

    return record


class WorkQueue:
    """The pending work of a queue. Several threads may use it."""

    def __init__(self, device: Any, wgpu: Any) -> None:
        self._device = device
        self._record = _direct() or _checked
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        self._numbers = device.create_buffer(size=_ROOM, usage=usage)
        self.lock = RLock()
        """Held while work is recorded or submitted."""
        self._bytes = bytearray()
        self._encoder: Any = None
        self._pass: Any = None
        self._last: Any = None
        """The pipeline of the last launch in the pass."""
        self._launches = 0

    def launch(
        self,
        kernel: Pipeline,
        known: BindGroups,
        memory: tuple[Part, ...],
        numbers: tuple[Any, ...],
        groups: tuple[int, int, int],
    ) -> None:
        """Record a launch. `known` has the bind groups of the kernel in this queue."""
        with self.lock:
            if (
                self._launches >= _MOST_LAUNCHES
                or len(self._bytes) + kernel.slot + kernel.numbers.size > _ROOM
            ):
                self.flush()
            group = known.get(memory)
            if group is None:
                group = known[memory] = self._group(kernel, memory)
                for each, _, _ in memory:
                    each.groups[id(known), memory] = known
            if self._pass is None:
                if self._encoder is None:
                    self._encoder = self._device.create_command_encoder()
                self._pass = self._encoder.begin_compute_pass()
                self._last = None
            if self._last is not kernel:
                self._pass.set_pipeline(kernel.pipeline)
                self._last = kernel
            self._record(self._pass, group, len(self._bytes), groups)
            self._bytes += kernel.numbers.pack(*numbers).ljust(kernel.slot, b"\0")
            self._launches += 1

    def _group(self, kernel: Pipeline, memory: tuple[Part, ...]) -> Any:
        entries: list[dict[str, Any]] = [
            {
                "binding": place,
                "resource": {"buffer": each.buffer, "offset": offset, "size": size},
            }
            for place, (each, offset, size) in enumerate(memory)
        ]
        numbers = {"buffer": self._numbers, "offset": 0, "size": kernel.numbers.size}
        entries.append({"binding": len(memory), "resource": numbers})
        return self._device.create_bind_group(layout=kernel.layout, entries=entries)

    def copy(self, source: Memory, start: int, target: Memory, at: int, nbytes: int) -> None:
        """Record a copy of whole words."""
        with self.lock:
            self._end_pass()
            if self._encoder is None:
                self._encoder = self._device.create_command_encoder()
            self._encoder.copy_buffer_to_buffer(source.buffer, start, target.buffer, at, nbytes)

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.end()
            self._pass = None

    def flush(self) -> None:
        """Submit the pending work."""
        with self.lock:
            if self._encoder is None:
                return
            self._end_pass()
            if self._bytes:
                self._device.queue.write_buffer(self._numbers, 0, self._bytes)
            encoder, self._encoder = self._encoder, None
            self._bytes = bytearray()
            self._launches = 0
            self._device.queue.submit([encoder.finish()])
