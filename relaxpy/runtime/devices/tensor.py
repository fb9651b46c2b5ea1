"""Tensors in the memory of a device other than the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.device import CPU, Device
from relaxpy.runtime.tensor import Array, Fixed, Tensor, from_numpy

if TYPE_CHECKING:
    from relaxpy.runtime.devices.queue import Buffer, Queue


class DeviceTensor(Tensor):
    """A compact tensor in device memory: a buffer and the offset in bytes of the tensor in it. Work of its queue sees
    its contents; `.numpy()` waits for them and copies them."""

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
        self._nbytes = -1
        self._numpy = None
        self._record = None

    @property
    def device(self) -> Device:  # type: ignore[override]
        return self.queue.device

    @property
    def pointer(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeCheckError(
            "device",
            f"the tensor is on {self.device}, which has no addresses in this process",
            help="copy it with t.numpy()",
        )

    @property
    def writable(self) -> bool:
        return not self.constant and not (isinstance(self.owner, Fixed) and self.owner.read_only)

    def numpy(self) -> Array:
        """A read-only copy of the contents, after they have been computed. It is read-only because writes to it would
        not reach the device.

        Raises: RuntimeCheckError (`device-failed`) for earlier failures on the device.
        """
        array = self.queue.download(self)
        array.flags.writeable = False
        return array

    def to_host(self) -> Tensor:
        """A copy of the contents as a host tensor."""
        return from_numpy(self.queue.download(self))

    def copy(self) -> DeviceTensor:
        """A copy in memory of its own, on the same device."""
        return self.queue.copy(self)

    def view(self, shape: tuple[int, ...], dtype: str) -> DeviceTensor:
        """A view of the same memory with another shape and type."""
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
        """A DLPack capsule over the same memory if the device supports that; a copy if the memory is read-only. Work
        that is put into `stream` from now on sees the contents. With the host as `dl_device` it is a copy on the host.

        Raises: BufferError; RuntimeCheckError (`device-failed`).
        """
        from relaxpy.runtime.devices.dlpack import lend  # a cyclic import

        if dl_device is not None and tuple(dl_device) != self.device.dlpack:
            if tuple(dl_device) != CPU.dlpack or copy is False:
                raise BufferError(
                    f"the tensor is on {self.device}, and cannot be exported to another device"
                )
            return self.to_host().__dlpack__(**options)
        if copy is False and not self.writable:
            raise BufferError("the tensor is read-only: export a copy")
        return lend(self.copy() if copy or not self.writable else self, stream, **options)
