"""Graphs: launches that are recorded once and replayed as one command (paper §4.5, "CUDA Graph").

A graph of a function is a run of launches whose memory is static (`relaxpy.runtime.bytecode.Graph`). Its recordings
belong to a frame and are found by a key, `relaxpy.runtime.graph_key`: sizes, and the places of tensors outside of the
frame's planned storage. A call with a new key runs the launches on a queue that records them; then the recording is
replayed, now and by later calls with the same key. When the frame's storage grows, all recordings are dropped.

Weights and caches stay where they are. Other arguments, and results, may be elsewhere at each call, so that no key
would come twice. When the same sizes come with other places, tensors that have moved and have at most `MOST_MOVED`
bytes get a fixed place in memory of the frame. From then on what is read is copied there before the launches, and
results back afterwards. Only so many are moved that the copies cost less than the launches.

Recording costs more than launching. After `PATIENCE` recordings in a row of which none was used again, launches run one
by one, and only a key that comes a second time is recorded.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.devices.aliasing import apart
from relaxpy.runtime.devices.base import DeviceError, Graph, Launcher
from relaxpy.runtime.devices.tensor import DeviceTensor

if TYPE_CHECKING:
    from relaxpy.runtime.devices.queue import Queue
    from relaxpy.runtime.function_listing import GraphPlan
    from relaxpy.runtime.terms import KernelInfo

MOST = 32
"""The most recordings of a graph in a frame. The one that was used longest ago goes first."""
MOST_MOVED = 1 << 20
"""The most bytes of a tensor that is copied to a fixed place. A device copies so many in about the time that a launch
takes."""
LAUNCHES_PER_COPY = 3
"""How many launches cost the host and the device about as much as a copy to or from a fixed place."""
PATIENCE = 8
"""Recordings, and attempts, without a use before only keys that come twice are recorded."""

Sizes: TypeAlias = tuple[object, ...]
Key: TypeAlias = tuple[Sizes, tuple[object, ...]]
"""Sizes and places."""
Tensors: TypeAlias = tuple[DeviceTensor, ...]
"""The tensors of a call that may be moved: those that are only read, then results."""
Launchers: TypeAlias = "Mapping[int, Launcher] | Sequence[Launcher]"
"""The launchers of kernels by index."""


@dataclass(frozen=True, slots=True)
class GraphUse:
    """How often graphs were used."""

    replays: int = 0
    """Calls that found a recording."""
    recordings: int = 0
    """Calls that made one."""
    plain: int = 0
    """Calls that launched kernels one by one."""
    dropped: int = 0
    """Recordings that were dropped because the frame's storage grew."""
    evicted: int = 0
    """Recordings that were dropped because there were too many."""
    moved: int = 0
    """Tensors that have a fixed place."""
    kept: int = 0
    """Recordings that exist now."""

    def __add__(self, other: GraphUse) -> GraphUse:
        return GraphUse(
            self.replays + other.replays,
            self.recordings + other.recordings,
            self.plain + other.plain,
            self.dropped + other.dropped,
            self.evicted + other.evicted,
            self.moved + other.moved,
            self.kept + other.kept,
        )


class GraphRecorder:
    """The state of a graph that all frames of a function share: the kernels, and the queue."""

    def __init__(
        self,
        queue: Queue,
        plan: GraphPlan,
        loaded: Sequence[Any],
        infos: Sequence[KernelInfo],
        plain: Sequence[Launcher],
    ) -> None:
        """`loaded`, `infos` and `plain` are all kernels of the program, with the queue's launchers."""
        self.queue = queue
        self.inputs = plan.inputs
        self.most_moved = plan.launches // LAUNCHES_PER_COPY
        self.kernels = [(index, loaded[index], infos[index]) for index in plan.kernels]
        self.plain = plain
        self.replay = partial(queue.runtime.replay, queue.raw)
        self._idle: list[Recording] = []
        """Recordings that have ended well: their queues and launchers serve again."""

    def graphs(self) -> Graphs:
        """The recordings of one more frame."""
        return Graphs(self)

    def begin(self) -> Recording:
        """Begins a recording. Raises: DeviceError."""
        try:
            recording = self._idle.pop()
        except IndexError:
            recording = Recording(self)
        recording.begin()
        return recording

    def end(self, recording: Recording) -> _Entry | None:
        """Ends a recording. Returns it as an entry, or None if it failed."""
        entry = recording.end()
        if entry is not None:
            self._idle.append(recording)
        return entry

    def copy(self, source: DeviceTensor, target: DeviceTensor) -> None:
        """Enqueues a copy between tensors of equal size. Raises: DeviceError."""
        if source.nbytes:
            places = source.buffer.handle, source.offset, target.buffer.handle, target.offset
            self.queue.runtime.copy(self.queue.raw, *places, source.nbytes)


