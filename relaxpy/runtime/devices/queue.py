"""A queue of a device with the memory that belongs to it: what a call has of each of its machine's slots.

Memory that nothing refers to any more is given to the next that needs as much, while work in the queue may use it
still: what is put into the same queue comes behind. A tensor that another queue gets to use is remembered in its
buffer; before the memory is used again, its own queue waits for that one.

Any number of threads may use a queue, and of each other's tensors. What failed is told where it is asked for, once for
each queue: whoever waits for numbers meanwhile is told as well, and so is who reads from a queue that has waited for
the one that failed.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, ClassVar, TypeVar

import numpy as np

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.device import Device
from relaxpy.runtime.devices.base import DeviceError, DeviceRuntime, RawQueue
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.patterns import describe
from relaxpy.runtime.pool import Block, MemoryPool, Piece
from relaxpy.runtime.tensor import ALIGNMENT, Array, Shape, Tensor, require_countable

T = TypeVar("T")
MOST_RETURNED = 64
"""Pieces of others' memory that a queue keeps until it is asked for errors."""


class _Awaited:
    """That a queue has waited for another one, of which so many errors had been told then."""

    __slots__ = ("failures",)

    def __init__(self, failures: int) -> None:
        self.failures = failures


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

    def __init__(self, runtime: DeviceRuntime, raw: RawQueue | None = None) -> None:
        """A new queue, or one that another library has opened."""
        self.runtime = runtime
        self.device = Device(runtime.kind, runtime.index)
        self.raw = self._ask(runtime.open_queue) if raw is None else raw
        self._frees = type(runtime).free is not DeviceRuntime.free
        self._asking = Lock()
        """Held while the runtime is asked for errors, so that two threads do not miss each other's."""
        self._failures = 0
        """How many errors were noted."""
        self._untold = ""
        """The last of them, if nobody was told who asked this queue."""
        self._last = ""
        """The last that somebody was told of."""
        self._returned: deque[tuple[object, set[Queue]]] = deque()
        """Memory of others that nothing refers to any more, and the queues that used it: given back when they are done.
        """
        self._noting = Lock()
        self._awaited: dict[Queue, _Awaited] = {}
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
        self._ask_for_errors()
        self._tell(self._failures)

    def _ask_for_errors(self) -> None:
        """Wait for all work, and note what failed."""
        returned: list[tuple[object, set[Queue]]] = []  # goes when this is done, with no lock held
        with self._asking:
            try:
                while self._returned:
                    returned.append(self._returned.popleft())
                    self.behind(returned[-1][1])
                self._ask(self.runtime.synchronise, self.raw)
            except RuntimeCheckError as error:
                self._failed(error.message)

    def _failed(self, message: str) -> None:
        self._failures += 1
        self._untold = message

    def _tell(self, failures: int) -> None:
        """Raises: RuntimeCheckError (`device-failed`) for an error that nobody was told of who asked this queue, and
        for one that was noted behind the first so many, since somebody else may have been told of it meanwhile."""
        message, self._untold = self._untold, ""
        self._last = message or self._last
        if message or self._failures > failures:
            raise RuntimeCheckError("device-failed", self._last)

    def behind(self, others: set[Queue]) -> None:
        """What comes from here on comes behind the work that these have now."""
        for other in others:
            if other is not self:
                failures = other._failures
                self._ask(self.runtime.wait, self.raw, other.raw)
                with self._noting:
                    before = self._awaited.get(other)
                    self._awaited[other] = _Awaited(failures if before is None else before.failures)

    def settle(self, failures: int | None = None) -> None:
        """Ask for the errors of all work that a result may come from: of this queue, and of those that it waited for,
        and so on. `failures` is how many were noted when the result was asked for (None: it is now).

        Raises: RuntimeCheckError (`device-failed`).
        """
        failures = self._failures if failures is None else failures
        reached: list[Queue] = [self]
        waits: list[tuple[Queue, Queue, _Awaited]] = []
        for queue in reached:
            for source, awaited in list(queue._awaited.items()):
                waits.append((queue, source, awaited))
                if source not in reached:
                    reached.append(source)
        for queue in reached:
            queue._ask_for_errors()
        for queue, source in _spoilt(waits).items():
            queue._failed(source._untold or source._last)
            for waiting, other, awaited in waits:
                if waiting is queue:
                    queue._forget(other, awaited)
        for waiting, other, awaited in waits:
            if waiting is self:
                self._forget(other, awaited)
        self._tell(failures)

    def _forget(self, source: Queue, awaited: _Awaited) -> None:
        """The errors of a queue were asked for; those since it was waited for again, if it was, were not."""
        with self._noting:
            if self._awaited.get(source) is awaited:
                del self._awaited[source]

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
        return self.new(shape, dtype)

    def new(self, shape: tuple[int, ...], dtype: str) -> DeviceTensor:
        """As `empty`, on a device that is not the host."""
        nbytes = math.prod(shape) * dtypes.info(dtype).itemsize
        if not nbytes:
            require_countable(shape, dtype)
        buffer, _ = self.pool.allocate(nbytes)
        assert isinstance(buffer, Buffer)
        return DeviceTensor(buffer, 0, shape, dtype)

    def borrowed(self, handle: Any, nbytes: int, owner: object) -> Buffer:
        """A buffer over memory that `owner` keeps, which this queue and others use: it is given back at the first
        question for errors when nothing refers to the buffer."""
        if len(self._returned) >= MOST_RETURNED:
            self._ask_for_errors()
        memory = _Memory(handle, None)
        buffer = Buffer((nbytes, 0, memory), self)
        weakref.finalize(buffer, self._returned.append, (owner, memory.users)).atexit = False
        return buffer

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
        return self.seen(value)

    def seen(self, value: DeviceTensor) -> DeviceTensor:
        """A tensor of the device for work of this queue, which comes behind what made it already."""
        if value.queue is self:
            return value
        value.buffer.users |= {self, value.queue}
        seen = DeviceTensor(
            value.buffer, value.offset, value.shape, value.dtype, self, value.constant
        )
        seen.owner = value.owner
        return seen

    def upload(self, tensor: Tensor, constant: bool = False) -> DeviceTensor:
        """A tensor of the host, copied here."""
        made = self.new(Shape(tensor.shape), tensor.dtype)
        made.constant = constant
        if tensor.nbytes:
            array: Any = tensor.numpy().reshape(-1).view(np.uint8)
            handle, data = made.buffer.handle, memoryview(array)
            self._ask(self.runtime.upload, self.raw, handle, made.offset, data)
        return made

    def copy(self, tensor: DeviceTensor) -> DeviceTensor:
        """A tensor of this device, in memory of its own."""
        made = self.new(tensor.shape, tensor.dtype)
        if tensor.nbytes:
            source, target = tensor.buffer.handle, made.buffer.handle
            self._ask(self.runtime.copy, self.raw, source, tensor.offset, target, 0, tensor.nbytes)
        return made

    def download(self, tensor: DeviceTensor) -> Array:
        """The numbers of a tensor, when they are there. Raises: RuntimeCheckError (`device-failed`)."""
        self.behind({tensor.queue, tensor.buffer.queue, *tensor.buffer.users})
        failures = self._failures
        array: Any = np.empty(tensor.nbytes, np.uint8)
        if tensor.nbytes:
            place = tensor.buffer.handle, tensor.offset
            self._ask(self.runtime.download, self.raw, *place, memoryview(array))
        self.settle(failures)
        found: Array = array.view(dtypes.to_numpy(tensor.dtype)).reshape(tensor.shape)
        return found


def _spoilt(waits: Sequence[tuple[Queue, Queue, _Awaited]]) -> dict[Queue, Queue]:
    """Queues whose work came behind work of others that failed, each with one of these."""
    found: dict[Queue, Queue] = {}
    while True:
        more = {
            queue: source
            for queue, source, awaited in waits
            if queue not in found and (source in found or source._failures > awaited.failures)
        }
        if not more:
            return found
        found |= more
