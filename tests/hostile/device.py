"""A device that is as hostile as devices are: a process of its own holds the memory, and does work when it likes.

Offsets are multiples of 256 and no buffer is bound twice, or more than eight, in a launch; anything else is an error, told
when the queue is synchronised. So is work of two queues on one buffer that is not ordered by a wait
(`tests.hostile.memory`). Allocations fail when a test says so.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime.bytecode import KernelInfo
from relaxpy.runtime.devices import registry
from relaxpy.runtime.devices.base import DeviceError, DeviceRuntime, Launcher
from relaxpy.runtime.devices.tensor import DeviceTensor
from tests.hostile.memory import ALIGNMENT

ROOT = Path(__file__).parents[2]
PLACES = 32
"""A buffer's number stands so many bits to the left in what DLPack calls its address."""


class _Process:
    """The process of a device, and the way to it."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._lock = threading.Lock()
        self._numbers = count()
        self._later: deque[tuple[Any, ...]] = deque()
        atexit.register(self.end)

    def number(self) -> int:
        return next(self._numbers)

    def numbers(self, length: int) -> int:
        """The first of so many."""
        with self._lock:
            numbers = [next(self._numbers) for _ in range(length + 1)]
            return numbers[0]

    def tell(self, name: str, *args: Any) -> None:
        with self._lock:
            self._send(name, False, args)

    def tell_later(self, name: str, *args: Any) -> None:
        """As `tell`, before the next command: Python may free memory anywhere, also while a command is written."""
        self._later.append((name, False, args))

    def ask(self, name: str, *args: Any) -> Any:
        with self._lock:
            self._send(name, True, args)
            assert self._process.stdout is not None
            return pickle.load(self._process.stdout)

    def _send(self, name: str, wants_answer: bool, args: tuple[Any, ...]) -> None:
        assert self._process.stdin is not None
        while self._later:
            pickle.dump(self._later.popleft(), self._process.stdin)
        pickle.dump((name, wants_answer, args), self._process.stdin)
        self._process.stdin.flush()

    def end(self) -> None:
        if self._process.poll() is None:
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process.wait()


class _Graph:
    """A recorded command list. The device frees it with the last reference."""

    def __init__(self, number: int, process: _Process) -> None:
        self.number = number
        weakref.finalize(self, process.tell_later, "forget", number).atexit = False


class HostileRuntime(DeviceRuntime):
    """See the module. There are two of them."""

    kind: ClassVar[str] = "hostile"
    dlpack_type: ClassVar[int] = 12
    offset_alignment = ALIGNMENT
    distinct_buffers = True
    has_graphs = True
    processes: ClassVar[dict[int, _Process]] = {}
    allocations: ClassVar[int] = 0
    """How many there were."""
    failing: ClassVar[frozenset[int]] = frozenset()
    """Which of them fail, counted from 0."""
    captures: ClassVar[int] = 0
    """How many recordings were begun."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        if index > 1:
            raise UsageError("device", f"there is no hostile:{index}", help="there are two")
        if index not in self.processes:
            self.processes[index] = _Process()
        self.process = self.processes[index]
        self._downloads: dict[int, memoryview] = {}
        self._synchronising = threading.Lock()
        self._default: int | None = None

    @classmethod
    def devices(cls) -> Sequence[str]:
        return ("a process", "another process")

    # Queues

    def open_queue(self) -> int:
        queue = self.process.number()
        self.process.tell("open", queue)
        return queue

    def synchronise(self, queue: int) -> None:
        with self._synchronising:  # what another thread has asked for is there when it returns
            errors, downloads = self.process.ask("synchronise", queue)
            for ticket, data in downloads.items():
                self._downloads.pop(ticket)[:] = data
        if errors:
            raise DeviceError("; ".join(errors))

    def wait(self, queue: int, other: int) -> None:
        self.process.tell("put", queue, "wait", other)

    # Memory

    def allocate(self, nbytes: int, queue: int) -> int:
        number = HostileRuntime.allocations
        HostileRuntime.allocations += 1
        if number in self.failing or nbytes > 1 << 30:
            raise MemoryError
        handle = self.process.number()
        self.process.tell("allocate", handle, nbytes)
        return handle

    def free(self, handle: int, queue: int) -> None:
        self.process.tell_later("put", queue, "free", handle)

    def upload(self, queue: int, target: int, offset: int, data: memoryview) -> None:
        self.process.tell("put", queue, "upload", target, offset, bytes(data))

    def download(self, queue: int, source: int, offset: int, data: memoryview) -> None:
        ticket = self.process.number()
        data[:] = b"\xee" * data.nbytes  # nobody may look there yet
        self._downloads[ticket] = data
        self.process.tell("put", queue, "download", source, offset, data.nbytes, ticket)

    def copy(
        self,
        queue: int,
        source: int,
        source_offset: int,
        target: int,
        target_offset: int,
        nbytes: int,
    ) -> None:
        self.process.tell(
            "put", queue, "copy", source, source_offset, target, target_offset, nbytes
        )

    # Graphs

    def begin_capture(self, queue: int) -> None:
        HostileRuntime.captures += 1
        self.process.tell("capture", queue)

    def end_capture(self, queue: int) -> _Graph:
        number = self.process.number()
        problem = self.process.ask("graph", queue, number)
        if problem:
            raise DeviceError(problem)
        return _Graph(number, self.process)

    def replay(self, queue: int, graph: _Graph) -> None:
        self.process.tell("put", queue, "replay", graph.number)

    # DLPack

    def address(self, handle: int) -> int:
        return handle << PLACES

    def wrap(self, address: int, nbytes: int) -> int:
        if address % (1 << PLACES):
            raise BufferError(f"memory of {self.kind} begins elsewhere")
        return address >> PLACES

    def stream(self, queue: int) -> int:
        return queue

    def queue_of(self, stream: int | None) -> int:
        if stream is not None:
            return stream
        if self._default is None:
            self._default = self.open_queue()
        return self._default

    # Kernels

    def load(self, objects: Sequence[bytes], kernels: Sequence[KernelInfo]) -> Sequence[int]:
        first = self.process.numbers(len(kernels))
        problem = self.process.ask("load", first, list(objects), list(kernels))
        if problem:
            raise ExecutableError("object-code", problem)
        return [first + number for number in range(len(kernels))]

    def launcher(self, kernel: int, queue: int) -> Launcher:
        tell = self.process.tell

        def launch(numbers: Sequence[int], sizes: Sequence[int], *args: Any) -> None:
            del numbers, sizes
            tell("put", queue, "launch", kernel, [_argument(arg) for arg in args])

        return launch


