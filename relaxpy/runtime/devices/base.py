"""What the virtual machine asks of a device: memory, copies, kernels, errors.

A device's memory is opaque: a *buffer* is a handle that means something to its `DeviceRuntime` alone, and a tensor is a
buffer, an offset in bytes, a shape and an element type (`relaxpy.runtime.devices.tensor`). Work is put into a *queue*,
which does it in order, some time: a function returns when it has put its work there, and what goes wrong later is told
where the queue is synchronised. Memory belongs to a queue too, so that a piece may be used again at once: what uses it
next comes behind what used it before (`relaxpy.runtime.devices.queue`).

A kind of device is a class that derives from `DeviceRuntime`, in a package beside this file (`<kind>/device.py`, named
`RUNTIME` there) or in any other that says so by an entry point of the group `relaxpy.devices`
(`relaxpy.runtime.devices.registry`). At a call no method of it is called for a launch: it gives a handle for each
kernel and queue when an executable is linked, and names the class that writes the lines which call it
(`relaxpy.runtime.devices.lines`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from relaxpy.runtime.devices.lines import DeviceLines

if TYPE_CHECKING:
    from relaxpy.runtime.bytecode import KernelInfo, Requirement
    from relaxpy.runtime.devices.queue import Queue

RawQueue: TypeAlias = Any
"""A queue as its runtime made it."""
Handle: TypeAlias = Any
"""Memory as its runtime made it."""
Loaded: TypeAlias = Any
"""A kernel as its runtime has loaded it."""
Launcher: TypeAlias = Callable[..., object]
"""Launches a kernel: `launcher(launch, sizes, *args)` with the numbers of `KernelImage.launch`, the kernel's own sizes
in their order, and its arguments, `DeviceTensor`s and Python scalars."""


class DeviceError(RuntimeError):
    """What a `DeviceRuntime` raises where its device failed."""


class DeviceRuntime(ABC):
    """A device of this machine. Its methods may be called by several threads at the same time.

    Methods raise DeviceError for what goes wrong, and MemoryError where there is no memory left; `relaxpy` makes
    located errors of them.
    """

    kind: ClassVar[str]
    """How targets and slots call this kind of device."""
    lines: ClassVar[type[DeviceLines]] = DeviceLines
    """Writes the lines of linked functions that touch the device's memory."""
    dlpack_type: ClassVar[int] = 0
    """DLPack's number of this kind of device; 0: it has none, and tensors are not exchanged. Else the methods below are
    those of the device."""
    offset_alignment: int = 1
    """A tensor begins at a multiple of so many bytes of its buffer."""
    distinct_buffers: bool = False
    """No buffer may be given to a launch twice, not even to be read."""

    def __init__(self, index: int) -> None:
        """The device of number `index`. Raises: UsageError (`device`) where there is none; its hint says what to
        install, or how to name another."""
        self.index = index

    @classmethod
    def devices(cls) -> Sequence[str]:
        """What the devices of this kind are that are here, by number, for people. Never raises."""
        return ()

    # Queues

    @abstractmethod
    def open_queue(self) -> RawQueue:
        """A new queue. It is closed when nothing refers to it."""

    @abstractmethod
    def synchronise(self, queue: RawQueue) -> None:
        """Return when all work in the queue is done. Raises DeviceError for what failed since the last time."""

    @abstractmethod
    def wait(self, queue: RawQueue, other: RawQueue) -> None:
        """What is put into `queue` from here on begins when the work that is in `other` now is done."""

    def queue(self) -> Queue:
        """A new queue with its memory, for a virtual machine."""
        from relaxpy.runtime.devices.queue import Queue  # which knows tensors, and they this

        return Queue(self)

    # Memory

    @abstractmethod
    def allocate(self, nbytes: int, queue: RawQueue) -> Handle:
        """Memory of `nbytes` bytes, at least one, for work of the queue."""

    def free(self, handle: Handle, queue: RawQueue) -> None:  # noqa: B027
        """Nothing refers to the memory any more, but work that is in the queue may use it still. Nothing to do where a
        handle frees its memory itself."""

    @abstractmethod
    def upload(self, queue: RawQueue, target: Handle, offset: int, data: memoryview) -> None:
        """Put a copy of bytes of the host into the queue. They may change as soon as this returns."""

    @abstractmethod
    def download(self, queue: RawQueue, source: Handle, offset: int, data: memoryview) -> None:
        """Put a copy to memory of the host into the queue. The machine synchronises before it looks there."""

    @abstractmethod
    def copy(
        self,
        queue: RawQueue,
        source: Handle,
        source_offset: int,
        target: Handle,
        target_offset: int,
        nbytes: int,
    ) -> None:
        """Put a copy from one buffer of the device to another into the queue."""

    # Kernels

    def missing(self, requirement: Requirement) -> Sequence[str]:
        """What the device lacks of what an image needs; nothing: it can run it. A kind of device that says nothing here
        has no features."""
        return tuple(filter(None, (requirement.arch, *requirement.features)))

    @abstractmethod
    def load(self, objects: Sequence[bytes], kernels: Sequence[KernelInfo]) -> Sequence[Loaded]:
        """The kernels, all of them of this device, ready to be launched in any queue. `kernels[i].image` is the image
        that was chosen, and `kernels[i].image.object` the number of its code in `objects`, as the device's backend
        wrote it.

        Raises: ExecutableError (`object-code`) for images that cannot be loaded or lack a kernel.
        """

    @abstractmethod
    def launcher(self, kernel: Loaded, queue: RawQueue) -> Launcher:
        """What launches a loaded kernel in the queue. Several threads may call it at the same time."""

    # DLPack (`relaxpy.runtime.devices.dlpack`), for devices that have a `dlpack_type`

    def address(self, handle: Handle) -> int:
        """How DLPack calls memory: the `data` of its tensors, on which nobody but the device's libraries can look."""
        raise BufferError(f"{self.kind} gives no memory to others: tensor.numpy() is a copy")

    def wrap(self, address: int, nbytes: int) -> Handle:
        """A handle for so many bytes that another library owns, which keeps them while we use the handle."""
        raise BufferError(f"{self.kind} takes no memory of others")

    def stream(self, queue: RawQueue) -> int | None:
        """The number by which other libraries know a queue; None: they know none, and wait until their work is done."""
        return None

    def queue_of(self, stream: int | None) -> RawQueue | None:
        """The queue that another library calls by this number, or by default (None); None: there are no numbers."""
        return None
