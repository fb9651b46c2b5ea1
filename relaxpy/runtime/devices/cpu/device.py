"""The CPU that runs the virtual machine, as a device. Its memory is this process's, and its work is synchronous."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.devices.base import DeviceRuntime, Launcher
from relaxpy.runtime.devices.cpu.kernels import KernelHandles, load_kernels
from relaxpy.runtime.devices.queue import Queue
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.host.features import ISA_FEATURES, host_features, missing_here
from relaxpy.runtime.patterns import describe
from relaxpy.runtime.pool import MemoryPool
from relaxpy.runtime.tensor import Tensor, allocate

if TYPE_CHECKING:
    from relaxpy.runtime.devices.emit import DeviceLines
    from relaxpy.runtime.terms import KernelInfo, Requirement


class CpuRuntime(DeviceRuntime):
    """The runtime of the CPU. A handle is memory with its address."""

    kind: ClassVar[str] = "cpu"
    is_host: ClassVar[bool] = True
    dlpack_type: ClassVar[int] = 1

    @classmethod
    def devices(cls) -> Sequence[str]:
        return ("the processor that relaxpy runs on",)

    @classmethod
    def lines(cls) -> type[DeviceLines]:
        from relaxpy.runtime.devices.cpu.emit import CpuLines  # no need of functions linked before

        return CpuLines

    def open_queue(self) -> None:
        return None

    def synchronise(self, queue: Any) -> None:
        return None

    def wait(self, queue: Any, other: Any) -> None:
        return None

    def queue(self) -> Queue:
        return HostQueue(self)

    def allocate(self, nbytes: int, queue: Any) -> tuple[Any, int]:
        return allocate(nbytes)

    def upload(self, queue: Any, target: tuple[Any, int], offset: int, data: memoryview) -> None:
        source = bytes(data) if data.readonly else (ctypes.c_char * data.nbytes).from_buffer(data)
        ctypes.memmove(target[1] + offset, source, data.nbytes)

    def download(self, queue: Any, source: tuple[Any, int], offset: int, data: memoryview) -> None:
        target = (ctypes.c_char * data.nbytes).from_buffer(data)
        ctypes.memmove(target, source[1] + offset, data.nbytes)

    def copy(
        self,
        queue: Any,
        source: tuple[Any, int],
        source_offset: int,
        target: tuple[Any, int],
        target_offset: int,
        nbytes: int,
    ) -> None:
        ctypes.memmove(target[1] + target_offset, source[1] + source_offset, nbytes)

    @property
    def features(self) -> frozenset[str]:
        return ISA_FEATURES | host_features()

    def missing(self, requirement: Requirement) -> Sequence[str]:
        return missing_here(requirement)

    def load(
        self, objects: Sequence[bytes], kernels: Sequence[KernelInfo]
    ) -> Sequence[KernelHandles]:
        return load_kernels(objects, kernels)

    def launcher(self, kernel: KernelHandles, queue: Any) -> Launcher:
        return kernel  # type: ignore[return-value]  # its lines know it


class HostQueue(Queue):
    """The host's memory. Its tensors are `Tensor`s with addresses."""

    is_host: ClassVar[bool] = True

    def __init__(self, runtime: CpuRuntime) -> None:
        super().__init__(runtime)
        self.pool = MemoryPool()

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return self.pool.empty(shape, dtype)

    def owns(self, tensor: Tensor) -> bool:
        return not isinstance(tensor, DeviceTensor)

    def take(self, value: Any) -> Tensor:
        if value.__class__ is DeviceTensor:
            return value.to_host()
        if not isinstance(value, Tensor):
            raise RuntimeCheckError("check", f"expected a tensor, got {describe(value)}")
        return value

    def enter(self, value: Tensor) -> Tensor:
        return self.take(value)


RUNTIME = CpuRuntime
