"""Memory of a virtual machine: pieces that nobody needs any more are kept for the next that needs about as much.

What a plan does not cover is allocated while a program runs: results, and tensors whose size depends on the data. The
system's allocator gives large pieces back at once and gets them again, zeroed page by page, which costs more than many
a kernel. A pool is bounded: it keeps `limit` bytes at most, and gives up what has been kept longest.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from threading import Lock
from typing import Any, TypeAlias

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.tensor import ALIGNMENT, Tensor, allocate, require_countable

LIMIT = 256 << 20
"""Bytes that a pool keeps, if nothing else is asked for."""
SMALL = 16 << 10
"""Results below this many bytes come from Python's own allocator, which keeps memory itself, and are not counted."""
PAGE = 4096
MOST = 64
"""Pieces that a pool keeps at most: it looks at all of them."""
SPARE = 8
"""A piece is given to what needs at least `1 - 1 / SPARE` of it."""

Piece: TypeAlias = tuple[int, int, Any]
"""Size, address, owner."""

Make: TypeAlias = Callable[[int], tuple[Any, int]]
"""Gives so many bytes of new memory: its owner, and its address."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a virtual machine holds, in bytes; without its weights, and without results below 16 KiB."""

    planned: int
    """Storage for intermediate values: of running calls, and kept for the next."""
    results: int
    """Tensors that left a call and are alive, and tensors of running calls that the plan does not cover."""
    kept: int
    """Memory that nobody uses, kept for later."""
    peak: int
    """The largest sum of the first two so far."""

    @property
    def total(self) -> int:
        """All that is held now."""
        return self.planned + self.results + self.kept


def total(uses: Iterable[MemoryUse]) -> MemoryUse:
    """What several pools hold together; a peak of which is as if they had theirs at the same time."""
    sums = [sum(each) for each in zip(*(astuple(use) for use in uses), strict=True)]
    return MemoryUse(*sums)


class Block:
    """Memory in use; goes back to its pool when nothing refers to it."""

    __slots__ = ("__weakref__", "_piece")

    def __init__(self, piece: Piece) -> None:
        self._piece = piece

    @property
    def nbytes(self) -> int:
        return self._piece[0]


class Loan(weakref.ref[Block]):
    """A block's place in its pool's books. What happens when the block goes is one call of C: in a `__del__` Python
    would deliver signals, and lose a KeyboardInterrupt there."""

    __slots__ = ("piece", "planned")

    piece: Piece
    planned: bool


class MemoryPool:
    """See the module. Any number of threads may use one."""

    def __init__(
        self,
        limit: int = LIMIT,
        make: Make = allocate,
        block: Callable[[Piece], Block] = Block,
        again: Callable[[Piece], bool] | None = None,
    ) -> None:
        """`make` gives new memory, `block` what owns a piece that is in use; `again` says of a piece that came back
        whether it may be used again (None: any)."""
        self.limit = limit
        self._new = make
        self._block = block
        self._again = again
        self._free: list[Piece] = []
        """What is kept, the oldest first."""
        self._loans: set[Loan] = set()
        self._returned: deque[Loan] = deque()
        """Of blocks that are gone, until somebody looks. They go at any time, in a garbage collection inside `allocate`
        too."""
        self._lock = Lock()
        self._kept = 0
        self._used = 0
        self._planned = 0
        self._peak = 0

    def empty(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """An uninitialised tensor. Raises: RuntimeCheckError (`out-of-memory`)."""
        nbytes = math.prod(shape) * dtypes.info(dtype).itemsize
        if nbytes < SMALL:
            if not nbytes:
                require_countable(shape, dtype)
            buffer, pointer = allocate(nbytes)
            return Tensor(pointer, shape, dtype, buffer)
        block, pointer = self.allocate(nbytes)
        return Tensor(pointer, shape, dtype, block)

    def storage(self, nbytes: int) -> tuple[Block, int]:
        """As `allocate`, for the plan of a function."""
        return self.allocate(nbytes, planned=True)

    def allocate(self, nbytes: int, planned: bool = False) -> tuple[Block, int]:
        """Memory of at least `nbytes` bytes: its owner, and its address, a multiple of a cache line.

        Raises: RuntimeCheckError (`out-of-memory`).
        """
        unit = ALIGNMENT if nbytes < SMALL else PAGE
        size = (nbytes + unit - 1) // unit * unit if nbytes >= 0 else nbytes
        with self._lock:
            self._collect()
            piece = self._take(size) or self._make(size, nbytes)
            self._used += piece[0]
            self._planned += planned * piece[0]
            self._peak = max(self._peak, self._used)
            block = self._block(piece)
            loan = Loan(block, self._returned.append)
            loan.piece, loan.planned = piece, planned
            self._loans.add(loan)
        return block, piece[1]

    def release(self) -> int:
        """Give up all that is kept. Returns the bytes."""
        with self._lock:
            self._collect()
            freed, self._kept = self._kept, 0
            self._free.clear()
        return freed

    def use(self) -> MemoryUse:
        """What is held."""
        with self._lock:
            self._collect()
            return MemoryUse(self._planned, self._used - self._planned, self._kept, self._peak)

    # With the lock held

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
        """The smallest piece that is kept, large enough and not much too large."""
        best = -1
        for i, piece in enumerate(self._free):
            fits = size <= piece[0] <= size + piece[0] // SPARE
            if fits and (best < 0 or piece[0] < self._free[best][0]):
                best = i
        if best < 0:
            return None
        piece = self._free.pop(best)
        self._kept -= piece[0]
        return piece

    def _make(self, size: int, nbytes: int) -> Piece:
        """A piece of `size` bytes, of which `nbytes` are asked for."""
        try:
            buffer, pointer = self._new(size)
        except RuntimeCheckError:  # out of memory: without what is kept there may be enough
            self._free.clear()
            self._kept = 0
            size = nbytes
            buffer, pointer = self._new(size)
        return size, pointer, buffer
