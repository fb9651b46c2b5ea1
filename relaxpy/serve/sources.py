"""The books of sources: which pages hold what an encoder has made of which input.

    book = SourceBook(pages=376, page_size=32, shape=SourceShape(positions=1500, stride=2, mels=80))
    source = book.hold(features, salt)               # of equal features and salts it is the same one
    model.encode([features], book.tables([source])[0]);  book.fill([source])
    tables, lengths = book.tables([source, …])       # of the sequences of a step
    book.release(source)

Beside the pages of tokens (`relaxpy.serve.pages`), the layers of a decoder with an encoder read pages of keys and
values of the encoder's output. They are filled once, by `encode`, have a fixed length, and are read by any number of
texts: the choices and beams of a request, retries, and requests for the same input. A source that nobody holds stays in
its pages, by its content, until the memory is needed (the least recently used first). Its salt is part of what it is
found by, as with prefixes, so that nobody learns from the time of an answer what another one has asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.serve.pages import ABSENT
from relaxpy.serve.request import Features


@dataclass(frozen=True)
class SourceShape:
    """What a model's encoder reads, and how long what it gives is."""

    positions: int
    """The most positions of its output."""
    stride: int = 1
    """Frames, or tokens, of a position."""
    mels: int = 0
    """Bands of features; 0: it reads tokens."""
    vocab_size: int = 0
    """Of the tokens that it reads."""
    reach: int = 1
    """Frames, or tokens, that the first position cannot be without."""

    @property
    def frames(self) -> int:
        """The most frames, or tokens, of an input: for Whisper, those of 30 seconds."""
        return self.positions * self.stride + self.reach - 1

    def length(self, features: Features) -> int:
        """The positions of the output for an input. Raises: UsageError (`bad-prompt`) for one that does not fit."""
        shape = features.values.shape
        expected = f"({self.mels}, frames)" if self.mels else "(tokens,)"
        if len(shape) != 1 + bool(self.mels) or (self.mels and shape[0] != self.mels):
            raise UsageError("bad-prompt", f"the encoder reads {expected}, got features {shape}")
        if not self.reach <= shape[-1] <= self.frames:
            raise UsageError(
                "bad-prompt",
                f"the encoder reads {self.reach} to {self.frames} {'frames' if self.mels else 'tokens'}, got "
                f"{shape[-1]}",
                help="cut it into windows" if self.mels else "cut it into parts",
            )
        if (
            not self.mels
            and not 0 <= features.values.min() <= features.values.max() < self.vocab_size
        ):
            raise UsageError("bad-prompt", f"the encoder's tokens are 0 to {self.vocab_size - 1}")
        return (shape[-1] - self.reach) // self.stride + 1


@dataclass(eq=False)
class Source:
    """What an encoder has made of an input, or will."""

    features: Features
    salt: str
    length: int
    """Positions."""
    pages: list[int]
    users: int = 1
    is_filled: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.features.digest, self.salt


@dataclass(eq=False)
class SourceBook:
    """Sources, and the pages that hold them. It is used by one thread."""

    pages: int
    page_size: int
    shape: SourceShape
    encoded: int = 0
    """How many inputs were encoded."""
    _free: list[int] = field(init=False)
    _sources: dict[tuple[str, str], Source] = field(default_factory=dict[tuple[str, str], Source])
    """All of them. Those that nobody holds are in the order in which they were released."""

    def __post_init__(self) -> None:
        if self.pages < self.pages_of(self.shape.positions):
            raise UsageError(
                "page-book",
                f"{self.pages} pages have no room for an input of {self.shape.positions} positions",
            )
        self._free = [*range(self.pages)][::-1]

    @property
    def available(self) -> int:
        """The number of pages that no source which is held has."""
        return len(self._free) + sum(
            len(each.pages) for each in self._sources.values() if not each.users
        )

    def pages_of(self, positions: int) -> int:
        """The pages of a source of so many positions."""
        return -(-positions // self.page_size)

    def hold(self, features: Features, salt: str = "") -> Source | None:
        """The source of these features, which is held until it is released as often as held; None if there is no room
        for it. Raises: UsageError (`bad-prompt`) for features that the encoder does not read."""
        length = self.shape.length(features)
        found = self._sources.get((features.digest, salt))
        if found is not None:
            found.users += 1
            return found
        needed = self.pages_of(length)
        if needed > self.available:
            return None
        unused = [each for each in self._sources.values() if not each.users]
        for each in unused:
            if len(self._free) >= needed:
                break
            self._forget(each)
        made = Source(features, salt, length, [self._free.pop() for _ in range(needed)])
        self._sources[made.key] = made
        return made

    def release(self, source: Source) -> None:
        """Hold a source once less. One that was never filled is forgotten with the last holder."""
        source.users -= 1
        if source.users:
            return
        if not source.is_filled:
            self._forget(source)
            return
        self._sources[source.key] = self._sources.pop(source.key)  # the last one to be forgotten

    def fill(self, sources: Sequence[Source]) -> None:
        """Note that sources were encoded into their pages."""
        for each in sources:
            each.is_filled = True
        self.encoded += len(sources)

    def tables(self, sources: Sequence[Source | None]) -> tuple[np.ndarray, np.ndarray]:
        """The pages (sources, width) and lengths (sources,) of the sources of sequences, int32. None is an empty
        one."""
        width = max((len(each.pages) for each in sources if each is not None), default=1)
        tables = np.full((len(sources), width), ABSENT, np.int32)
        lengths = np.zeros(len(sources), np.int32)
        for row, each in enumerate(sources):
            if each is not None:
                tables[row, : len(each.pages)], lengths[row] = each.pages, each.length
        return tables, lengths

    def _forget(self, source: Source) -> None:
        del self._sources[source.key]
        self._free += reversed(source.pages)
