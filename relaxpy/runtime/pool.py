"""The memory pool of a virtual machine: freed pieces are kept for later allocations of about the same size.

Memory outside the plan is allocated at run time: results, and tensors whose size depends on the data. The system's
allocator returns large pieces to the system at once and gets them again zeroed page by page, which costs more than many
kernels. A pool is bounded: it keeps `limit` bytes at most, and frees the oldest pieces first.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from functools import partial
from sys import getrefcount
from threading import Lock
from typing import Any, TypeAlias

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.dtype import INFO
from relaxpy.runtime.tensor import ALIGNMENT, Tensor, allocate, require_countable, tensor_at

LIMIT = 256 << 20
"""The default limit in bytes of a pool."""
SMALL = 16 << 10
"""Results smaller than this come from Python's own allocator. They are not counted."""
SMALL_KEPT = 4
"""The most pieces of one size that are known for small results: 8 MiB in all, if there were results of every size."""
_LINE_BITS = ALIGNMENT.bit_length() - 1
PAGE = 4096
MOST = 64
"""The most pieces that a pool keeps, since it searches all of them."""
SPARE = 8
"""A piece is reused for an allocation of at least `1 - 1 / SPARE` of its size."""

Piece: TypeAlias = tuple[int, int, Any, int]
"""Size, address, owner, and how many were made before it."""

Make: TypeAlias = Callable[[int], tuple[Any, int]]
"""Allocates new memory of the given size: returns its owner and its address."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a virtual machine in bytes, without weights and without results below 16 KiB."""

    planned: int
    """Storage for intermediate values: of running calls, and kept for later calls."""
    results: int
    """Live tensors that left a call, and unplanned tensors of running calls."""
    kept: int
    """Unused memory that is kept for later."""
    peak: int
    """The largest sum of `planned` and `results` so far."""

    @property
    def total(self) -> int:
        """All memory that is held now."""
        return self.planned + self.results + self.kept


def total(uses: Iterable[MemoryUse]) -> MemoryUse:
    """The sum over several pools. Its peak assumes that they all peaked at the same time."""
    sums = [sum(each) for each in zip(*(astuple(use) for use in uses), strict=True)]
    return MemoryUse(*sums)


def _references() -> int:
    """The number of references to the owner of a small piece in `MemoryPool.empty` if nothing else owns it."""
    piece = object(), 0
    owner, _ = piece
    return getrefcount(owner)


_UNOWNED = _references()


class Block:
    """Memory in use. It returns to its pool when the last reference is gone."""

    __slots__ = ("__weakref__", "_piece")

    def __init__(self, piece: Piece) -> None:
        self._piece = piece

    @property
    def nbytes(self) -> int:
        return self._piece[0]


class Loan(weakref.ref[Block]):
    """The pool's record of a block in use. Its callback is a single call of C: a `__del__` in Python would handle
    pending signals, and a KeyboardInterrupt would be lost there."""

    __slots__ = ("piece", "planned")

    piece: Piece
    planned: bool


