"""A model without numbers: its next token is a function of what it reads in the pages of its cache. Whoever gives it
wrong pages gets wrong texts."""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.serve import Batch, Draw, Engine, Limits
from relaxpy.serve.pictures import Picture, PictureShape
from relaxpy.serve.request import Features, Request
from relaxpy.serve.sources import SourceShape


def drawn(seen: Sequence[int], seed: int, choice: int, position: int, vocab: int) -> int:
    """The next token after the tokens that a model reads."""
    return zlib.crc32(repr((list(seen), seed, choice, position)).encode()) % vocab


def numbers_of(picture: Picture) -> list[int]:
    """What a model reads in the place of a picture's tokens."""
    return [int(each) for each in picture.inputs[0]]


def scores_after(seen: Sequence[int], vocab: int) -> list[float]:
    """The logits after the tokens that a model reads."""
    return [zlib.crc32(repr((list(seen), token)).encode()) / 2**30 for token in range(vocab)]


def expected(
    request: Request, choice: int, windows: Sequence[int] = (0,), vocab: int = 4
) -> list[int]:
    """The text of a request, written alone."""
    text = list(request.prompt)
    while len(text) - len(request.prompt) < request.max_tokens:
        seen, read = [request.adapter], list(text)
        for start, picture in request.pictures:
            read[start : start + picture.tokens] = numbers_of(picture)
        for window in windows:
            seen += read[-window:] if window else read
        if request.features is not None:
            seen += request.features.values.tolist()
        text.append(drawn(seen, request.sampling.seed, choice, len(text), vocab))
        if text[-1] in request.ends:
            break
    return text[len(request.prompt) :]


@dataclass
class FakeModel:
    """Implements `relaxpy.serve.engine.Model`."""

    pages: int
    page_size: int = 4
    windows: Sequence[int] = (0,)
    vocab_size: int = 4
    adapters: int = 2
    most_tokens: int = 0
    """The most tokens of a step so far."""
    failing: set[int] = field(default_factory=set[int])
    """Steps that raise, before anything is written."""
    steps: int = 0
    drawn_tokens: int = 0
    """Only the first so many tokens are drawn; 0: all."""
    source: SourceShape | None = None
    source_pages: int = 0
    encoded: list[int] = field(default_factory=list[int])
    """The number of inputs of each call of `encode`."""
    pictures: PictureShape | None = None
    looked: list[Picture] = field(default_factory=list[Picture])
    """The picture of each call of `encode_picture`."""
    blind: set[Picture] = field(default_factory=set[Picture])
    """Pictures that raise."""

    def __post_init__(self) -> None:
        shape = len(self.windows), self.pages, self.page_size
        self._cache = np.full(shape, -9, np.int64)
        self._sources = np.full((self.source_pages, self.page_size), -9, np.int64)

    def encode(self, features: Sequence[Features], tables: np.ndarray) -> None:
        self.steps += 1
        if self.steps in self.failing:
            raise MemoryError("an input that fails")
        self.encoded.append(len(features))
        for each, table in zip(features, tables, strict=True):
            values = each.values
            padded = np.full(table.size * self.page_size, -7, np.int64)
            padded[: len(values)] = values
            self._sources[table] = padded.reshape(-1, self.page_size)

    def encode_picture(self, picture: Picture) -> np.ndarray:
        if picture in self.blind:
            raise MemoryError("a picture that fails")
        self.looked.append(picture)
        return np.array(numbers_of(picture), np.float32)[:, None]

    def step(self, batch: Batch, rows: np.ndarray) -> Any:
        self.steps += 1
        if self.steps in self.failing:
            raise MemoryError("a step that fails")
        read = batch.tokens
        if batch.pictures is not None:
            embeds, sources = batch.pictures
            assert sources.shape == read.shape
            read = np.where(sources >= 0, np.append(embeds[:, 0], 0)[sources], read).astype(
                np.int64
            )
        self.most_tokens = max(self.most_tokens, len(batch.tokens))
        for group, (sources, targets) in enumerate(zip(batch.sources, batch.targets)):
            for source, target in zip(sources, targets):
                if source >= 0:
                    self._cache[group, target] = self._cache[group, source]
        owner = np.repeat(np.arange(len(batch.lengths)), np.diff(batch.starts))
        for group in range(len(self.windows)):
            page = batch.tables[group, owner, batch.positions // self.page_size]
            assert (page >= 0).all()
            self._cache[group, page, batch.positions % self.page_size] = read
        return [
            self._seen(batch, int(owner[row]), int(batch.positions[row]), int(batch.adapters[row]))
            for row in rows
        ]

    def _seen(self, batch: Batch, sequence: int, position: int, adapter: int) -> list[int]:
        """What the token at a position reads in each group."""
        seen = [adapter]
        for group, window in enumerate(self.windows):
            first = max(position + 1 - window, 0) if window else 0
            places = np.arange(first, position + 1)
            pages = batch.tables[group, sequence, places // self.page_size]
            assert (pages >= 0).all()
            seen += self._cache[group, pages, places % self.page_size].tolist()
        if batch.encoded is not None:
            tables, lengths = batch.encoded
            pages = tables[sequence, : -(-int(lengths[sequence]) // self.page_size)]
            seen += self._sources[pages].reshape(-1)[: lengths[sequence]].tolist()
        return seen

    def sample(self, logits: Any, draws: Sequence[Draw]) -> tuple[np.ndarray, np.ndarray]:
        assert len(logits) == len(draws)
        tokens = [
            drawn(
                seen,
                draw.sampling.seed,
                draw.request,
                len(draw.tokens),
                self.drawn_tokens or self.vocab_size,
            )
            for seen, draw in zip(logits, draws)
        ]
        return np.array(tokens), np.zeros(len(tokens), np.float32)

    def logits(self, logits: Any) -> np.ndarray:
        found = [scores_after(seen, self.vocab_size) for seen in logits]
        return np.array(found, np.float32).reshape(len(logits), self.vocab_size)


EXITS, SLEEPS = 4, 5
"""Tokens that no text of `Mortal` has, except as a prompt."""


class Mortal(FakeModel):
    """A model whose process ends when it reads the token EXITS, and sleeps at SLEEPS."""

    def step(self, batch: Batch, rows: np.ndarray) -> Any:
        if EXITS in batch.tokens:
            os._exit(7)
        if SLEEPS in batch.tokens:
            time.sleep(1000)
        return super().step(batch, rows)


def fake_engine(pages: int, waiting: int = 64) -> tuple[Engine, dict[str, Any]]:
    """For `relaxpy.serve.engine_process`."""
    sys.stdout.write("what is printed is no message")
    model = Mortal(pages, vocab_size=6, drawn_tokens=4)
    return Engine(model, pages=pages, limits=Limits(8, waiting)), {"pages": pages}


def slow_engine(mark: str) -> tuple[Engine, dict[str, Any]]:
    """One that is loaded for ever, from when the file `mark` is there."""
    Path(mark).touch()
    time.sleep(1000)
    return fake_engine(8)
