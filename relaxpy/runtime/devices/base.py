"""The interface between the virtual machine and a device: memory, copies, kernels, errors.

The memory of a device is opaque. A *buffer* is a handle that only its `DeviceRuntime` understands, and a tensor is a
buffer, an offset in bytes, a shape and an element type (`relaxpy.runtime.devices.tensor`). Work is put into a *queue*,
which runs it in order and asynchronously: a method returns when its work is in the queue, and later failures are
reported when the queue is synchronised. Memory belongs to a queue too and can be reused at once, since later work of
the same queue runs after earlier work (`relaxpy.runtime.devices.queue`).

A kind of device is a class that derives from `DeviceRuntime`. It is in a package beside this file (`<kind>/device.py`,
named `RUNTIME` there), or in another package that declares an entry point of the group `relaxpy.devices`
(`relaxpy.runtime.devices.registry`). Launches at run time call none of its methods: when an executable is linked, the
class provides a launcher for each kernel and queue, and the class that writes the code of the launches
(`relaxpy.runtime.devices.emit`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from relaxpy.errors import UsageError

if TYPE_CHECKING:
    from relaxpy.runtime.devices.emit import DeviceLines
    from relaxpy.runtime.devices.queue import Queue
    from relaxpy.runtime.terms import KernelInfo, Requirement

RawQueue: TypeAlias = Any
"""A queue in the type of its `DeviceRuntime`."""
Handle: TypeAlias = Any
"""Memory in the type of its `DeviceRuntime`. With `has_graphs` it is hashable, and equal only to the same memory."""
Loaded: TypeAlias = Any
"""A loaded kernel in the type of its `DeviceRuntime`."""
Graph: TypeAlias = Any
"""Recorded work in the type of its `DeviceRuntime`. It is freed with the last reference, although the device may still
run it."""
Launcher: TypeAlias = Callable[..., object]
"""Launches a kernel: `launcher(launch, sizes, *args)` with the numbers of `KernelImage.launch`, the kernel's sizes in
order, and its arguments, `DeviceTensor`s and Python scalars."""


class DeviceError(RuntimeError):
    """Raised by a `DeviceRuntime` when its device fails."""


class DeviceRuntime(ABC):
    """A device of this machine. Several threads may call its methods at the same time.

    Methods raise DeviceError for failures, and MemoryError if there is not enough memory; its text may say how much is
    left. The virtual machine converts them to located errors.
    """

    kind: ClassVar[str]
    """The name of this kind of device in targets and slots."""
    is_host: ClassVar[bool] = False
    """Whether its memory is this process's."""
    dlpack_type: ClassVar[int] = 0
    """DLPack's device type number. 0: it has none, and tensors are not exchanged with other libraries. Other kinds
    implement the DLPack methods below."""
    dlpack_also: ClassVar[tuple[int, ...]] = ()
    """Other device types of DLPack whose memory the device takes as it is."""
    offset_alignment: int = 1
    """The alignment in bytes of a tensor's offset in its buffer."""
    distinct_buffers: bool = False
    """Whether a launch must not receive the same buffer twice, even to read it."""
    shares_reads: bool = False
    """With `distinct_buffers`: whether it may receive a buffer several times that it only reads."""

    has_graphs: bool = False
    """Whether it records work and replays it. Such kinds implement the methods for graphs below."""

    def __init__(self, index: int) -> None:
        """The device of number `index`. Raises: UsageError (`device`) where there is none; its hint says what to
        install, or how to name another."""
        self.index = index

    def require_device(self, count: int, none: str, install: str) -> None:
        """Checks that this device is one of `count`. `none` says that there is no device at all, and `install` what is
        to be done then. Raises: UsageError (`device`), whose hint names the devices that there are."""
        if self.index < count:
            return
        names = (f"{self.kind}:{i} is {name}" for i, name in enumerate(self.devices()))
        message = f"no device {self.kind}:{self.index}" if count else none
        raise UsageError("device", message, help="; ".join(names) or install)

    @classmethod
    def devices(cls) -> Sequence[str]:
        """A description of each device of this kind on this machine, in order of number. Never raises."""
        return ()

    def facts(self) -> Mapping[str, int | str]:
        """The limits of the device, by the names that its interface has for them, for people to read."""
        return {}

    @classmethod
    def lines(cls) -> type[DeviceLines]:
        """The class that writes the code of linked functions that accesses the device's memory."""
        from relaxpy.runtime.devices.emit import DeviceLines  # no need of functions linked before

        return DeviceLines

    # Queues

    @abstractmethod
    def open_queue(self) -> RawQueue:
        """Returns a new queue. It is closed when the last reference to it is gone."""

    @abstractmethod
    def synchronise(self, queue: RawQueue) -> None:
        """Waits until all work in the queue is done. Raises DeviceError for failures since the last call."""

    @abstractmethod
    def wait(self, queue: RawQueue, other: RawQueue) -> None:
        """Work that is put into `queue` from now on starts after the work that is in `other` now."""

    def queue(self) -> Queue:
        """Returns a new queue with its memory, for a virtual machine."""
        from relaxpy.runtime.devices.queue import Queue  # which knows tensors, and they this

        return Queue(self)

    def seconds(self, queue: RawQueue, work: Callable[[], object]) -> float:
        """The time that the device takes for what `work` puts into the queue, in seconds. Waits for it. By the host's
        clock where the device tells no times."""
        self.synchronise(queue)
        start = perf_counter()
        work()
        self.synchronise(queue)
        return perf_counter() - start

    # Memory

    @abstractmethod
    def allocate(self, nbytes: int, queue: RawQueue) -> Handle:
        """Allocates `nbytes` bytes, at least one, for work of the queue."""

    def free(self, handle: Handle, queue: RawQueue) -> None:  # noqa: B027
        """Frees memory after the last reference is gone. Work in the queue may still use it. Does nothing if the handle
        frees its memory itself."""

    @abstractmethod
    def upload(self, queue: RawQueue, target: Handle, offset: int, data: memoryview) -> None:
        """Enqueues a copy from the host. `data` may change as soon as this method returns."""

    @abstractmethod
    def download(self, queue: RawQueue, source: Handle, offset: int, data: memoryview) -> None:
        """Enqueues a copy to the host. The machine synchronises the queue before it reads `data`."""

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
        """Enqueues a copy from one buffer of the device to another."""

    # Kernels

    def missing(self, requirement: Requirement) -> Sequence[str]:
        """The parts of a requirement that the device does not meet; empty if it can run the image. The default is for
        devices without features."""
        return tuple(filter(None, (requirement.arch, *requirement.features)))

    @property
    def features(self) -> frozenset[str]:
        """The names of features of such devices, whether this one has them or not."""
        return frozenset()

    @abstractmethod
    def load(self, objects: Sequence[bytes], kernels: Sequence[KernelInfo]) -> Sequence[Loaded]:
        """Loads all kernels of this device, so that they can be launched in any queue. `kernels[i].image` is the
        selected image, and `kernels[i].image.object` the index of its code in `objects`, in the format of the device's
        backend.

        Raises: ExecutableError (`object-code`) for images that cannot be loaded or lack a kernel.
        """

    @abstractmethod
    def launcher(self, kernel: Loaded, queue: RawQueue) -> Launcher:
        """Returns a function that launches a loaded kernel in the queue. Several threads may call it at the same
        time."""

    # Graphs, for devices with `has_graphs`

    def begin_capture(self, queue: RawQueue) -> None:
        """Records the work that is put into `queue` from now on, without running it, until `end_capture`.

        The machine opens queues for recordings only. One thread at a time uses such a queue, for `copy` and for
        launches by launchers that were made for it. The machine neither waits for it nor transfers to or from the host.
        Meanwhile, any thread may use other queues, and may allocate and free memory. (For CUDA: capture in relaxed
        mode.)
        """
        raise DeviceError(f"{self.kind} records no graphs")

    def end_capture(self, queue: RawQueue) -> Graph:
        """Ends the recording and returns it. Called once after each `begin_capture`, also after a launch has failed.

        Raises: DeviceError for a recording that cannot be replayed. Then it has ended, too, and the machine runs the
        work without a graph.
        """
        raise DeviceError(f"{self.kind} records no graphs")

    def replay(self, queue: RawQueue, graph: Graph) -> None:
        """Enqueues the recorded work: the same kernels with the same arguments, in the same order. The machine replays
        a graph in one queue only, in one thread at a time, and may do so before an earlier replay has finished. It
        keeps the memory that the graph uses until then."""
        raise DeviceError(f"{self.kind} records no graphs")

    # DLPack (`relaxpy.runtime.devices.dlpack`), for devices that have a `dlpack_type`

    def address(self, handle: Handle) -> int:
        """The address of memory for DLPack: the `data` field of its tensors. Only the device's libraries can
        dereference it."""
        raise BufferError(f"{self.kind} cannot export memory: copy it with tensor.numpy()")

    def wrap(self, address: int, nbytes: int) -> Handle:
        """A handle for `nbytes` bytes that another library owns. That library keeps them alive as long as the handle is
        in use."""
        raise BufferError(f"{self.kind} cannot import memory of other libraries")

    def stream(self, queue: RawQueue) -> int | None:
        """The queue as a DLPack stream number; None if queues have no numbers, and other libraries wait until their
        work is done."""
        return None

    def queue_of(self, stream: int | None) -> RawQueue | None:
        """The queue for a DLPack stream number (None: the default stream); None if queues have no numbers."""
        return None
