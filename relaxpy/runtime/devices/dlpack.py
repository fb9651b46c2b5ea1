"""Exchange of device tensors with other libraries by DLPack: without a copy, ordered by streams.

A *stream* is DLPack's number for a queue. The consumer of a tensor names the stream in which it will use it, and the
producer lets that stream wait for its own queue: the host does not wait. For devices without such numbers
(`DeviceRuntime.stream` is None) the queue is synchronised instead.

Exported memory is reused only after the consumer's stream is done with it. Imported memory is given back when the
queues that used it are done.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.capsule import IS_COPY, READ_ONLY, dlpack_flags, dlpack_record
from relaxpy.runtime.devices.queue import Buffer, Queue
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.runtime.tensor import (
    Fixed,
    is_compact,
)

if TYPE_CHECKING:
    from relaxpy.runtime.devices.base import DeviceRuntime

NO_STREAM = -1
"""A consumer's stream number for: do not synchronise."""

_streams: WeakValueDictionary[tuple[DeviceRuntime, int | None], Queue] = WeakValueDictionary()
"""Queues of other libraries that use our memory."""


def lend(tensor: DeviceTensor, stream: int | None, **options: Any) -> object:
    """A DLPack capsule over the memory of a tensor. Work that is put into `stream` from now on sees its contents (None:
    the device's default stream).

    Raises: BufferError where the device gives no memory to others; RuntimeCheckError (`device-failed`).
    """
    queue, runtime = tensor.queue, tensor.queue.runtime
    if not runtime.dlpack_type:
        raise BufferError(f"{runtime.kind} cannot export memory: copy it with tensor.numpy()")
    address = runtime.address(tensor.buffer.handle)
    queue.behind({tensor.buffer.queue, *tensor.buffer.users})
    if stream != NO_STREAM:
        taker = _queue_of(runtime, stream)
        if taker is None:
            queue.settle()
        else:
            taker.behind({queue})
            tensor.buffer.users |= {taker, queue}
    return _capsule(tensor, address, options)


def _queue_of(runtime: DeviceRuntime, stream: int | None) -> Queue | None:
    """The queue of a stream; None if the device has none. The same object is returned while it is in use."""
    found = _streams.get((runtime, stream))
    if found is None:
        raw = runtime.queue_of(stream)
        if raw is None:
            return None
        found = _streams.setdefault((runtime, stream), Queue(runtime, raw))
    return found


class _Exported:
    """An array interface for numpy, which makes a capsule from it without reading the memory."""

    def __init__(self, tensor: DeviceTensor, address: int) -> None:
        self.owner = tensor.owner
        self.buffer = tensor.buffer
        item = dtypes.info(tensor.dtype).itemsize
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "typestr": f"<u{item}" if item > 1 else "|u1",
            "data": (address, False),
        }


def _capsule(tensor: DeviceTensor, address: int, options: dict[str, Any]) -> object:
    """Numpy makes the capsule, so it is freed without Python. Then the device's fields are written into it."""
    capsule: object = np.asarray(_Exported(tensor, address)).__dlpack__(**options)
    record, info = dlpack_record(capsule), dtypes.info(tensor.dtype)
    record.device_type, record.device_id = tensor.device.dlpack
    record.code, record.bits = info.code, info.bits
    record.byte_offset = tensor.offset
    return capsule


def borrow(value: Any, queue: Queue) -> DeviceTensor:
    """A tensor over the memory of a DLPack producer on the queue's device, for work of the queue.

    Raises: BufferError for memory that the device does not take.
    """
    runtime = queue.runtime
    stream = runtime.stream(queue.raw)
    try:
        capsule = value.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # a producer from before version 1
        capsule = value.__dlpack__(stream=stream)
    record = dlpack_record(capsule)
    name = dtypes.BY_CODE.get((record.code, record.bits))
    if name is None or record.lanes != 1:
        raise BufferError(dtypes.not_passed(record.code, record.bits, record.lanes))
    ndim = record.ndim
    shape = tuple((ctypes.c_int64 * ndim).from_address(record.shape)) if ndim else ()
    strides = (ctypes.c_int64 * ndim).from_address(record.strides) if record.strides else ()
    if 0 in shape:
        return queue.new(shape, name)
    if strides and not is_compact(shape, tuple(strides)):
        raise BufferError("it is not contiguous: pass a contiguous copy")
    if record.byte_offset % runtime.offset_alignment:
        raise BufferError(
            f"it begins at byte {record.byte_offset}, but tensors on {runtime.kind} must begin at multiples of "
            f"{runtime.offset_alignment}: pass a copy"
        )
    nbytes = dtypes.info(name).itemsize
    for size in shape:
        nbytes *= size
    handle = runtime.wrap(record.data, record.byte_offset + nbytes)
    buffer: Buffer = queue.borrowed(handle, record.byte_offset + nbytes, capsule)
    tensor = DeviceTensor(buffer, record.byte_offset, shape, name)
    flags = dlpack_flags(capsule)
    if flags & READ_ONLY:
        tensor.owner = Fixed(buffer, True, "is read-only", "a writable copy")
    elif flags & IS_COPY:
        tensor.owner = Fixed(
            buffer, False, "gives a copy of its memory", "a tensor of vm.upload(x)"
        )
    return tensor
