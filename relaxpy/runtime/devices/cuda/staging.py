"""Copies between the host and a CUDA device, through pinned memory.

The device copies from and to *pinned* memory only, while the host goes on. Memory of numpy is not pinned: a copy from
it would wait for the stream. So data passes through pinned buffers of `SIZE` bytes each, at most `COUNT` of them,
allocated when they are needed. The event of a buffer tells when the device is done with it.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Semaphore
from typing import Any

import numpy as np

from relaxpy.runtime.devices.cuda.driver import Context, ask
from relaxpy.runtime.devices.cuda.stream import Stream, new_event

SIZE = 1 << 20
"""Bytes of a buffer: a copy of so many takes longer than to ask for it."""
COUNT = 16
"""The most buffers of a device."""
AHEAD = 4
"""The most buffers that one download fills at the same time."""


class _Pinned:
    """A pinned buffer."""

    __slots__ = ("__weakref__", "address", "array", "event")

    def __init__(self, context: Context) -> None:
        cu = context.cu
        self.address = int(ask(cu.cuMemHostAlloc, SIZE, 0))
        context.finally_do(self, cu.cuMemFreeHost, self.address)
        self.array = np.ctypeslib.as_array((ctypes.c_uint8 * SIZE).from_address(self.address))
        self.event = new_event(context, self)


class Staging:
    """The pinned buffers of a device. Several threads may use them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._left = Semaphore(COUNT)
        self._lock = Lock()
        self._made = 0
        self._free: deque[_Pinned] = deque()
        """Buffers that nobody holds, in the order in which the device is done with them."""

    def upload(self, stream: Stream, target: int, data: memoryview) -> None:
        """Enqueues a copy to the address `target`. `data` may change afterwards. The context is current."""
        cu = self._context.cu
        source = np.frombuffer(data, np.uint8)
        for start in range(0, source.size, SIZE):
            part = source[start : start + SIZE]
            with self._held() as (buffer,):
                ask(cu.cuEventSynchronize, buffer.event)
                buffer.array[: part.size] = part
                ask(cu.cuMemcpyHtoDAsync, target + start, buffer.address, part.size, stream.handle)
                ask(cu.cuEventRecord, buffer.event, stream.handle)

    def download(self, stream: Stream, source: int, data: memoryview) -> None:
        """Copies from the address `source`, behind the work of the stream, and waits for that."""
        cu = self._context.cu
        target = np.frombuffer(data, np.uint8)
        count = min(AHEAD, -(-target.size // SIZE))
        coming: deque[tuple[_Pinned, Any]] = deque()

        def arrive() -> None:
            buffer, part = coming.popleft()
            ask(cu.cuEventSynchronize, buffer.event)
            part[:] = buffer.array[: part.size]

        with self._held(count) as buffers:
            for number, start in enumerate(range(0, target.size, SIZE)):
                part = target[start : start + SIZE]
                if len(coming) == len(buffers):
                    arrive()
                buffer = buffers[number % len(buffers)]
                ask(cu.cuEventSynchronize, buffer.event)
                ask(cu.cuMemcpyDtoHAsync, buffer.address, source + start, part.size, stream.handle)
                ask(cu.cuEventRecord, buffer.event, stream.handle)
                coming.append((buffer, part))
            while coming:
                arrive()

    @contextmanager
    def _held(self, most: int = 1) -> Iterator[list[_Pinned]]:
        """Buffers for this thread alone: one, after waiting for other threads if need be, and up to `most` if they are
        there. The device may still use them, until their events."""
        held: list[_Pinned] = []
        try:
            self._left.acquire()
            held.append(self._taken())
            while len(held) < most and self._left.acquire(blocking=False):
                held.append(self._taken())
            yield held
        finally:
            self._free.extend(held)
            for _ in held:
                self._left.release()

    def _taken(self) -> _Pinned:
        """The oldest free buffer if the device is done with it or there may be no more, else a new one."""
        try:
            with self._lock:
                if self._made == COUNT or (self._free and self._is_done(self._free[0])):
                    return self._free.popleft()
                made = _Pinned(self._context)
                self._made += 1
                return made
        except BaseException:
            self._left.release()
            raise

    def _is_done(self, buffer: _Pinned) -> bool:
        (status,) = self._context.cu.cuEventQuery(buffer.event)
        return not status
