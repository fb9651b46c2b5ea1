"""The memory of one call: shape heap, tensor records, planned storage.

A frame is made once and used by one call at a time. Its records are what kernels take: runtime tensors whose `shape`
points into the frame's int64 heap, so that new sizes are bound by writing the heap and nothing else. A record is a
`tvm_ffi.Tensor`, the argument that a kernel accepts fastest, with its `DLTensor` written by us; it owns no memory.

Planned storage grows to what a call needs and stays; storages whose sizes are the same expression are one group with
one capacity and one check.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.devices.cpu.kernels import ffi
from relaxpy.runtime.tensor import Array, Tensor, allocate

# An ffi object starts with its header (reference counts, type index, deleter); a tensor's DLTensor follows (c_api.h).
_OBJECT_HEADER = 24
_DLTensorWords = ctypes.c_int64 * 6
"""`DLTensor` as words: data, device, (ndim, type), shape, strides, byte offset. One assignment instead of seven."""


Allocate: TypeAlias = Callable[[int], tuple[Any, int]]
"""As `relaxpy.runtime.tensor.allocate`: so many bytes of memory, their owner (which has `nbytes`) and address (0 where
memory has none)."""


@cache
def _seed() -> Array:
    """The array that every record is made from, and never points to afterwards."""
    return np.zeros(1, np.uint8)


def new_record(ndim: int, dtype: str, shape_address: int, data: int = 0) -> tuple[Any, int]:
    """A tensor for kernels and the address of its data pointer, whose memory and shape belong to someone else."""
    record = ffi().from_dlpack(_seed())
    address: int = record.__chandle__() + _OBJECT_HEADER
    info = dtypes.info(dtype)
    kind = ndim | info.code << 32 | info.bits << 40 | 1 << 48  # ndim, type code, bits, lanes
    words = _DLTensorWords.from_address(address)
    words[0] = data
    words[2:6] = (kind, shape_address, 0, 0)  # no strides: compact; no byte offset
    return record, address


def record_bytes(record: Any) -> int:
    """How many bytes the tensor of a record holds."""
    words = _DLTensorWords.from_address(record.__chandle__() + _OBJECT_HEADER)
    ndim, bits = words[2] & 0xFFFF, words[2] >> 40 & 0xFF
    return math.prod((ctypes.c_int64 * ndim).from_address(words[3])) * ((bits + 7) // 8)


class _OwnRecord:
    """A tensor's own record and the sizes that it points to."""

    __slots__ = ("record", "sizes")

    def __init__(self, tensor: Tensor) -> None:
        self.sizes = (ctypes.c_int64 * max(1, tensor.ndim))(*tensor.shape)
        address = ctypes.addressof(self.sizes)
        self.record, _ = new_record(tensor.ndim, tensor.dtype, address, tensor.pointer)


def record_of(tensor: Tensor) -> Any:
    """A record for a tensor that no frame has one for; made once a tensor. Valid while the tensor lives."""
    own = tensor._record
    if own is None:
        own = tensor._record = _OwnRecord(tensor)
    return own.record


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """A record of a function's frames."""

    ndim: int
    dtype: str
    shape: int
    """Heap slot where its shape starts."""
    storage: int
    """The storage it lies in; -1: its pointer is written by the code."""
    offset: int = 0
    """Bytes from the storage's start."""


@dataclass(slots=True)
class FramePlan:
    """What the frames of a function look like."""

    heap: list[int]
    records: list[RecordPlan] = field(default_factory=list[RecordPlan])
    groups: list[list[int]] = field(default_factory=list[list[int]])
    """Storages by equal size."""
    fixed: dict[int, int] = field(default_factory=dict[int, int])
    """Group → its size in bytes, where that is a constant."""
    slots: list[int] = field(default_factory=list[int])
    """For each group the slot in whose memory it lies; those after the end in the host's."""

    def names(self) -> list[str]:
        """Local variables that `Frame.locals` fills: `h` the heap, `caps`, `t<i>` records, `d<i>` their pointers."""
        pointers = [f"d{i}" for i, record in enumerate(self.records) if record.storage < 0]
        return ["h", "caps", *(f"t{i}" for i in range(len(self.records))), *pointers]


class Frame:
    """See the module."""

    __slots__ = (
        "_allocators",
        "_cells",
        "_groups",
        "_heap",
        "buffers",
        "caps",
        "locals",
        "pointers",
    )

    def __init__(self, plan: FramePlan, allocators: Sequence[Allocate] = (allocate,)) -> None:
        """`allocators` allocate in the memory of each slot."""
        slots = [*plan.slots, *[0] * (len(plan.groups) - len(plan.slots))]
        self._allocators = [allocators[slot] for slot in slots]
        self._heap = (ctypes.c_int64 * max(1, len(plan.heap)))(*plan.heap)
        base = ctypes.addressof(self._heap)
        count = sum(len(group) for group in plan.groups)
        self._groups = plan.groups
        self._cells: list[list[tuple[ctypes.c_int64, int]]] = [[] for _ in range(count)]
        self.buffers: list[Any] = [None] * count
        """Owner of each storage."""
        self.pointers = [0] * count
        """Address of each storage."""
        self.caps = [-1] * len(plan.groups)
        """Capacity of each group in bytes; -1: nothing allocated yet."""
        tensors: list[Any] = []
        pointers: list[ctypes.c_int64] = []
        for record in plan.records:
            tensor, address = new_record(record.ndim, record.dtype, base + 8 * record.shape)
            cell = ctypes.c_int64.from_address(address)
            if record.storage < 0:
                pointers.append(cell)
            else:
                self._cells[record.storage].append((cell, record.offset))
            tensors.append(tensor)
        view = memoryview(self._heap).cast("B").cast("q")
        self.locals = (view, self.caps, *tensors, *pointers)
        for group, nbytes in plan.fixed.items():
            self.grow(group, nbytes)

    def grow(self, group: int, nbytes: int) -> None:
        """Give each storage of the group `nbytes` bytes or more. What was in them is lost."""
        if self.caps[group] > 0:
            nbytes = max(
                nbytes, self.caps[group] * 5 // 4
            )  # lengths that creep up do not allocate at every call
        allocate = self._allocators[group]
        for storage in self._groups[group]:
            buffer, pointer = allocate(nbytes)
            for cell, offset in self._cells[storage]:
                cell.value = pointer + offset
            self.buffers[storage], self.pointers[storage] = buffer, pointer
        self.caps[group] = nbytes

    @property
    def nbytes(self) -> int:
        """Planned memory that the frame holds."""
        return sum(buffer.nbytes for buffer in self.buffers if buffer is not None)


def release(frames: list[Frame], frame: Frame, keep: int = 16) -> None:
    """Put a frame back, unless a deep recursion has left enough of them."""
    if len(frames) < keep:
        frames.append(frame)
