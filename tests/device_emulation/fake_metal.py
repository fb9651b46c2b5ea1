"""Metal as PyObjC gives it, as far as relaxpy calls it, on the processor.

Kernels are compiled by `runner` and run in a thread for each queue, behind the host. Where Metal would end the process
(an encoder that has not ended, a place that is not bound, bytes that are no multiple of 4), a call raises Misuse.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from relaxpy.runtime.devices import registry
from relaxpy.runtime.devices.metal import device as metal_device
from tests.device_emulation.runner import KernelFailure, Kernels, compiled

GUARD = 64
"""Bytes around each buffer that nobody may write to."""
KERNEL = re.compile(r"kernel void (\w+)\((.*?)\) \{", re.DOTALL)
WAITED = 60
"""Seconds after which an event that nobody signals is an error."""


class Misuse(Exception):
    """A call for which Metal ends the process."""


class ObjCError(Exception):
    """`objc.error`."""


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Misuse(otherwise)


class _Pools(threading.local):
    depth = 0


POOLS = _Pools()


@contextmanager
def autorelease_pool() -> Iterator[None]:
    POOLS.depth += 1
    try:
        yield
    finally:
        POOLS.depth -= 1


@dataclass(frozen=True)
class Size:
    """`MTLSize`."""

    width: int
    height: int
    depth: int

    @property
    def axes(self) -> tuple[int, int, int]:
        return self.width, self.height, self.depth


def size(width: int, height: int, depth: int) -> Size:
    """`MTLSizeMake`."""
    for each in (width, height, depth):
        require(type(each) is int and 0 <= each < 1 << 64, f"{each!r} is no unsigned integer")
    return Size(width, height, depth)


@dataclass
class Failure:
    """`NSError`."""

    text: str

    def localizedDescription(self) -> str:
        return self.text


class Options:
    """`MTLCompileOptions`."""

    def __init__(self) -> None:
        self.fast = True

    @classmethod
    def alloc(cls) -> type[Options]:
        return cls

    @classmethod
    def init(cls) -> Options:
        return cls()

    def setFastMathEnabled_(self, yes: bool) -> None:
        self.fast = yes


class Contents:
    """`objc.varlist`."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory

    def as_buffer(self, count: int) -> memoryview:
        require(0 < count <= len(self.memory), f"{count} of {len(self.memory)} bytes")
        return memoryview(self.memory[:count])  # type: ignore[arg-type]


class Buffer:
    """`MTLBuffer`, with unknown bytes in it, and guards around it."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device = device
        self.whole = np.full(nbytes + 2 * GUARD, 0xA5, np.uint8)
        self.memory = self.whole[GUARD:-GUARD]
        self.memory[:] = 0xFF

    def length(self) -> int:
        return len(self.memory)

    def contents(self) -> Contents:
        return Contents(self.memory)

    def is_guarded(self) -> bool:
        return bool((self.whole[:GUARD] == 0xA5).all() and (self.whole[-GUARD:] == 0xA5).all())


@dataclass(frozen=True)
class Function:
    """`MTLFunction`."""

    name: str
    kernels: Kernels
    buffers: int
    """Places that it has, the one for numbers included."""
    numbers: int
    """Bytes of its numbers."""


class Library:
    """`MTLLibrary`."""

    def __init__(self, source: str) -> None:
        found = KERNEL.findall(source)
        kernels = compiled("metal_shim.h", source, tuple(name for name, _ in found))
        self.functions = {
            name: Function(name, kernels, params.count("[[ buffer("), 8 * _fields(source, name))
            for name, params in found
        }

    def newFunctionWithName_(self, name: str) -> Function | None:
        return self.functions.get(name)


def _fields(source: str, name: str) -> int:
    found = re.search(rf"struct {name}_args_t \{{(.*?)\}};", source, re.DOTALL)
    return found[1].count(";") if found else 0


@dataclass(frozen=True)
class State:
    """`MTLComputePipelineState`."""

    function: Function
    most: int

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return self.most


class Encoder:
    """An encoder of launches or of copies. One thread at a time uses it."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self.ended = False
        self.using = threading.Lock()
        self.state: State | None = None
        self.bound: dict[int, Any] = {}

    def __del__(self) -> None:
        if not self.ended:
            self.commands.queue.device.leaks.append("an encoder has not ended")

    @contextmanager
    def use(self) -> Iterator[None]:
        require(self.using.acquire(blocking=False), "two threads use an encoder")
        try:
            require(not self.ended, "an encoder is used after its end")
            yield
        finally:
            self.using.release()

    def endEncoding(self) -> None:
        with self.use():
            self.ended = True
            self.commands.open = None