class MemoryPool:
    """A bounded pool of memory. Any number of threads may share one."""

    def __init__(
        self,
        limit: int = LIMIT,
        make: Make = allocate,
        block: Callable[[Piece], Block] = Block,
        again: Callable[[Piece], bool] | None = None,
    ) -> None:
        """`make` allocates new memory; `block` creates the owner of a piece in use; `again` decides whether a returned
        piece may be reused (None: always)."""
        self.limit = limit
        self._new = make
        self._block = block
        self._again = again
        self._free: list[Piece] = []
        """Free pieces, the oldest first."""
        self._loans: set[Loan] = set()
        self._returned: deque[Loan] = deque()
        """Loans of blocks that are gone, until the next look. A block may go at any time, even during a garbage
        collection inside `allocate`."""
        self._pieces = defaultdict[int, deque[tuple[Any, int]]](partial(deque, maxlen=SMALL_KEPT))
        """Pieces for small results by size in cache lines, in use or not."""
        self._lock = Lock()
        self._made = 0
        self._kept = 0
        self._used = 0
        self._planned = 0
        self._peak = 0

    def empty(self, shape: tuple[int, ...], dtype: str, nbytes: int = -1) -> Tensor:
        """An uninitialised tensor, of `nbytes` bytes if the caller knows them. Raises: RuntimeCheckError
        (`out-of-memory`).

        For small ones, the last few pieces of each size are looked at again, without a lock: whoever takes one out of
        its queue is the only one to see it, and one that has no other owner is free. When it goes back, `owner` refers
        to it already.
        """
        if not 0 < nbytes < SMALL:
            nbytes = math.prod(shape) * (INFO.get(dtype) or dtypes.info(dtype)).itemsize
            if nbytes >= SMALL or nbytes < 0:
                block, pointer = self.allocate(nbytes)
                return tensor_at(pointer, shape, dtype, block)
            if not nbytes:
                require_countable(shape, dtype)
        lines = nbytes + ALIGNMENT - 1 >> _LINE_BITS
        pieces = self._pieces[lines]
        try:
            piece = pieces.popleft()
        except IndexError:
            piece = allocate(lines * ALIGNMENT)
        owner, pointer = piece
        if getrefcount(owner) > _UNOWNED:
            pieces.append(piece)
            piece = owner, pointer = self._unowned(pieces, lines)
        pieces.append(piece)
        return tensor_at(pointer, shape, dtype, owner)

    @staticmethod
    def _unowned(pieces: deque[tuple[Any, int]], lines: int) -> tuple[Any, int]:
        """A piece of so many cache lines, instead of the first of its queue, which is in use: a new one, or where the
        queue is full, one of the next ones that is free."""
        if len(pieces) == SMALL_KEPT:
            for _ in range(SMALL_KEPT // 2):
                try:
                    piece = pieces.popleft()
                except IndexError:  # other threads have all of them
                    break
                owner, _ = piece
                if getrefcount(owner) == _UNOWNED:
                    return piece
                pieces.append(piece)
        return allocate(lines * ALIGNMENT)

    def storage(self, nbytes: int) -> tuple[Block, int]:
        """Like `allocate`, for planned storage."""
        return self.allocate(nbytes, planned=True)

    def allocate(self, nbytes: int, planned: bool = False) -> tuple[Block, int]:
        """Allocates at least `nbytes` bytes: returns an owner and an address that is a multiple of a cache line.

        Raises: RuntimeCheckError (`out-of-memory`).
        """
        unit = ALIGNMENT if nbytes < SMALL else PAGE
        size = (nbytes + unit - 1) // unit * unit if nbytes >= 0 else nbytes
        with self._lock:
            returned = self._returned
            first = returned[0] if returned and self._again is None else None
            if (
                first is not None
                and first.piece[0] == size
                and first.planned == planned
                and self._used <= self.limit
            ):
                # A call like the one before: the piece changes hands, and the sums remain. The pieces that are not
                # looked at here are part of `_used`, and so bounded.
                piece = first.piece
                self._loans.discard(returned.popleft())
            else:
                if returned:
                    self._collect()
                piece = self._take(size) or self._make(size, nbytes)
                self._used += piece[0]
                if planned:
                    self._planned += piece[0]
                if self._used > self._peak:
                    self._peak = self._used
            block = self._block(piece)
            loan = Loan(block, self._returned.append)
            loan.piece, loan.planned = piece, planned
            self._loans.add(loan)
        return block, piece[1]

    def release(self) -> int:
        """Frees all kept pieces. Returns the number of bytes."""
        with self._lock:
            self._collect()
            freed, self._kept = self._kept, 0
            self._free.clear()
            self._pieces.clear()
        return freed

    def use(self) -> MemoryUse:
        """The memory in use and kept."""
        with self._lock:
            self._collect()
            return MemoryUse(self._planned, self._used - self._planned, self._kept, self._peak)

    # Called with the lock held

    def _collect(self) -> None:
        while self._returned:
            loan = self._returned.popleft()
            self._loans.discard(loan)
            piece = loan.piece
            self._used -= piece[0]
            self._planned -= loan.planned * piece[0]
            if self._again is not None and not self._again(piece):
                continue
            self._free.append(piece)
            self._kept += piece[0]
        while self._free and (self._kept > self.limit or len(self._free) > MOST):
            self._kept -= self._free.pop(0)[0]

    def _take(self, size: int) -> Piece | None:
        """The smallest kept piece that is large enough, and not much too large. Of several, the one that was made
        first: in whatever order they came back, equal calls get equal memory, which is in the caches, and for which
        graphs are recorded (`relaxpy.runtime.graphs`)."""
        best, order = -1, (0, 0)
        for i, (nbytes, _, _, number) in enumerate(self._free):
            if nbytes >= size >= nbytes - nbytes // SPARE and (
                best < 0 or (nbytes, number) < order
            ):
                best, order = i, (nbytes, number)
        if best < 0:
            return None
        piece = self._free.pop(best)
        self._kept -= piece[0]
        return piece

    def _make(self, size: int, nbytes: int) -> Piece:
        """Allocates a piece of `size` bytes, of which `nbytes` were requested."""
        try:
            buffer, pointer = self._new(size)
        except RuntimeCheckError:  # out of memory: free the kept pieces and try again
            self._free.clear()
            self._kept = 0
            size = nbytes
            buffer, pointer = self._new(size)
        self._made += 1
        return size, pointer, buffer, self._made - 1
