"""A queue of a device with its memory: the part of a device that the calls of a machine use.

Memory without references is reused by the next allocation of about the same size, even if work in the queue still uses
it: work of the same queue runs in order. A buffer records the other queues that use it, and before its memory is
reused, its own queue waits for them.

Any number of threads may use a queue, and tensors of other queues. A failure is reported where errors are asked for,
once for each queue. A thread that was waiting for data when it happened is told as well, and so is a reader of another
queue that has waited for the failed one.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, ClassVar, TypeVar

import numpy as np

from relaxpy.errors import RuntimeCheckError
from relaxpy.half_bytes import as_bytes
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.device import Device
from relaxpy.runtime.devices.base import DeviceError, DeviceRuntime, RawQueue
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.patterns import describe
from relaxpy.runtime.pool import Block, MemoryPool, Piece
from relaxpy.runtime.tensor import ALIGNMENT, Array, Shape, Tensor, require_countable

T = TypeVar("T")
MOST_RETURNED = 64
"""The most pieces of borrowed memory that a queue keeps until errors are next asked for."""


class _Awaited:
    """Records that a queue has waited for another queue, and how many failures that queue had noted then."""

    __slots__ = ("failures",)

    def __init__(self, failures: int) -> None:
        self.failures = failures


class _Memory:
    """Memory of a device, freed with the last reference."""

    __slots__ = ("__weakref__", "handle", "users")

    def __init__(self, handle: Any, free: Callable[[], None] | None) -> None:
        self.handle = handle
        self.users: set[Queue] = set()
        """Other queues that use it, besides its own."""
        if free is not None:
            weakref.finalize(self, free).atexit = False


class Buffer(Block):
    """A buffer in use. It returns to its queue's pool when the last reference is gone."""

    __slots__ = ("handle", "queue", "users")

    def __init__(self, piece: Piece, queue: Queue) -> None:
        super().__init__(piece)
        self.queue = queue
        self.handle: Any = piece[2].handle
        """The memory in the type of its `DeviceRuntime`."""
        self.users: set[Queue] = piece[2].users
        """Other queues that use it."""