class LaunchEncoder(Encoder):
    """`MTLComputeCommandEncoder`."""

    def setComputePipelineState_(self, state: State) -> None:
        with self.use():
            self.state = state

    def setBuffer_offset_atIndex_(self, buffer: Buffer, offset: int, place: int) -> None:
        with self.use():
            require(isinstance(buffer, Buffer), f"{buffer!r} is no buffer")
            require(buffer.device is self.commands.queue.device, "a buffer of another device")
            require(0 <= place < 31 and 0 <= offset < buffer.length(), "no such place")
            self.bound[place] = buffer

    def setBytes_length_atIndex_(self, data: bytes, length: int, place: int) -> None:
        with self.use():
            require(0 <= place < 31 and 0 < length <= 4096 and length == len(data), "wrong bytes")
            self.bound[place] = bytes(data)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: Size, threads: Size) -> None:
        with self.use():
            state = self.state
            require(state is not None, "a launch without a kernel")
            assert state is not None
            function, bound = state.function, dict(self.bound)
            require(0 not in groups.axes and max(groups.axes) < 1 << 32, f"a grid of {groups}")
            require(0 < int(np.prod(threads.axes)) <= state.most, f"a group of {threads}")
            require(set(range(function.buffers)) <= set(bound), "a place is not bound")
            numbers = bound[function.buffers - 1]
            require(isinstance(numbers, bytes), "the last place is not the numbers'")
            require(len(numbers) == function.numbers, "numbers of another size")
            memory = [bound[place] for place in range(function.buffers - 1)]
            require(all(isinstance(each, Buffer) for each in memory), "numbers among the memory")
            self.commands.work.append(lambda: _run(function, memory, numbers, groups, threads))


def _run(
    function: Function, memory: list[Buffer], numbers: bytes, groups: Size, threads: Size
) -> None:
    args: list[Any] = [ctypes.c_void_p(each.memory.ctypes.data) for each in memory]
    args.append(ctypes.create_string_buffer(numbers, len(numbers)))
    backwards = bool(memory) and memory[0].device.backwards
    function.kernels.launch(function.name, groups.axes, threads.axes, args, backwards=backwards)
    if not all(each.is_guarded() for each in memory):
        raise KernelFailure(f"{function.name} writes outside of a buffer")


class CopyEncoder(Encoder):
    """`MTLBlitCommandEncoder`."""

    def copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        self, source: Buffer, first: int, target: Buffer, second: int, count: int
    ) -> None:
        with self.use():
            require(not (first % 4 or second % 4 or count % 4), "a copy of parts of words")
            require(count > 0 and 0 <= first <= source.length() - count, "a copy from outside")
            require(0 <= second <= target.length() - count, "a copy to the outside")
            apart = source is not target or abs(first - second) >= count
            require(apart, "a copy over itself")

            def work() -> None:
                target.memory[second : second + count] = source.memory[first : first + count]

            self.commands.work.append(work)


class Commands:
    """`MTLCommandBuffer`."""

    def __init__(self, queue: CommandQueue) -> None:
        self.queue = queue
        self.open: str | None = None
        """The kind of the encoder that has not ended."""
        self.work: list[Callable[[], object]] = []
        """Launches and copies, and between them events, which come even if they fail."""
        self.events: list[tuple[int, Callable[[], object]]] = []
        """With the length of `work` before each."""
        self.done: Future[None] | None = None
        self.failure: Failure | None = None

    def _encoder(self, kind: type[Encoder]) -> Any:
        require(POOLS.depth > 0, "an encoder outside of a pool stays until the thread ends")
        require(self.open is None and self.done is None, f"one more encoder beside {self.open}")
        self.open = kind.__name__
        return kind(self)

    def computeCommandEncoder(self) -> Any:
        return self._encoder(LaunchEncoder)

    def blitCommandEncoder(self) -> Any:
        return self._encoder(CopyEncoder)

    def encodeSignalEvent_value_(self, event: Event, value: int) -> None:
        require(self.open is None and self.done is None, "an event inside of an encoder")
        self.events.append((len(self.work), lambda: event.signal(value)))

    def encodeWaitForEvent_value_(self, event: Event, value: int) -> None:
        require(self.open is None and self.done is None, "an event inside of an encoder")
        self.events.append((len(self.work), lambda: event.wait(value)))

    def commit(self) -> None:
        require(self.open is None and self.done is None, "committed twice, or too early")
        self.done = self.queue.worker.submit(self._run)

    def _run(self) -> None:
        injected = self.queue.device.faults
        if injected:
            self.failure = Failure(injected.pop(0))
        try:
            for place in range(len(self.work) + 1):
                for event in (call for at, call in self.events if at == place):
                    event()
                if self.failure is None and place < len(self.work):
                    self.work[place]()
        except KernelFailure as error:
            self.failure = Failure(str(error))

    def waitUntilCompleted(self) -> None:
        require(self.done is not None, "nobody has committed it")
        assert self.done is not None
        self.done.result()

    def status(self) -> int:
        if self.done is None or not self.done.done():
            return 0 if self.done is None else 2
        self.done.result()
        return 5 if self.failure else 4

    def error(self) -> Failure | None:
        return self.failure


