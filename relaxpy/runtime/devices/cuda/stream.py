"""Streams of a CUDA device, and graphs: the queues of the machine and recorded work."""

from __future__ import annotations

from typing import Any

from relaxpy.runtime.devices.base import DeviceError
from relaxpy.runtime.devices.cuda.driver import Context, ask

LEGACY, PER_THREAD = 1, 2
"""The driver's numbers of its default streams, which are DLPack's as well."""


class Stream:
    """A stream, with an event for those that wait for it."""

    __slots__ = ("__weakref__", "address", "event", "handle")

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
        self.event: Any = new_event(context, self)


def new_event(context: Context, owner: object) -> Any:
    """An event without time stamps, destroyed when `owner` is gone."""
    cu = context.cu
    event: Any = ask(cu.cuEventCreate, cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)
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