def _argument(arg: Any) -> Any:
    if not isinstance(arg, DeviceTensor):
        return arg
    return arg.buffer.handle, arg.offset, tuple(arg.shape), arg.dtype


def fail(queue: Any, reason: str) -> None:
    """Something fails in a queue of the machine (`relaxpy.runtime.devices.queue`)."""
    queue.runtime.process.tell("put", queue.raw, "fail", reason)


def set_policy(policy: str | int) -> None:
    """When the devices do their work from here on (`tests.hostile.process`)."""
    for process in HostileRuntime.processes.values():
        process.tell("policy", policy)


@contextmanager
def failing_allocations(*numbers: int) -> Iterator[None]:
    """Allocations of these numbers, counted from 0 here, fail."""
    HostileRuntime.allocations, HostileRuntime.failing = 0, frozenset(numbers)
    try:
        yield
    finally:
        HostileRuntime.failing = frozenset()


@contextmanager
def hostile_devices(monkeypatch: pytest.MonkeyPatch, policy: str | int = "lazy") -> Iterator[None]:
    """Devices and targets of the kind `hostile` are here, as if packages had brought them."""
    found = registry.runtime_class

    def runtime_class(kind: str) -> type[DeviceRuntime]:
        return HostileRuntime if kind == HostileRuntime.kind else found(kind)

    monkeypatch.setattr(registry, "runtime_class", runtime_class)
    registry.runtime_of.cache_clear()
    for index in range(2):
        registry.runtime_of("hostile", index)
    set_policy(policy)
    try:
        yield
    finally:
        registry.runtime_of.cache_clear()
