"""Place blocks in one piece of memory so that blocks in use at the same time do not overlap.

Finding the smallest piece is NP-hard (two-dimensional strip packing with one coordinate given). The heuristic places
blocks one after the other, each into the smallest gap between those in use together with it (best fit), or as near as
possible to an end of the memory (which keeps the middle free for large blocks). It tries several orders: by size, by
the moment of greatest demand that blocks belong to (both from Pisarchyk & Lee, "Efficient Memory Management for Deep
Neural Net Inference", 2020), by begin of use, by duration of use. Each order is then improved: the block that reaches
highest is placed first in the next round. The best result is kept. No layout can be smaller than the demand of the
busiest moment, and the search ends when it reaches that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

ALIGNMENT = 64
"""Alignment of blocks in bytes: a cache line, and the widest vector register."""

ROUNDS = 32
"""The number of rounds in which each order is improved."""


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of memory of `size` bytes that is in use from position `begin` to `end`, both included."""

    size: int
    begin: int
    end: int

    def meets(self, other: Block) -> bool:
        """Are both in use at some time?"""
        return self.begin <= other.end and other.begin <= self.end


@dataclass(frozen=True, slots=True)
class Layout:
    """The offset of each block in bytes, in the order of the blocks, and the total size of the memory."""

    offsets: tuple[int, ...]
    size: int


def lay_out(blocks: Sequence[Block]) -> Layout:
    """Find an offset for every block, in as little memory as possible."""
    rounded = [Block(_aligned(b.size), b.begin, b.end) for b in blocks]
    least, neighbours = demand(rounded), _neighbours(rounded)
    orders = [order(rounded) for order in _ORDERS]
    best: Layout | None = None
    for number in range(ROUNDS):
        for order in orders:
            gap = _smallest_gap if number % 2 == 0 else partial(_nearest_end, least)
            layout = _place(rounded, order, neighbours, gap)
            if best is None or layout.size < best.size:
                best = layout
            if best.size == least:
                return best
            highest = max(order, key=lambda i: layout.offsets[i] + rounded[i].size)
            order.remove(highest)
            order.insert(0, highest)
    assert best is not None
    return best


def demand(blocks: Sequence[Block]) -> int:
    """The bytes in use at the busiest moment, a lower bound of every layout."""
    return max(_loads(blocks), default=0)


def _aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _loads(blocks: Sequence[Block]) -> list[int]:
    """The bytes in use at each position."""
    if not blocks:
        return []
    change = [0] * (max(block.end for block in blocks) + 2)
    for block in blocks:
        change[block.begin] += block.size
        change[block.end + 1] -= block.size
    total, found = 0, list[int]()
    for step in change:
        total += step
        found.append(total)
    return found


def _neighbours(blocks: Sequence[Block]) -> list[list[int]]:
    """For each block, the blocks whose use overlaps its own."""
    found: list[list[int]] = [[] for _ in blocks]
    current: list[int] = []
    for i in sorted(range(len(blocks)), key=lambda i: blocks[i].begin):
        current = [j for j in current if blocks[j].end >= blocks[i].begin]
        for j in current:
            found[i].append(j)
            found[j].append(i)
        current.append(i)
    return found


_Taken: TypeAlias = Sequence[tuple[int, int]]
"""Occupied memory: pieces (offset, size), sorted by offset."""


def _place(
    blocks: Sequence[Block],
    order: Sequence[int],
    neighbours: Sequence[Sequence[int]],
    gap: Callable[[int, _Taken], int],
) -> Layout:
    """Place blocks in this order. `gap(size, taken)` returns the offset of a block among the occupied pieces."""
    offsets = [0] * len(blocks)
    placed = [False] * len(blocks)
    for index in order:
        taken = sorted((offsets[i], blocks[i].size) for i in neighbours[index] if placed[i])
        offsets[index] = gap(blocks[index].size, taken)
        placed[index] = True
    end = max((o + b.size for o, b in zip(offsets, blocks, strict=True)), default=0)
    return Layout(tuple(offsets), end)


def _smallest_gap(size: int, taken: _Taken) -> int:
    """The offset of the smallest gap of at least `size` bytes; the lowest one of several."""
    end = 0
    best: tuple[int, int] | None = None
    for offset, length in taken:
        room = offset - end
        if room >= size and (best is None or room < best[0]):
            best = room, end
        end = max(end, offset + length)
    return end if best is None else best[1]


def _nearest_end(limit: int, size: int, taken: _Taken) -> int:
    """The offset, at either end of a gap, nearest to 0 or to the limit; after all pieces if there is no other."""
    end = 0
    best: tuple[int, int] | None = None
    for offset, length in (*taken, (limit, 0)):
        if offset - end >= size:
            for place in (end, offset - size):
                found = min(place, limit - place - size), place
                best = found if best is None else min(best, found)
        end = max(end, offset + length)
    if best is not None:
        return best[1]
    return max((offset + length for offset, length in taken), default=0)


_Order: TypeAlias = Callable[[Sequence[Block]], list[int]]


def _by_size(blocks: Sequence[Block]) -> list[int]:
    return sorted(range(len(blocks)), key=lambda i: (-blocks[i].size, blocks[i].begin))


def _by_demand(blocks: Sequence[Block]) -> list[int]:
    """Blocks of the busiest moments first."""
    loads = _loads(blocks)

    def busiest(i: int) -> int:
        return max(loads[blocks[i].begin : blocks[i].end + 1])

    return sorted(range(len(blocks)), key=lambda i: (-busiest(i), -blocks[i].size, blocks[i].begin))


def _by_beginning(blocks: Sequence[Block]) -> list[int]:
    return sorted(range(len(blocks)), key=lambda i: (blocks[i].begin, -blocks[i].size))


def _by_duration(blocks: Sequence[Block]) -> list[int]:
    return sorted(
        range(len(blocks)), key=lambda i: (blocks[i].begin - blocks[i].end, -blocks[i].size)
    )


_ORDERS: tuple[_Order, ...] = (_by_size, _by_demand, _by_beginning, _by_duration)
