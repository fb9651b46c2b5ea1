"""Copies between the host and a CUDA device, through pinned memory.

The device copies from and to *pinned* memory only, while the host goes on. Memory of numpy is not pinned: a copy from
it would wait for the stream. So data passes through pinned buffers of `SIZE` bytes each, at most `COUNT` of them,
allocated when they are needed. The event of a buffer tells when the device is done with it.
"""

from __future__ import annotations

import ctypes
from collections import deque
from threading import Condition
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
        self._given = Condition()
        """A buffer was given back."""
        self._made = 0
        self._free: deque[_Pinned] = deque()
        """Buffers that no thread has, in the order in which the device is done with them."""

    def upload(self, stream: Stream, target: int, data: memoryview) -> None:
        """Enqueues a copy to the address `target`. `data` may change afterwards. The context is current."""
        cu = self._context.cu
        source = np.frombuffer(data, np.uint8)
        for start in range(0, source.size, SIZE):
            part = source[start : start + SIZE]
            buffer = self._take()
            try:
                ask(cu.cuEventSynchronize, buffer.event)
                buffer.array[: part.size] = part
                ask(cu.cuMemcpyHtoDAsync, target + start, buffer.address, part.size, stream.handle)
                ask(cu.cuEventRecord, buffer.event, stream.handle)
            finally:
                self._give(buffer)

    def download(self, stream: Stream, source: int, data: memoryview) -> None:
        """Copies from the address `source`, behind the work of the stream, and waits for that. The context is
        current."""
        cu = self._context.cu
        target = np.frombuffer(data, np.uint8)
        coming: deque[tuple[_Pinned, Any]] = deque()

        def arrive() -> _Pinned:
            """Waits for the oldest part, and returns its buffer."""
            buffer, part = coming[0]
            ask(cu.cuEventSynchronize, buffer.event)
            part[:] = buffer.array[: part.size]
            return coming.popleft()[0]

        try:
            for start in range(0, target.size, SIZE):
                part = target[start : start + SIZE]
                spare = self._take_now() if 0 < len(coming) < AHEAD else None
                buffer = spare or (arrive() if coming else self._take())
                coming.append((buffer, part))
                ask(cu.cuEventSynchronize, buffer.event)
                ask(cu.cuMemcpyDtoHAsync, buffer.address, source + start, part.size, stream.handle)
                ask(cu.cuEventRecord, buffer.event, stream.handle)
            while coming:
                self._give(arrive())
        finally:
            for buffer, _ in coming:  # after an error
                self._give(buffer)

    def _take(self) -> _Pinned:
        """A buffer for this thread alone, after waiting for other threads if they have all. The device may still use
        it, until its event."""
        with self._given:
            while (found := self._available()) is None:
                self._given.wait()
            return found

    def _take_now(self) -> _Pinned | None:
        """The same without waiting."""
        with self._given:
            return self._available()

    def _available(self) -> _Pinned | None:
        """The oldest buffer if the device is done with it or there may be no more, else a new one; None where threads
        have all."""
        if self._free and (self._made == COUNT or self._is_done(self._free[0])):
            return self._free.popleft()
        if self._made == COUNT:
            return None
        made = _Pinned(self._context)
        self._made += 1
        return made

    def _give(self, buffer: _Pinned) -> None:
        with self._given:
            self._free.append(buffer)
            self._given.notify()

    def _is_done(self, buffer: _Pinned) -> bool:
        (status,) = self._context.cu.cuEventQuery(buffer.event)
        return not status