class Recording:
    """A queue that records, and the launchers of the kernels for it. It takes the place of the function's queue for
    `apart`. One call at a time uses it."""

    def __init__(self, recorder: GraphRecorder) -> None:
        """Raises: DeviceError."""
        self._queue = recorder.queue
        self.runtime = recorder.queue.runtime
        self.device = recorder.queue.device
        self._memory: list[object] = []
        """Memory that the recorded work uses, besides that of the call."""
        self._failed = False
        self._raw = self.runtime.open_queue()
        self.launchers: dict[int, Launcher] = {}
        for index, kernel, info in recorder.kernels:
            launcher = self.runtime.launcher(kernel, self._raw)
            if self.runtime.distinct_buffers:
                launcher = apart(launcher, info, self)
            self.launchers[index] = partial(self.launch, launcher)

    def begin(self) -> None:
        """Begins a recording. Raises: DeviceError."""
        self._failed = False
        self.runtime.begin_capture(self._raw)

    def launch(self, launcher: Launcher, *args: Any) -> None:
        """Launches, unless a launch has failed before. The failure is not raised: the launches run without a recording
        then, and raise what they raise."""
        if self._failed:
            return
        try:
            launcher(*args)
        except Exception:
            self._failed = True

    def copy(self, tensor: DeviceTensor) -> DeviceTensor:
        """Records a copy of a tensor, in memory that is kept with the recording."""
        made = self._queue.new(tensor.shape, tensor.dtype)
        self._memory.append(made.buffer)
        if tensor.nbytes:
            source, target = tensor.buffer.handle, made.buffer.handle
            self.runtime.copy(self._raw, source, tensor.offset, target, 0, tensor.nbytes)
        return made

    def end(self) -> _Entry | None:
        """Ends the recording. Returns it, or None if it failed."""
        memory, self._memory = self._memory, []
        try:
            graph = self.runtime.end_capture(self._raw)
        except DeviceError:
            return None
        return None if self._failed else _Entry(graph, memory)


class _Entry:
    """A recording with the memory that it uses."""

    __slots__ = ("graph", "memory", "used")

    def __init__(self, graph: Graph, memory: list[object]) -> None:
        self.graph = graph
        self.memory = memory
        self.used = 0
        """The number of the call that used it last."""


class _FixedPlace:
    """Memory of the frame for one of the tensors that move."""

    __slots__ = ("buffer", "tensor")

    def __init__(self) -> None:
        self.buffer: Any = None
        self.tensor: DeviceTensor | None = None
        """The tensor of the last call there."""

    def at(self, tensor: DeviceTensor) -> DeviceTensor:
        """A tensor like this one, in this place, which is large enough."""
        found = self.tensor
        if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
            found = self.tensor = DeviceTensor(self.buffer, 0, tensor.shape, tensor.dtype)
        return found