class Event:
    """`MTLEvent`."""

    def __init__(self) -> None:
        self.value = 0
        self.changed = threading.Condition()

    def signal(self, value: int) -> None:
        with self.changed:
            self.value = max(self.value, value)
            self.changed.notify_all()

    def wait(self, value: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.value >= value, WAITED):
                raise KernelFailure("an event that nobody signals")


class CommandQueue:
    """`MTLCommandQueue`."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.worker = ThreadPoolExecutor(1)

    def commandBuffer(self) -> Commands:
        require(POOLS.depth > 0, "a command buffer outside of a pool stays until the thread ends")
        return Commands(self)


@dataclass
class Device:
    """`MTLDevice`."""

    number: int
    faults: list[str] = field(default_factory=list)
    """The errors of the next command buffers that run."""
    leaks: list[str] = field(default_factory=list)
    """What was released too early."""
    backwards: bool = False
    """Whether groups and threads run in descending order."""
    most: int = 1 << 28
    """The largest buffer."""
    threads: int = 1024
    """The largest group."""

    def name(self) -> str:
        return f"Emulated M{self.number}"

    def registryID(self) -> int:
        return 100 + self.number

    def maxBufferLength(self) -> int:
        return self.most

    def recommendedMaxWorkingSetSize(self) -> int:
        return self.most

    def maxThreadgroupMemoryLength(self) -> int:
        return 32768

    def newCommandQueue(self) -> CommandQueue:
        return CommandQueue(self)

    def newEvent(self) -> Event:
        return Event()

    def newBufferWithLength_options_(self, length: int, options: int) -> Buffer | None:
        require(0 < length <= self.most and options == 0, f"a buffer of {length} bytes")
        return Buffer(self, length)

    def newLibraryWithSource_options_error_(
        self, source: str, options: Options, out: None
    ) -> tuple[Library | None, Failure | None]:
        del out
        require(not options.fast, "fast math")
        try:
            return Library(source), None
        except AssertionError as error:
            return None, Failure(str(error))

    def newComputePipelineStateWithFunction_error_(
        self, function: Function, out: None
    ) -> tuple[State | None, Failure | None]:
        del out
        return State(function, self.threads), None


@contextmanager
def emulated(monkeypatch: pytest.MonkeyPatch, count: int = 2) -> Iterator[list[Device]]:
    """So many devices of Metal, until the end of the block. What Metal does not allow fails it."""
    devices = [Device(number) for number in range(count)]
    metal: Any = types.ModuleType("Metal")
    metal.MTLCreateSystemDefaultDevice = lambda: devices[0] if devices else None
    metal.MTLCopyAllDevices = lambda: tuple(reversed(devices))
    metal.MTLCompileOptions, metal.MTLSizeMake = Options, size
    metal.MTLResourceStorageModeShared = 0
    metal.MTLCommandBufferStatusCompleted, metal.MTLCommandBufferStatusError = 4, 5
    objc: Any = types.ModuleType("objc")
    objc.autorelease_pool, objc.error = autorelease_pool, ObjCError
    monkeypatch.setitem(sys.modules, "Metal", metal)
    monkeypatch.setitem(sys.modules, "objc", objc)
    _forget()
    try:
        yield devices
    finally:
        _forget()
    assert not [leak for device in devices for leak in device.leaks]


def _forget() -> None:
    registry.forget()
    metal_device._frameworks.cache_clear()
    metal_device._devices.cache_clear()
