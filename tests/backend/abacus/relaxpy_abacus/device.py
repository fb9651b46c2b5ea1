"""Abacuses as devices: memory that nobody else looks into, and work that is done when somebody asks for it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from relaxpy.errors import UsageError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.bytecode import KernelInfo
from relaxpy.runtime.capsule import DLTensor
from relaxpy.runtime.devices.base import DeviceError, DeviceRuntime, Launcher
from relaxpy.runtime.devices.cpu.kernels import load_kernels
from relaxpy.runtime.devices.tensor import DeviceTensor


class Work:
    """A queue: steps that wait, and what went wrong in those that were done."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []
        self.error = ""

    def finish(self) -> None:
        steps, self.steps = self.steps, []
        for step in steps:
            try:
                step()
            except Exception as error:
                self.error = self.error or str(error)


class AbacusRuntime(DeviceRuntime):
    """One abacus. A handle is a block of bytes."""

    kind: ClassVar[str] = "abacus"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        if index > 0:
            raise UsageError("device", f"there is no abacus:{index}", help="there is one")

    @classmethod
    def devices(cls) -> Sequence[str]:
        return ("an abacus",)

    def open_queue(self) -> Work:
        return Work()

    def synchronise(self, queue: Work) -> None:
        queue.finish()
        error, queue.error = queue.error, ""
        if error:
            raise DeviceError(error)

    def wait(self, queue: Work, other: Work) -> None:
        queue.steps.append(other.finish)

    def allocate(self, nbytes: int, queue: Work) -> ctypes.Array[ctypes.c_char]:
        return (ctypes.c_char * nbytes)()

    def upload(self, queue: Work, target: Any, offset: int, data: memoryview) -> None:
        came = bytes(data)  # of now: the caller may change it
        queue.steps.append(lambda: ctypes.memmove(_address(target, offset), came, len(came)))

    def download(self, queue: Work, source: Any, offset: int, data: memoryview) -> None:
        def step() -> None:
            data.cast("B")[:] = memoryview(source).cast("B")[offset : offset + data.nbytes]

        queue.steps.append(step)

    def copy(
        self,
        queue: Work,
        source: Any,
        source_offset: int,
        target: Any,
        target_offset: int,
        nbytes: int,
    ) -> None:
        queue.steps.append(
            lambda: ctypes.memmove(
                _address(target, target_offset), _address(source, source_offset), nbytes
            )
        )

    def load(
        self, objects: Sequence[bytes], kernels: Sequence[KernelInfo]
    ) -> Sequence[Callable[..., object]]:
        return [kernel.linked().serial for kernel in load_kernels(objects, kernels)]

    def launcher(self, kernel: Callable[..., object], queue: Work) -> Launcher:
        def launch(numbers: Sequence[int], sizes: Sequence[int], *args: Any) -> None:
            def step() -> None:
                kept = [_record(arg) if isinstance(arg, DeviceTensor) else (arg,) for arg in args]
                kernel(*(each[0] for each in kept))

            queue.steps.append(step)

        return launch


def _record(tensor: DeviceTensor) -> tuple[ctypes.c_void_p, object]:
    """How a processor's kernel is told of a tensor, and what must stay alive meanwhile."""
    kind = dtypes.info(tensor.dtype)
    shape = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
    record = DLTensor(
        _address(tensor.buffer.handle, tensor.offset), 1, 0, len(tensor.shape),
        kind.code, kind.bits, 1, ctypes.addressof(shape), 0, 0,
    )  # fmt: skip
    return ctypes.c_void_p(ctypes.addressof(record)), (record, shape)


def _address(handle: ctypes.Array[ctypes.c_char], offset: int) -> int:
    return ctypes.addressof(handle) + offset
