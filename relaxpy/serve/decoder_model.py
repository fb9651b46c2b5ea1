"""A compiled decoder as the model of an engine: its functions, its weights, and its cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.narrow import is_tuple
from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.tensor import from_numpy
from relaxpy.serve.pages import Batch, PageBook
from relaxpy.serve.pictures import Picture, PictureShape
from relaxpy.serve.request import Features
from relaxpy.serve.sampling import Draw, ruled_logprob, sampling_arguments
from relaxpy.serve.sources import SourceShape


class Decoder(Protocol):
    """The part of `relaxpy.models.loaded.LoadedDecoder` that is used."""

    @property
    def vm(self) -> VirtualMachine: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def page_size(self) -> int: ...
    @property
    def windows(self) -> tuple[int, ...]: ...
    @property
    def weights(self) -> tuple[Any, ...]: ...
    @property
    def source(self) -> SourceShape | None: ...
    @property
    def pictures(self) -> PictureShape | None: ...
    def weights_of(self, function: str) -> tuple[Any, ...]:
        """The last arguments of a function."""
        ...


_MASKS = 9
"""The number of the masks among the arguments of sampling."""


def _tensors(arrays: Any) -> Any:
    """Nested tuples of arrays as tensors of the runtime, made once."""
    if is_tuple(arrays):
        return tuple(map(_tensors, arrays))
    return from_numpy(np.ascontiguousarray(arrays))


def _row(logits: Callable[[], np.ndarray], row: int) -> np.ndarray:
    return logits()[row]


class DecoderModel:
    """Implements `relaxpy.serve.engine.Model`."""

    def __init__(
        self,
        decoder: Decoder,
        pages: int,
        adapters: tuple[Any, ...] | None = None,
        count: int = 0,
        source_pages: int = 0,
    ) -> None:
        """`source_pages` are those of the outputs of an encoder, if there is one; `adapters` are `count` stacked ones
        (`relaxpy.models.decoder.stack_adapters`), if the decoder takes them.

        Raises: UsageError (`out-of-memory`) if there is no memory for the pages.
        """
        self.vocab_size, self.page_size = decoder.vocab_size, decoder.page_size
        self.windows: Sequence[int] = decoder.windows
        self.adapters = count
        self.source, self.pictures = decoder.source, decoder.pictures
        self._decoder = decoder
        self._stacked = None if adapters is None else _tensors(adapters)
        try:
            self._caches = decoder.vm["alloc_pages"](pages)
            self._sources: tuple[Any, ...] = ()
            if self.source is not None:
                self._sources = decoder.vm["alloc_sources"](source_pages)
        except MemoryError:
            raise UsageError(
                "out-of-memory",
                f"there is no memory for the keys and values of {pages * decoder.page_size} tokens",
                help="load with a smaller context, or serve with a smaller cache; or Scheme(cache_dtype='int8')",
            ) from None

    def encode(self, features: Sequence[Features], tables: np.ndarray) -> None:
        """See `Model.encode`."""
        given = np.stack([each.values for each in features])
        decoder = self._decoder
        decoder.vm["encode"](given, tables, self._sources, *decoder.weights_of("encode"))

    def encode_picture(self, picture: Picture) -> np.ndarray:
        """See `Model.encode_picture`. Raises: UsageError (`bad-prompt`) for a picture that does not give as many rows
        as it has tokens."""
        decoder = self._decoder
        given = decoder.vm["encode_picture"](*picture.inputs, *decoder.weights_of("encode_picture"))
        rows = given.numpy()
        if len(rows) != picture.tokens:
            raise UsageError(
                "bad-prompt",
                f"a picture has {picture.tokens} tokens in the prompt, and the tower makes {len(rows)} rows of it",
            )
        return rows

    def align(
        self, tokens: np.ndarray, texts: int, tables: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The attention of the alignment heads to a source, (heads, tokens, positions), while the tokens (tokens,)
        int64 of a text are read, and the log-probability of each token but the first after those before it, (tokens -
        1,), among the tokens below `texts`. Tables (1, width) and lengths (1,) are those of the source."""
        decoder = self._decoder
        pages = -(-len(tokens) // self.page_size)
        book = PageBook(pages, self.page_size, self.windows)
        batch = book.batch({book.add(tokens.tolist()): len(tokens)})
        caches = decoder.vm["alloc_pages"](pages)
        rows = np.arange(len(tokens), dtype=np.int32)
        following, below = np.append(tokens[1:], 0), np.array([texts], np.int64)
        weights, logprobs = decoder.vm["align"](
            *batch.arguments[:-1], rows, caches, tables, lengths, self._sources, following, below,
            *decoder.weights_of("align"),
        )  # fmt: skip
        return weights.numpy()[..., : int(lengths[0])], logprobs.numpy()[:-1]

    def step(self, batch: Batch, rows: np.ndarray) -> Any:
        """See `Model.step`."""
        vm = self._decoder.vm
        if batch.sources.shape[1]:
            vm["copy_pages"](batch.sources, batch.targets, self._caches)
        adapters = () if self._stacked is None else (batch.adapters, self._stacked)
        sources = () if batch.encoded is None else (*batch.encoded, self._sources)
        pictures = batch.pictures or ()
        given = *batch.arguments[:-1], rows, self._caches, *adapters, *sources, *pictures
        return vm["step"](*given, *self._decoder.weights)

    def sample(self, logits: Any, draws: Sequence[Draw]) -> tuple[np.ndarray, np.ndarray]:
        """See `Model.sample`."""
        numbers: list[np.ndarray] = []

        def as_numbers() -> np.ndarray:
            if not numbers:
                numbers.append(self.logits(logits))
            return numbers[0]

        given = sampling_arguments(draws, self.vocab_size, as_numbers)
        drawn, logprobs = (x.numpy() for x in self._decoder.vm["sample"](logits, *given))
        ruled = [row for row, draw in enumerate(draws) if draw.ruled and drawn[row] >= 0]
        if ruled:
            logprobs = logprobs.copy()
            for row in ruled:
                of_row = partial(_row, as_numbers, row)
                mask, before = given[_MASKS][row], float(logprobs[row])
                logprobs[row] = ruled_logprob(of_row, mask, int(drawn[row]), before)
        return drawn, logprobs

    def logits(self, logits: Any) -> np.ndarray:
        """See `Model.logits`."""
        return logits.numpy()
