"""Tensors in the memory of a device that is not the host's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.device import CPU, Device
from relaxpy.runtime.tensor import Array, Fixed, Tensor, from_numpy

if TYPE_CHECKING:
    from relaxpy.runtime.devices.queue import Buffer, Queue


class DeviceTensor(Tensor):
    """A compact tensor: a buffer of a device, and the byte in it where the tensor begins. Its numbers are there for
    work of its queue; `.numpy()` waits for them and copies them."""

    __slots__ = ("buffer", "offset", "queue")

    buffer: Buffer
    offset: int
    """Bytes from the buffer's start to the first item."""
    queue: Queue

    def __init__(
        self,
        buffer: Buffer,
        offset: int,
        shape: tuple[int, ...],
        dtype: str,
        queue: Queue | None = None,
        constant: bool = False,
    ) -> None:
        # not Tensor's: there is no pointer
        self.buffer = buffer
        self.offset = offset
        self.shape = shape
        self.dtype = dtype
        self.queue = queue or buffer.queue
        self.constant = constant
        self.owner = buffer
        self._numpy = None
        self._record = None

    @property
    def device(self) -> Device:  # type: ignore[override]
        return self.queue.device

    @property
    def pointer(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeCheckError(
            "device",
            f"the tensor is on {self.device}, and its memory has no address in this process",
            help="t.numpy() is a copy of its numbers",
        )

    @property
    def writable(self) -> bool:
        return not self.constant and not (isinstance(self.owner, Fixed) and self.owner.read_only)

    def numpy(self) -> Array:
        """A copy of its numbers, when they are there: read-only, since what is written to it would be lost.

        Raises: RuntimeCheckError (`device-failed`) for what failed on the device before.
        """
        array = self.queue.download(self)
        array.flags.writeable = False
        return array

    def to_host(self) -> Tensor:
        """A copy of its numbers as a tensor of the host."""
        return from_numpy(self.queue.download(self))

    def copy(self) -> DeviceTensor:
        """The same numbers in memory of their own, on the same device."""
        return self.queue.copy(self)

    def view(self, shape: tuple[int, ...], dtype: str) -> DeviceTensor:
        """The same memory seen with another shape and type."""
        seen = DeviceTensor(self.buffer, self.offset, shape, dtype, self.queue, self.constant)
        seen.owner = self.owner
        return seen

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        **options: Any,
    ) -> object:
        """A DLPack capsule over the same memory, where the device has that; a copy where that is read-only. What is put
        into `stream` from here on finds the numbers. For the host (`dl_device`) it is a copy there.

        Raises: BufferError; RuntimeCheckError (`device-failed`).
        """
        from relaxpy.runtime.devices.dlpack import lend  # which makes such tensors

        if dl_device is not None and tuple(dl_device) != self.device.dlpack:
            if tuple(dl_device) != CPU.dlpack or copy is False:
                raise BufferError(f"the tensor is on {self.device}, and is not given elsewhere")
            return self.to_host().__dlpack__(**options)
        if copy is False and not self.writable:
            raise BufferError("the tensor is read-only, and given as a copy only")
        return lend(self.copy() if copy or not self.writable else self, stream, **options)
