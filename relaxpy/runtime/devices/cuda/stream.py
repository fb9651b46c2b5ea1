"""Streams of a CUDA device, and graphs: the queues of the machine and recorded work."""

from __future__ import annotations

from typing import Any

from relaxpy.runtime.devices.base import DeviceError
from relaxpy.runtime.devices.cuda.driver import Context, ask

LEGACY, PER_THREAD = 1, 2
"""The driver's numbers of its default streams, which are DLPack's as well."""


class Stream:
    """A stream, with an event for those that wait for it."""

    __slots__ = ("__weakref__", "address", "event", "handle", "is_lasting")

    def __init__(self, context: Context, foreign: int | None = None) -> None:
        """Opens a stream, or wraps a `foreign` one of another library, by its address. The context is current."""
        cu = context.cu
        if foreign is None:
            # Without implicit waits for the default stream, which is another library's.
            self.handle: Any = ask(cu.cuStreamCreate, cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
            context.finally_do(self, cu.cuStreamDestroy, self.handle)
        else:
            self.handle = cu.CUstream(foreign)
        self.address = int(self.handle)
        self.is_lasting = foreign in (None, LEGACY)
        """Whether its handle is valid at any time, in any thread. Another library may destroy a stream of its own, and
        then the driver ends the process where the handle is used."""
        self.event: Any = new_event(context, self)

    def record(self, context: Context) -> None:
        """Record the event behind the stream's present work; behind all work of the context if the stream may be gone.
        The context is current."""
        if self.is_lasting:
            ask(context.cu.cuEventRecord, self.event, self.handle)
        else:
            context.record_all(self.event)

    def synchronise(self, context: Context) -> None:
        """Wait for the stream's work, or if it may be gone, for that before `record`. The context is current."""
        if self.is_lasting:
            ask(context.cu.cuStreamSynchronize, self.handle)
        else:
            ask(context.cu.cuEventSynchronize, self.event)


class Stopwatch:
    """Two events with time stamps in a stream: the time of the device between them."""

    __slots__ = ("__weakref__", "_events", "_stream")

    def __init__(self, context: Context, stream: Stream) -> None:
        """The context is current."""
        self._stream = stream
        self._events = [new_event(context, self, timed=True) for _ in range(2)]

    def start(self, context: Context) -> None:
        """Put the first event into the stream. The context is current."""
        ask(context.cu.cuEventRecord, self._events[0], self._stream.handle)

    def stop(self, context: Context) -> float:
        """Put the second event into the stream, and wait for it. Returns the seconds between them. The context is
        current."""
        cu, (first, last) = context.cu, self._events
        ask(cu.cuEventRecord, last, self._stream.handle)
        ask(cu.cuEventSynchronize, last)
        milliseconds: float = ask(cu.cuEventElapsedTime, first, last)
        return milliseconds / 1e3


def new_event(context: Context, owner: object, timed: bool = False) -> Any:
    """An event, without time stamps unless it is `timed`, destroyed when `owner` is gone."""
    cu = context.cu
    flags = cu.CUevent_flags
    kind = flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING
    event: Any = ask(cu.cuEventCreate, kind)
    context.finally_do(owner, cu.cuEventDestroy, event)
    return event


class RecordedGraph:
    """Work that was recorded from a stream."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, context: Context, graph: Any) -> None:
        """Instantiates the driver's `graph`, and destroys it. The context is current."""
        cu = context.cu
        try:
            self.handle: Any = ask(cu.cuGraphInstantiate, graph, 0)
        finally:
            cu.cuGraphDestroy(graph)
        # The driver frees a graph that is running when it is done.
        context.finally_do(self, cu.cuGraphExecDestroy, self.handle)


def begin(context: Context, stream: Stream) -> None:
    """Starts to record the work of a stream."""
    cu = context.cu
    # Relaxed: other threads may allocate memory and load modules meanwhile.
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    ask(cu.cuStreamBeginCapture, stream.handle, mode)


def end(context: Context, stream: Stream) -> RecordedGraph:
    """Ends the recording. Raises: DeviceError where it cannot be replayed."""
    graph = ask(context.cu.cuStreamEndCapture, stream.handle)
    if not int(graph):
        raise DeviceError("the recording has no graph")
    return RecordedGraph(context, graph)
