"""A compiled decoder as the model of an engine: its functions, its weights, and its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.narrow import is_tuple
from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.tensor import from_numpy
from relaxpy.serve.pages import Batch
from relaxpy.serve.sampling import Draw, sampling_arguments


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


def _tensors(arrays: Any) -> Any:
    """Nested tuples of arrays as tensors of the runtime, made once."""
    if is_tuple(arrays):
        return tuple(map(_tensors, arrays))
    return from_numpy(np.ascontiguousarray(arrays))


class DecoderModel:
    """Implements `relaxpy.serve.engine.Model`."""

    def __init__(
        self, decoder: Decoder, pages: int, adapters: tuple[Any, ...] | None = None, count: int = 0
    ) -> None:
        """`adapters` are `count` stacked ones (`relaxpy.models.decoder.stack_adapters`), if the decoder takes them.

        Raises: UsageError (`out-of-memory`) if there is no memory for the pages.
        """
        self.vocab_size, self.page_size = decoder.vocab_size, decoder.page_size
        self.windows: Sequence[int] = decoder.windows
        self.adapters = count
        self._decoder = decoder
        self._stacked = None if adapters is None else _tensors(adapters)
        try:
            self._caches = decoder.vm["alloc_pages"](pages)
        except MemoryError:
            raise UsageError(
                "out-of-memory",
                f"there is no memory for the keys and values of {pages * decoder.page_size} tokens",
                help="load with a smaller context, or serve with a smaller cache; or Scheme(cache_dtype='int8')",
            ) from None

    def step(self, batch: Batch, rows: np.ndarray) -> Any:
        """See `Model.step`."""
        vm = self._decoder.vm
        if batch.sources.shape[1]:
            vm["copy_pages"](batch.sources, batch.targets, self._caches)
        adapters = () if self._stacked is None else (batch.adapters, self._stacked)
        before_rows = batch.arguments[:-1]
        return vm["step"](*before_rows, rows, self._caches, *adapters, *self._decoder.weights)

    def sample(self, logits: Any, draws: Sequence[Draw]) -> tuple[np.ndarray, np.ndarray]:
        """See `Model.sample`."""
        tokens, logprobs = self._decoder.vm["sample"](
            logits, *sampling_arguments(draws, self.vocab_size)
        )
        return tokens.numpy(), logprobs.numpy()

    def logits(self, logits: Any) -> np.ndarray:
        """See `Model.logits`."""
        return logits.numpy()
