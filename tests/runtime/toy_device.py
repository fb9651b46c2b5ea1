"""A device for tests, in this process: opaque memory, work that waits until somebody asks, errors that come late.

A kernel's image is the name of a function below. `ToyRuntime.log` tells what was put into queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.runtime.bytecode import (
    Heap,
    IntExpr,
    IntOp,
    KernelImage,
    KernelInfo,
    KernelParam,
    Slot,
)
from relaxpy.runtime.devices import registry
from relaxpy.runtime.devices.base import DeviceError, DeviceRuntime, Launcher
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.dtype import to_numpy
from relaxpy.runtime.kernel_params import symbol_of

TOY = Slot("toy", "toy")
N = Heap(0)


class ToyQueue:
    """Work that is done when somebody asks for it."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], None]] = deque()
        self.put = 0
        self.done = 0
        self.errors: list[str] = []

    def add(self, step: Callable[[], None]) -> None:
        self.work.append(step)
        self.put += 1

    def run(self, until: int) -> None:
        while self.done < until:
            step = self.work.popleft()
            self.done += 1
            try:
                step()
            except DeviceError as error:
                self.errors.append(str(error))


class Memory:
    """What a handle of this device is."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = bytearray(b"\xff" * nbytes)

    def array(self, offset: int, nbytes: int) -> np.ndarray:
        if offset % ToyRuntime.offset_alignment or offset + nbytes > len(self._bytes):
            raise DeviceError(f"bytes {offset} to {offset + nbytes} of {len(self._bytes)}")
        return np.frombuffer(self._bytes, np.uint8, nbytes, offset)


def add1(a: np.ndarray, b: np.ndarray) -> None:
    b[...] = a + 1


def add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    c[...] = a + b


def less(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    c[...] = a.sum() < b.sum()


def broken(a: np.ndarray, b: np.ndarray) -> None:
    raise DeviceError("the sky fell")


FUNCTIONS = {function.__name__: function for function in (add1, add, less, broken)}


class ToyRuntime(DeviceRuntime):
    """Two devices of this kind are here."""

    kind: ClassVar[str] = "toy"
    dlpack_type: ClassVar[int] = 12  # of what others may bring
    offset_alignment = 256
    distinct_buffers = True
    log: ClassVar[list[str]] = []
    loads: ClassVar[int] = 0
    """How often kernels were loaded."""
    room: ClassVar[int] = 1 << 24
    """Bytes that one allocation may have."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        if index > 1:
            raise UsageError("device", f"there is no toy {index}", help="there are two")

    @classmethod
    def devices(cls) -> Sequence[str]:
        return ("a toy", "another toy")

    def open_queue(self) -> ToyQueue:
        return ToyQueue()

    def synchronise(self, queue: ToyQueue) -> None:
        queue.run(queue.put)
        errors, queue.errors = queue.errors, []
        if errors:
            raise DeviceError(errors[0])

    def wait(self, queue: ToyQueue, other: ToyQueue) -> None:
        self.log.append("wait")
        until = other.put
        queue.add(lambda: other.run(until))

    def allocate(self, nbytes: int, queue: ToyQueue) -> Memory:
        if nbytes > self.room:
            raise MemoryError
        self.log.append("allocate")
        return Memory(nbytes)

    def free(self, handle: Memory, queue: ToyQueue) -> None:
        self.log.append("free")

    def upload(self, queue: ToyQueue, target: Memory, offset: int, data: memoryview) -> None:
        self.log.append("upload")
        came = bytes(data)

        def step() -> None:
            target.array(offset, len(came))[...] = np.frombuffer(came, np.uint8)

        queue.add(step)

    def download(self, queue: ToyQueue, source: Memory, offset: int, data: memoryview) -> None:
        self.log.append("download")

        def step() -> None:
            data[:] = source.array(offset, data.nbytes).tobytes()

        queue.add(step)

    def copy(
        self,
        queue: ToyQueue,
        source: Memory,
        source_offset: int,
        target: Memory,
        target_offset: int,
        nbytes: int,
    ) -> None:
        self.log.append("copy")

        def step() -> None:
            target.array(target_offset, nbytes)[...] = source.array(source_offset, nbytes)

        queue.add(step)

    def load(self, objects: Sequence[bytes], kernels: Sequence[KernelInfo]) -> Sequence[str]:
        ToyRuntime.loads += 1
        return [objects[info.image.object].decode() for info in kernels]

    def launcher(self, kernel: str, queue: ToyQueue) -> Launcher:
        name, function = kernel, FUNCTIONS[kernel]

        def launch(numbers: tuple[int, ...], sizes: tuple[int, ...], *args: Any) -> None:
            self.log.append(f"{name} {numbers} {sizes}")
            assert len({id(arg.buffer) for arg in args}) == len(args)
            places = [
                (arg.buffer.handle, arg.offset, arg.nbytes, arg.shape, arg.dtype) for arg in args
            ]

            def step() -> None:
                arrays = [
                    memory.array(offset, nbytes).view(to_numpy(dtype)).reshape(shape)
                    for memory, offset, nbytes, shape, dtype in places
                ]
                function(*arrays)

            queue.add(step)

        return launch


@contextmanager
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Devices of the kind `toy` are here, as if a package had brought them. Gives the log."""
    point = EntryPoint("toy", f"{__name__}:ToyRuntime", registry.GROUP)
    registry.forget()
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    ToyRuntime.log.clear()
    try:
        yield ToyRuntime.log
    finally:
        registry.forget()


def kernel(name: str, count: int, *, slot: int = 1, dtypes: Sequence[str] = ()) -> KernelInfo:
    """A kernel over vectors of one size, of which the last is written, launched in groups of 64."""
    types = dtypes or ["float32"] * count
    shapes: list[tuple[IntExpr, ...]] = [(N,) if dtype != "bool" else () for dtype in types]
    params = tuple(
        KernelParam(dtype, shape, access="write" if i == count - 1 else "read")
        for i, (dtype, shape) in enumerate(zip(types, shapes, strict=True))
    )
    launch = (IntOp("floordiv", (IntOp("add", (N, 63)), 64)), 64)
    symbol = symbol_of(name, params, launch)
    image = KernelImage(symbol, symbol, list(FUNCTIONS).index(name), launch=launch)
    return KernelInfo(name, (image,), params, slot)


OBJECTS = tuple(name.encode() for name in FUNCTIONS)
ADD1, ADD, LESS, BROKEN = range(4)
KERNELS = (
    kernel("add1", 2),
    kernel("add", 3),
    kernel("less", 3, dtypes=("float32", "float32", "bool")),
    kernel("broken", 2),
)


def is_on_toy(value: object) -> bool:
    return isinstance(value, DeviceTensor) and value.device.kind == "toy"
