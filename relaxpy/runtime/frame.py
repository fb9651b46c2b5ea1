"""The memory of one call: the shape heap, tensor records, and planned storage.

A frame is made once and used by one call at a time. Its records are the arguments of kernels: runtime tensors whose
`shape` points into the frame's int64 heap, so that new sizes are bound by writing to the heap only. A record is a
`tvm_ffi.Tensor`, the argument type with the lowest overhead, whose `DLTensor` we fill in ourselves. It owns no memory.

Planned storage grows to the size that a call needs, and is kept. Storages with the same size expression form one group,
with one capacity and one check.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.ffi import ffi
from relaxpy.runtime.tensor import Array, Tensor, allocate

if TYPE_CHECKING:
    from relaxpy.runtime.graphs import Graphs

# An ffi object starts with a header (reference counts, type index, deleter). In a tensor the DLTensor follows
# (c_api.h).
_OBJECT_HEADER = 24
_DLTensorWords = ctypes.c_int64 * 6
"""`DLTensor` as words: data, device, (ndim, type), shape, strides, byte offset. One assignment instead of seven."""


Allocate: TypeAlias = Callable[[int], tuple[Any, int]]
"""Like `relaxpy.runtime.tensor.allocate`: given a size in bytes, returns an owner (with `nbytes`) and the address of
the memory, or 0 if it has no address."""


@cache
def _seed() -> Array:
    """The array that each record is created from. Afterwards the record does not point to it."""
    return np.zeros(1, np.uint8)


def new_record(ndim: int, dtype: str, shape_address: int, data: int = 0) -> tuple[Any, int]:
    """A tensor for kernels, and the address of its data pointer. Others own its memory and its shape."""
    record = ffi().from_dlpack(_seed())
    address: int = record.__chandle__() + _OBJECT_HEADER
    info = dtypes.info(dtype)
    kind = ndim | info.code << 32 | info.bits << 40 | 1 << 48  # ndim, type code, bits, lanes
    words = _DLTensorWords.from_address(address)
    words[0] = data
    words[2:6] = (kind, shape_address, 0, 0)  # no strides: compact; no byte offset
    return record, address


def record_bytes(record: Any) -> int:
    """The size in bytes of a record's tensor."""
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
    """A record for a tensor without one in a frame. It is created once per tensor, and valid as long as the tensor."""
    own = tensor._record
    if own is None:
        own = tensor._record = _OwnRecord(tensor)
    return own.record


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """A record in the frames of a function."""

    ndim: int
    dtype: str
    shape: int
    """Heap slot where its shape starts."""
    storage: int
    """The storage that holds its data; -1: the function's code sets the pointer."""
    offset: int = 0
    """Offset in bytes in the storage."""


@dataclass(slots=True)
class FramePlan:
    """The layout of a function's frames."""

    heap: list[int]
    records: list[RecordPlan] = field(default_factory=list[RecordPlan])
    groups: list[list[int]] = field(default_factory=list[list[int]])
    """Storages grouped by size expression."""
    fixed: dict[int, int] = field(default_factory=dict[int, int])
    """Group → its size in bytes, if that is constant."""
    slots: list[int] = field(default_factory=list[int])
    """The slot of each group's memory; groups beyond the end are on the host."""

    def names(self) -> list[str]:
        """Local variables that `Frame.locals` assigns: `h` the heap, `caps`, `t<i>` records, `d<i>` their data
        pointers."""
        pointers = [f"d{i}" for i, record in enumerate(self.records) if record.storage < 0]
        return ["h", "caps", *(f"t{i}" for i in range(len(self.records))), *pointers]


class Frame:
    """The memory of one call."""

    __slots__ = (
        "_allocators",
        "_cells",
        "_groups",
        "_heap",
        "buffers",
        "caps",
        "graphs",
        "locals",
        "pointers",
    )

    def __init__(
        self,
        plan: FramePlan,
        allocators: Sequence[Allocate] = (allocate,),
        graphs: Sequence[Graphs] = (),
    ) -> None:
        """`allocators[slot]` allocates in the memory of that slot. `graphs` are empty caches, one for each graph of the
        function."""
        self.graphs = graphs
        slots = [*plan.slots, *[0] * (len(plan.groups) - len(plan.slots))]
        self._allocators = [allocators[slot] for slot in slots]
        self._heap = (ctypes.c_int64 * max(1, len(plan.heap)))(*plan.heap)
        base = ctypes.addressof(self._heap)
        count = sum(len(group) for group in plan.groups)
        self._groups = plan.groups
        self._cells: list[list[tuple[ctypes.c_int64, int]]] = [[] for _ in range(count)]
        self.buffers: list[Any] = [None] * count
        """The owner of each storage's memory."""
        self.pointers = [0] * count
        """The address of each storage."""
        self.caps = [-1] * len(plan.groups)
        """The capacity of each group in bytes; -1: not allocated yet."""
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
        """Gives each storage of the group at least `nbytes` bytes. The contents are lost, and graphs that were recorded
        with the old memory."""
        for graphs in self.graphs:
            graphs.drop()
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
        """The planned memory that the frame holds."""
        return sum(buffer.nbytes for buffer in self.buffers if buffer is not None)


def release(frames: list[Frame], frame: Frame, keep: int = 16) -> None:
    """Returns a frame to the free list, unless a deep recursion has left enough frames there."""
    if len(frames) < keep:
        frames.append(frame)