class Graphs:
    """The recordings of one graph in one frame. One call at a time uses it."""

    def __init__(self, recorder: GraphRecorder) -> None:
        self._recorder = recorder
        self._replay = recorder.replay
        self._entries: dict[Key, _Entry] = {}
        self._places: dict[Sizes, list[object]] = {}
        """Where the movable tensors were when sizes came last without a recording."""
        self._seen: dict[Key, None] = {}
        """Keys of calls that were not recorded, the oldest first."""
        self.moved: dict[int, _FixedPlace] = {}
        """The tensors with a fixed place, by their number among the movable ones."""
        self.away: Tensors = ()
        """The movable tensors of the running call while others take their place; empty if none does."""
        self._results: list[tuple[DeviceTensor, DeviceTensor]] = []
        """Results of the running call in their fixed places, and where they belong."""
        self._refused: dict[Key, None] = {}
        """Keys whose recording has failed, the oldest first. They are not tried again."""
        self._fruitless = 0
        """Recordings since the last replay."""
        self._calls = 0
        self._replays = 0
        self._recordings = 0
        self._plain = 0
        self._dropped = 0
        self._evicted = 0

    # What the code of a function calls, in this order

    def move(self, tensors: Tensors, updated: Sequence[object]) -> Sequence[DeviceTensor]:
        """Returns the tensors for the launches: those with a fixed place there, with the contents of what is read.
        `updated` are handles of other memory that the launches write to."""
        found = list(tensors)
        self.away, self._results = tensors, []
        for number, place in self.moved.items():
            tensor = tensors[number]
            is_input = number < self._recorder.inputs
            shared = is_input and tensor.buffer.handle in updated
            if shared or not self._is_small(tensor) or not self._has_room(place, tensor.nbytes):
                continue
            fixed = found[number] = place.at(tensor)
            if is_input:
                self._recorder.copy(tensor, fixed)
            else:
                self._results.append((fixed, tensor))
        return found

    def replayed(self, key: Key) -> bool:
        """Enqueues the recording of a key, if there is one."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        self._calls += 1
        entry.used = self._calls
        self._replay(entry.graph)
        self._replays += 1
        self._fruitless = 0
        return True

    def recorded(self, key: Key, tensors: Tensors = ()) -> Iterator[Launchers]:
        """Yields launchers for the launches of a key without recording. They run once with each. First, launchers that
        record; if that succeeds, the recording is replayed. Otherwise, those of the queue."""
        if not self._moves(key, tensors) and self._is_worth(key):
            entry = yield from self._record()
            if entry is not None:
                self._keep(key, entry)
                self._replay(entry.graph)
                return
            _note(self._refused, key)
            self._fruitless += 1
        self._plain += 1
        yield self._recorder.plain

    def restored(self) -> Tensors:
        """Returns the tensors that `move` was given, after the launches, with the contents of results."""
        tensors, self.away = self.away, ()
        results, self._results = self._results, []
        for fixed, tensor in results:
            self._recorder.copy(fixed, tensor)
        return tensors

    # Fixed places

    def _moves(self, key: Key, tensors: Tensors) -> bool:
        """Whether tensors have moved since these sizes came last, and get a fixed place from the next call on."""
        sizes = key[0]
        places: list[object] = [(each.buffer.handle, each.offset) for each in tensors]
        before = self._places.pop(sizes, places)
        _note(self._places, sizes, places)
        found = [
            number
            for number, (here, there) in enumerate(zip(places, before, strict=True))
            if here != there and number not in self.moved and self._is_small(tensors[number])
        ]
        if len(self.moved) + len(found) > self._recorder.most_moved:
            return False
        self.moved |= {number: _FixedPlace() for number in found}
        return bool(found)

    @staticmethod
    def _is_small(tensor: DeviceTensor) -> bool:
        return tensor.nbytes <= MOST_MOVED

    def _has_room(self, place: _FixedPlace, nbytes: int) -> bool:
        """Whether there are so many bytes at a fixed place, which grows if it must."""
        have = -1 if place.buffer is None else place.buffer.nbytes
        if nbytes <= have:
            return True
        try:
            buffer, _ = self._recorder.queue.storage(max(nbytes, have * 5 // 4))
        except RuntimeCheckError:  # no memory: the tensor stays where it is
            return False
        if place.buffer is not None:
            self.drop()  # recordings use the old memory
        place.buffer, place.tensor = buffer, None
        return True

    # Recordings

    def _is_worth(self, key: Key) -> bool:
        """Whether to record a key that has no recording."""
        if key in self._refused:
            return False
        if self._fruitless < PATIENCE or key in self._seen:
            self._seen.pop(key, None)
            return True
        _note(self._seen, key)
        return False

    def _record(self) -> Generator[Launchers, None, _Entry | None]:
        """Yields launchers that record. Returns the recording, or None if it failed."""
        try:
            recording = self._recorder.begin()
        except DeviceError:
            return None
        entry: _Entry | None = None
        try:
            yield recording.launchers
        finally:  # also if the call fails between launches
            entry = self._recorder.end(recording)
        return entry

    def _keep(self, key: Key, entry: _Entry) -> None:
        if len(self._entries) >= MOST:
            oldest = min(self._entries, key=lambda each: self._entries[each].used)
            del self._entries[oldest]
            self._evicted += 1
        self._calls += 1
        entry.used = self._calls
        self._entries[key] = entry
        self._recordings += 1
        self._fruitless += 1

    def drop(self) -> None:
        """Drops all recordings: the memory that they use is no longer the frame's."""
        self._dropped += len(self._entries)
        self._entries.clear()
        self._seen.clear()
        self._refused.clear()

    def use(self) -> GraphUse:
        """The calls so far."""
        return GraphUse(
            self._replays,
            self._recordings,
            self._plain,
            self._dropped,
            self._evicted,
            len(self.moved),
            len(self._entries),
        )


def _note(table: dict[Any, Any], key: object, value: object = None) -> None:
    """Adds an entry, in place of the oldest one if there are too many."""
    if len(table) >= MOST:
        del table[next(iter(table))]
    table[key] = value