class Queue:
    """A queue of a device and its memory."""

    is_host: ClassVar[bool] = False
    """Whether its tensors are in this process's memory."""

    def __init__(self, runtime: DeviceRuntime, raw: RawQueue | None = None) -> None:
        """Opens a new queue, or wraps one that another library has opened."""
        self.runtime = runtime
        self.device = Device(runtime.kind, runtime.index)
        self.raw = self._ask(runtime.open_queue) if raw is None else raw
        self._frees = type(runtime).free is not DeviceRuntime.free
        self._asking = Lock()
        """Held while the runtime is asked for errors, so that each of two threads sees the errors the other
        collects."""
        self._failures = 0
        """The number of failures so far."""
        self._untold = ""
        """The last failure, if it was not reported through this queue yet."""
        self._last = ""
        """The last failure that was reported."""
        self._returned: deque[tuple[object, set[Queue]]] = deque()
        """Borrowed memory without references, and the queues that used it. It is given back when they are done."""
        self._noting = Lock()
        self._awaited: dict[Queue, _Awaited] = {}
        """Queues that this one has waited for since their errors were last asked for."""
        self.pool = MemoryPool(make=self.new_memory, block=self._buffer, again=self._is_free_again)

    def _ask(self, what: Callable[..., T], *args: Any) -> T:
        """Calls the runtime. Raises: RuntimeCheckError (`device-failed`)."""
        try:
            return what(*args)
        except DeviceError as error:
            raise RuntimeCheckError("device-failed", f"{self.device}: {error}") from error

    # Order

    def synchronise(self) -> None:
        """Waits until all work is done. Raises: RuntimeCheckError (`device-failed`) for failed work."""
        self._ask_for_errors()
        self._tell(self._failures)

    def _ask_for_errors(self) -> None:
        """Waits for all work and records failures."""
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
        """Raises: RuntimeCheckError (`device-failed`) for a failure that was not reported yet, and for one beyond the
        first `failures`, which another thread may have been told of meanwhile."""
        message, self._untold = self._untold, ""
        self._last = message or self._last
        if message or self._failures > failures:
            raise RuntimeCheckError("device-failed", self._last)

    def behind(self, others: set[Queue]) -> None:
        """Work of this queue from now on starts after the present work of the others."""
        for other in others:
            if other is not self:
                failures = other._failures
                self._ask(self.runtime.wait, self.raw, other.raw)
                with self._noting:
                    before = self._awaited.get(other)
                    self._awaited[other] = _Awaited(failures if before is None else before.failures)

    def settle(self, failures: int | None = None) -> None:
        """Asks for the errors of all work that a result may depend on: of this queue, of the queues it waited for, and
        so on. `failures` is the number of failures at the time when the result was requested (None: now).

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
        """Removes the record of a wait whose errors were asked for, unless the queue was waited for again meanwhile."""
        with self._noting:
            if self._awaited.get(source) is awaited:
                del self._awaited[source]

    # Memory

    def _buffer(self, piece: Piece) -> Buffer:
        return Buffer(piece, self)

    def _is_free_again(self, piece: Piece) -> bool:
        """Makes this queue wait for all queues that used a piece, so that it can be reused. Returns whether that
        succeeded."""
        users: set[Queue] = piece[2].users
        try:
            self.behind(users)
        except RuntimeCheckError:
            return False  # the failure is reported when errors are asked for
        users.clear()
        return True

    def new_memory(self, nbytes: int) -> tuple[Any, int]:
        """Allocates memory from the device, not from the pool. It has no address. Raises: RuntimeCheckError
        (`out-of-memory`)."""
        try:
            if nbytes < 0:
                raise MemoryError
            handle = self._ask(self.runtime.allocate, max(nbytes, ALIGNMENT), self.raw)
        except MemoryError as error:
            left = f": {error}" if str(error) else ""
            message = f"cannot allocate {nbytes} bytes on {self.device}{left}"
            raise RuntimeCheckError("out-of-memory", message) from None
        free = partial(self.runtime.free, handle, self.raw) if self._frees else None
        return _Memory(handle, free), 0

    def storage(self, nbytes: int) -> tuple[Any, int]:
        """Allocates a buffer for a storage of a frame."""
        return self.pool.storage(nbytes)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """An uninitialised tensor that owns its memory. Raises: RuntimeCheckError (`out-of-memory`)."""
        return self.new(shape, dtype)

    def new(self, shape: tuple[int, ...], dtype: str) -> DeviceTensor:
        """Like `empty`, on a device other than the host."""
        nbytes = dtypes.nbytes(dtype, shape)
        if not nbytes:
            require_countable(shape, dtype)
        buffer, _ = self.pool.allocate(nbytes)
        assert isinstance(buffer, Buffer)
        return DeviceTensor(buffer, 0, shape, dtype)

    def borrowed(self, handle: Any, nbytes: int, owner: object) -> Buffer:
        """A buffer over memory that `owner` keeps alive. It is given back when errors are next asked for after the last
        reference to the buffer is gone."""
        if len(self._returned) >= MOST_RETURNED:
            self._ask_for_errors()
        memory = _Memory(handle, None)
        buffer = Buffer((nbytes, 0, memory, 0), self)
        weakref.finalize(buffer, self._returned.append, (owner, memory.users)).atexit = False
        return buffer

    def owns(self, tensor: Tensor) -> bool:
        """Whether a tensor belongs to this queue."""
        return isinstance(tensor, DeviceTensor) and tensor.queue is self

    # Copies

    def take(self, value: Any) -> Tensor:
        """A tensor of any device in this queue's memory: the tensor itself if it is there, else a copy.

        Raises: RuntimeCheckError (`check`) for a value that is none.
        """
        if value.__class__ is DeviceTensor:
            if value.queue is self:
                return value
            if value.queue.runtime is not self.runtime:
                return self.upload(value.to_host())
            # Later work of its own queue starts after the copy.
            self.behind({value.queue, value.buffer.queue, *value.buffer.users})
            copied = self.copy(value)
            value.queue.behind({self})
            return copied
        if not isinstance(value, Tensor):
            raise RuntimeCheckError("check", f"expected a tensor, got {describe(value)}")
        return self.upload(value)

    def enter(self, value: Tensor) -> Tensor:
        """A device tensor as an argument from the caller. Its memory is shared if it is on this queue's device."""
        if not isinstance(value, DeviceTensor):
            return self.upload(value)
        if value.queue is self:
            return value
        if value.queue.runtime is not self.runtime:
            return self.upload(value.to_host())
        self.behind({value.queue, value.buffer.queue, *value.buffer.users})
        return self.seen(value)

    def seen(self, value: DeviceTensor) -> DeviceTensor:
        """A device tensor for this queue over the same buffer. The queue must wait already for the work that produced
        it."""
        if value.queue is self:
            return value
        value.buffer.users |= {self, value.queue}
        seen = DeviceTensor(
            value.buffer, value.offset, value.shape, value.dtype, self, value.constant
        )
        seen.owner = value.owner
        return seen

    def upload(self, tensor: Tensor, constant: bool = False) -> DeviceTensor:
        """A copy of a host tensor in this queue's memory."""
        made = self.new(Shape(tensor.shape), tensor.dtype)
        made.constant = constant
        if tensor.nbytes:
            array: Any = as_bytes(tensor.numpy())
            handle, data = made.buffer.handle, memoryview(array)
            self._ask(self.runtime.upload, self.raw, handle, made.offset, data)
        return made

    def copy(self, tensor: DeviceTensor) -> DeviceTensor:
        """A copy of a tensor of this device."""
        made = self.new(tensor.shape, tensor.dtype)
        if tensor.nbytes:
            source, target = tensor.buffer.handle, made.buffer.handle
            self._ask(self.runtime.copy, self.raw, source, tensor.offset, target, 0, tensor.nbytes)
        return made

    def download(self, tensor: DeviceTensor) -> Array:
        """Waits for a tensor and copies it to a numpy array. Raises: RuntimeCheckError (`device-failed`)."""
        self.behind({tensor.queue, tensor.buffer.queue, *tensor.buffer.users})
        failures = self._failures
        array: Any = np.empty(tensor.nbytes, np.uint8)
        if tensor.nbytes:
            place = tensor.buffer.handle, tensor.offset
            self._ask(self.runtime.download, self.raw, *place, memoryview(array))
        self.settle(failures)
        return dtypes.from_bytes(array, tensor.dtype, tensor.shape)


def _spoilt(waits: Sequence[tuple[Queue, Queue, _Awaited]]) -> dict[Queue, Queue]:
    """Queues that waited for a failed queue, directly or indirectly, each with one queue that it got the failure
    from."""
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
