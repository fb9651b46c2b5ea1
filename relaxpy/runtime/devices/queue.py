"""A queue of a device with the memory that belongs to it: what a virtual machine has of each of its slots.

Memory that nothing refers to any more is given to the next that needs as much, while work in the queue may use it
still: what is put into the same queue comes behind. A tensor that another queue gets to use is remembered in its
buffer; before the memory is used again, its own queue waits for that one.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.device import Device
from relaxpy.runtime.devices.base import DeviceError, DeviceRuntime
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.patterns import describe
from relaxpy.runtime.pool import Block, MemoryPool, Piece
from relaxpy.runtime.tensor import ALIGNMENT, Array, Shape, Tensor, require_countable

T = TypeVar("T")


class _Memory:
    """Memory of a device; goes when nothing refers to it."""

    __slots__ = ("__weakref__", "handle", "users")

    def __init__(self, handle: Any, free: Callable[[], None] | None) -> None:
        self.handle = handle
        self.users: set[Queue] = set()
        """Queues that use it, besides the one that it belongs to."""
        if free is not None:
            weakref.finalize(self, free).atexit = False


class Buffer(Block):
    """A buffer in use; goes back to its queue's memory when nothing refers to it."""

    __slots__ = ("handle", "queue", "users")

    def __init__(self, piece: Piece, queue: Queue) -> None:
        super().__init__(piece)
        self.queue = queue
        self.handle: Any = piece[2].handle
        """The memory as its runtime knows it."""
        self.users: set[Queue] = piece[2].users
        """Other queues that use it."""


