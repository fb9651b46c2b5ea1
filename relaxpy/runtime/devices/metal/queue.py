"""A queue of Metal: work is recorded into a command buffer, which is committed when somebody waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from relaxpy.runtime.devices.base import DeviceError

_TOGETHER = 64
"""The most launches in a command buffer, so that the device begins before the host has recorded everything."""


@dataclass(frozen=True, slots=True)
class Frameworks:
    """The modules of PyObjC that Metal is called through."""

    metal: Any
    objc: Any

    @contextmanager
    def calls(self) -> Iterator[None]:
        """For a block of calls. What they make for the caller is released at its end, not when the thread ends.

        Raises: DeviceError.
        """
        try:
            with self.objc.autorelease_pool():
                yield
        except self.objc.error as error:
            raise DeviceError(f"Metal: {error}") from error


class WorkQueue:
    """An `MTLCommandQueue`, and the command buffer that is being recorded. Its methods lock it; none holds the locks of
    two queues."""

    _encoder: Any = None
    """The encoder that records launches or copies now."""

    def __init__(self, device: Any, frameworks: Frameworks) -> None:
        """Raises: DeviceError."""
        self._frameworks = frameworks
        self._lock = Lock()
        with frameworks.calls():
            self._raw = device.newCommandQueue()
            self._event = device.newEvent()
        """Signalled with increasing numbers for the queues that wait for this one."""
        if self._raw is None or self._event is None:
            raise DeviceError("Metal has no more queues")
        self._signals = 0
        self._commands: Any = None
        self._copies = False
        """Is the encoder one for copies?"""
        self._launches = 0
        """In the command buffer that is being recorded."""
        self._committed: deque[Any] = deque()
        """Command buffers whose end was not seen yet."""
        self._failure = ""
        """The first failure since errors were last asked for."""

    def __del__(self) -> None:
        """Metal ends the process when an encoder goes that has not ended."""
        if self._encoder is not None:
            self._encoder.endEncoding()

    def launch(
        self, pipeline: Any, memory: Sequence[Any], numbers: bytes, groups: Any, threads: Any
    ) -> None:
        """Record a launch: buffers, then the numbers behind them."""
        with self._lock, self._frameworks.calls():
            encoder = self._recording(copies=False)
            encoder.setComputePipelineState_(pipeline)
            for place, buffer in enumerate(memory):
                encoder.setBuffer_offset_atIndex_(buffer, 0, place)
            if numbers:
                encoder.setBytes_length_atIndex_(numbers, len(numbers), len(memory))
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(groups, threads)
            self._launches += 1
            if self._launches >= _TOGETHER:
                self._commit()

    def copy(
        self, source: Any, source_offset: int, target: Any, target_offset: int, nbytes: int
    ) -> None:
        """Record a copy between buffers. Offsets and size are multiples of 4, as macOS requires."""
        with self._lock, self._frameworks.calls():
            encoder = self._recording(copies=True)
            encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
                source, source_offset, target, target_offset, nbytes
            )

    def signal(self) -> tuple[Any, int]:
        """An event, and the number that it has when all work so far is done."""
        with self._lock, self._frameworks.calls():
            commands = self._between_encoders()
            self._signals += 1
            commands.encodeSignalEvent_value_(self._event, self._signals)
            self._commit()
            return self._event, self._signals

    def follow(self, event: Any, value: int) -> None:
        """Work from now on starts after the event has the number."""
        with self._lock, self._frameworks.calls():
            self._between_encoders().encodeWaitForEvent_value_(event, value)

    def finish(self) -> None:
        """Wait until all work so far is done."""
        with self._frameworks.calls():
            with self._lock:
                self._commit()
                last = self._committed[-1] if self._committed else None
            if last is not None:
                last.waitUntilCompleted()  # without the lock: other threads go on
            with self._lock:
                self._note_ended()

    def failure(self) -> str:
        """The first failure of work that has ended since this was last called, or ""."""
        with self._lock:
            found, self._failure = self._failure, ""
        return found

    # With the lock held

    def _recording(self, copies: bool) -> Any:
        """The encoder of launches, or of copies; one of them is open at a time."""
        if self._encoder is None or self._copies != copies:
            commands = self._between_encoders()
            self._encoder = (
                commands.blitCommandEncoder() if copies else commands.computeCommandEncoder()
            )
            self._copies = copies
            if self._encoder is None:
                raise DeviceError("Metal cannot record more work")
        return self._encoder

    def _between_encoders(self) -> Any:
        """The command buffer, with no encoder open."""
        if self._encoder is not None:
            self._encoder.endEncoding()
            self._encoder = None
        if self._commands is None:
            # It keeps what is recorded into it, buffers too, until it has run.
            self._commands = self._raw.commandBuffer()
            if self._commands is None:
                raise DeviceError("Metal cannot record more work")
        return self._commands

    def _commit(self) -> None:
        if self._commands is None:
            return
        commands = self._between_encoders()
        self._commands, self._launches = None, 0
        commands.commit()
        self._committed.append(commands)
        self._note_ended()

    def _note_ended(self) -> None:
        """Forget command buffers that have ended, and note the first failure. They end in order."""
        metal = self._frameworks.metal
        failed = metal.MTLCommandBufferStatusError
        while self._committed:
            status = self._committed[0].status()
            if status not in (metal.MTLCommandBufferStatusCompleted, failed):
                return
            commands = self._committed.popleft()
            if status == failed:
                self._failure = self._failure or reason(commands.error())


def reason(error: Any) -> str:
    """The message of an `NSError` in one line; None is one without."""
    text = "" if error is None else str(error.localizedDescription())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line]
    return (telling or lines or ["Metal gave no reason"])[0]
