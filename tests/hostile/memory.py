"""What the process of the hostile device knows: memory, queues, and which work is ordered before which.

Every command of a queue has a vector clock: how many commands of each queue come before it, by the order of its own
queue, by waits, and by what the host had synchronised when it put the command there. Two commands that use a buffer, at
least one of them to write, must be ordered; if they are not, that is an error, whatever the order in which they happen
to run.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ALIGNMENT = 256
MOST_BUFFERS = 8
_ZONE = 512
"""Bytes around a buffer that nobody may write to."""
_ZONE_BYTE, _FRESH_BYTE = 0xC3, 0xFF
"""What these hold, and what memory holds that nobody has written: not a number, in floats."""

Recorded = tuple[str, tuple[Any, ...]]
"""A command of a graph, and its arguments."""
Clock = dict[int, int]
"""Queue → how many of its commands."""


class Mistake(Exception):
    """What a queue was given cannot be done."""


def merge(clock: Clock, other: Clock) -> None:
    for queue, count in other.items():
        clock[queue] = max(clock.get(queue, 0), count)


class Memory:
    """A buffer, with who used it last."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._bytes = np.full(nbytes + 2 * _ZONE + ALIGNMENT, _ZONE_BYTE, np.uint8)
        self._start = _ZONE + -(self._bytes.ctypes.data + _ZONE) % ALIGNMENT
        self.spoil()
        self.freed = False
        self.writer: tuple[int, int] | None = None
        """The queue of the last command that wrote, and that command's number."""
        self.readers: dict[int, int] = {}
        """Queues that have read since, with the numbers of their last commands that did."""

    def spoil(self) -> None:
        self.bytes()[...] = _FRESH_BYTE

    def bytes(self) -> np.ndarray:
        return self._bytes[self._start : self._start + self.nbytes]

    def part(self, offset: int, nbytes: int) -> np.ndarray:
        if offset % ALIGNMENT:
            raise Mistake(f"the offset {offset} is no multiple of {ALIGNMENT}")
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise Mistake(f"bytes {offset} to {offset + nbytes} of a buffer of {self.nbytes}")
        return self.bytes()[offset : offset + nbytes]

    def address(self, offset: int) -> int:
        return self._bytes.ctypes.data + self._start + offset

    def check_zones(self) -> None:
        end = self._start + self.nbytes
        zones = self._bytes[: self._start], self._bytes[end:]
        if any((zone != _ZONE_BYTE).any() for zone in zones):
            for zone in zones:
                zone[...] = _ZONE_BYTE
            raise Mistake("a kernel has written outside of a buffer")

    def use(self, queue: int, number: int, clock: Clock, written: bool) -> None:
        """Note that a command uses it, which must be ordered behind what it conflicts with."""
        if self.freed:
            raise Mistake("the memory was freed")
        before = [self.writer] if self.writer is not None else []
        if written:
            before += list(self.readers.items())
        for other, count in before:
            if other != queue and clock.get(other, 0) < count:
                raise Mistake(
                    f"queue {queue} uses memory while queue {other} does, and waits for nothing"
                )
        if written:
            self.writer, self.readers = (queue, number), {}
        else:
            self.readers[queue] = number


@dataclass
class Command:
    """Work of a queue."""

    what: str
    args: tuple[Any, ...]
    clock: Clock
    """What the host had synchronised when it put it there."""


@dataclass
class Queue:
    """Work in order, some time."""

    number: int
    pending: deque[Command] = field(default_factory=deque)
    put: int = 0
    """Commands that it was given."""
    done: int = 0
    clock: Clock = field(default_factory=dict)
    clocks: dict[int, Clock] = field(default_factory=dict)
    """The clock behind each command that another queue waits for."""
    marks: set[int] = field(default_factory=set)
    """Commands that another queue waits for."""
    errors: list[str] = field(default_factory=list)
    downloads: dict[int, bytes] = field(default_factory=dict)
    captured: list[Recorded] | None = None
    """The commands since a recording began; None: there is none."""
    mistake: str = ""
    """What was put into it while it recorded, and cannot be."""


def address_of(shape: Iterable[int]) -> Any:
    """Sizes as a kernel reads them; the array keeps them alive."""
    sizes = tuple(shape)
    return (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