class Queue:
    """See the module."""

    is_host: ClassVar[bool] = False
    """Its tensors are memory of this process."""

    def __init__(self, runtime: DeviceRuntime) -> None:
        self.runtime = runtime
        self.device = Device(runtime.kind, runtime.index)
        self.raw = self._ask(runtime.open_queue)
        self._frees = type(runtime).free is not DeviceRuntime.free
        self._awaited: set[Queue] = set()
        """Queues that it has waited for since their errors were asked for."""
        self.pool = MemoryPool(make=self.new_memory, block=self._buffer, again=self._is_free_again)

    def _ask(self, what: Callable[..., T], *args: Any) -> T:
        """Call the runtime. Raises: RuntimeCheckError (`device-failed`)."""
        try:
            return what(*args)
        except DeviceError as error:
            raise RuntimeCheckError("device-failed", f"{self.device}: {error}") from error

    # Order

    def synchronise(self) -> None:
        """Return when all work is done. Raises: RuntimeCheckError (`device-failed`) for what failed."""
        self._ask(self.runtime.synchronise, self.raw)

    def behind(self, others: set[Queue]) -> None:
        """What comes from here on comes behind the work that these have now."""
        for other in others:
            if other is not self:
                self._ask(self.runtime.wait, self.raw, other.raw)
                self._awaited.add(other)

    def settle(self) -> None:
        """Ask for the errors of all work that a result may come from: of this queue, and of those that it waited for.

        Raises: RuntimeCheckError (`device-failed`).
        """
        waiting: list[Queue] = [self]
        seen: set[Queue] = {self}
        while waiting:
            queue = waiting.pop()
            sources, queue._awaited = queue._awaited, set()
            waiting += sources - seen
            seen |= sources
        for queue in seen:
            queue.synchronise()

    # Memory

    def _buffer(self, piece: Piece) -> Buffer:
        return Buffer(piece, self)

    def _is_free_again(self, piece: Piece) -> bool:
        """Let what uses a piece next come behind all that used it; whether that could be done."""
        users: set[Queue] = piece[2].users
        try:
            self.behind(users)
        except RuntimeCheckError:
            return False  # the device failed, and says so where it is asked
        users.clear()
        return True

    def new_memory(self, nbytes: int) -> tuple[Any, int]:
        """Memory that no pool has; it has no address. Raises: RuntimeCheckError (`out-of-memory`)."""
        try:
            if nbytes < 0:
                raise MemoryError
            handle = self._ask(self.runtime.allocate, max(nbytes, ALIGNMENT), self.raw)
        except MemoryError:
            message = f"cannot allocate {nbytes} bytes on {self.device}"
            raise RuntimeCheckError("out-of-memory", message) from None
        free = partial(self.runtime.free, handle, self.raw) if self._frees else None
        return _Memory(handle, free), 0

    def storage(self, nbytes: int) -> tuple[Any, int]:
        """A buffer for the plan of a function."""
        return self.pool.storage(nbytes)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """An uninitialised tensor in memory of its own. Raises: RuntimeCheckError (`out-of-memory`)."""
        return self._empty(shape, dtype)

    def _empty(self, shape: tuple[int, ...], dtype: str) -> DeviceTensor:
        nbytes = math.prod(shape) * dtypes.info(dtype).itemsize
        if not nbytes:
            require_countable(shape, dtype)
        buffer, _ = self.pool.allocate(nbytes)
        assert isinstance(buffer, Buffer)
        return DeviceTensor(buffer, 0, shape, dtype)

    def owns(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of this queue."""
        return isinstance(tensor, DeviceTensor) and tensor.queue is self

    # Copies

    def take(self, value: Any) -> Tensor:
        """A tensor of any device, in this queue's memory: itself if it lives there, else a copy.

        Raises: RuntimeCheckError (`check`) for a value that is none.
        """
        if value.__class__ is DeviceTensor:
            if value.queue is self:
                return value
            if value.queue.runtime is not self.runtime:
                return self.upload(value.to_host())
            # What its own queue does with it next comes behind the copy.
            self.behind({value.queue, value.buffer.queue, *value.buffer.users})
            copied = self.copy(value)
            value.queue.behind({self})
            return copied
        if not isinstance(value, Tensor):
            raise RuntimeCheckError("check", f"expected a tensor, got {describe(value)}")
        return self.upload(value)

    def enter(self, value: Tensor) -> Tensor:
        """A tensor of a device that a caller passes: its memory is shared where it is this device's."""
        if not isinstance(value, DeviceTensor):
            return self.upload(value)
        if value.queue is self:
            return value
        if value.queue.runtime is not self.runtime:
            return self.upload(value.to_host())
        self.behind({value.queue, value.buffer.queue, *value.buffer.users})
        value.buffer.users |= {self, value.queue}
        seen = DeviceTensor(
            value.buffer, value.offset, value.shape, value.dtype, self, value.constant
        )
        seen.owner = value.owner
        return seen

    def upload(self, tensor: Tensor, constant: bool = False) -> DeviceTensor:
        """A tensor of the host, copied here."""
        made = self._empty(Shape(tensor.shape), tensor.dtype)
        made.constant = constant
        if tensor.nbytes:
            array: Any = tensor.numpy().reshape(-1).view(np.uint8)
            handle, data = made.buffer.handle, memoryview(array)
            self._ask(self.runtime.upload, self.raw, handle, made.offset, data)
        return made

    def copy(self, tensor: DeviceTensor) -> DeviceTensor:
        """A tensor of this device, in memory of its own."""
        made = self._empty(tensor.shape, tensor.dtype)
        if tensor.nbytes:
            source, target = tensor.buffer.handle, made.buffer.handle
            self._ask(self.runtime.copy, self.raw, source, tensor.offset, target, 0, tensor.nbytes)
        return made

    def download(self, tensor: DeviceTensor) -> Array:
        """The numbers of a tensor, when they are there. Raises: RuntimeCheckError (`device-failed`)."""
        self.behind({tensor.queue, tensor.buffer.queue, *tensor.buffer.users})
        array: Any = np.empty(tensor.nbytes, np.uint8)
        if tensor.nbytes:
            place = tensor.buffer.handle, tensor.offset
            self._ask(self.runtime.download, self.raw, *place, memoryview(array))
        self.settle()
        found: Array = array.view(dtypes.to_numpy(tensor.dtype)).reshape(tensor.shape)
        return found
