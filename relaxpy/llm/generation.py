"""A text that a language model writes: an iterator of its pieces, which says afterwards why it ended and how fast it
was."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from relaxpy.llm.written_text import Finish, WrittenText
from relaxpy.serve import Piece, Request

if TYPE_CHECKING:
    from relaxpy.llm.language_model import LanguageModel


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens."""

    prompt_tokens: int
    cached_tokens: int
    """Those of the prompt whose keys and values were in the cache."""
    completion_tokens: int


@dataclass(frozen=True)
class Timings:
    """Durations in seconds."""

    prompt: float
    """Until the logits of the first token."""
    decoding: float
    """Of all tokens after the first."""
    prompt_tokens: int
    """The tokens that were computed, not found in the cache."""
    decoded_tokens: int

    @property
    def prompt_per_second(self) -> float:
        """Tokens of the prompt in a second; 0 if nothing was computed."""
        return self.prompt_tokens / self.prompt if self.prompt > 0 else 0.0

    @property
    def per_second(self) -> float:
        """Tokens after the first in a second; 0 if there are none."""
        return self.decoded_tokens / self.decoding if self.decoding > 0 else 0.0


class Generation(Iterator[str]):
    """The pieces of a text, computed when they are asked for.

    Joined they are `text`. Closing it, or dropping it, gives its pages back; so does `with model.generate(…) as
    pieces:`. A character is never cut in two.
    """

    def __init__(
        self, model: LanguageModel, request: Request, text: WrittenText, *, prefill: int
    ) -> None:
        """Used by `LanguageModel.generate`, which checks all of this."""
        self.prompt = request.prompt
        """The tokens that were given."""
        self.sampling = request.sampling
        self.max_tokens = request.max_tokens
        """The most tokens that are generated."""
        self.tokens: list[int] = []
        """The tokens that were generated, with the one that ends the text."""
        self.text = ""
        """The pieces so far, joined."""
        self.finish_reason: Finish | Literal["cancelled"] | None = None
        """`stop`: the model ended the text, or a stop string was found; `length`: `max_tokens`, or the context is full;
        `repetition`: it repeats itself, and that was asked for; `cancelled`: closed, or an exception was raised; None:
        not yet."""
        self._cached = 0
        self._prompt_seconds = self._seconds = 0.0
        self._written = text
        self._pieces = self._run(model, request, prefill)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, which is no part of it."""
        return self._written.stops.found

    @property
    def usage(self) -> Usage:
        """The numbers of tokens so far."""
        return Usage(len(self.prompt), self._cached, len(self.tokens))

    @property
    def timings(self) -> Timings:
        """The durations so far. The time that the caller takes between two pieces is not part of them."""
        return Timings(
            self._prompt_seconds,
            self._seconds,
            len(self.prompt) - self._cached if self.tokens else 0,
            max(len(self.tokens) - 1, 0),
        )

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """End the text here. Its pages are given back; those of its beginning stay in the cache for others."""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
        self._pieces.close()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self.finish_reason or ("running" if self.tokens else "not begun")
        return f"<generation: {len(self.prompt)} tokens of prompt, {len(self.tokens)} generated, {state}>"

    def _run(
        self, model: LanguageModel, request: Request, prefill: int
    ) -> Generator[str, None, None]:
        number = model.begin(request)
        try:
            start = time.perf_counter()
            while self.finish_reason is None:
                for piece in model.step(number, prefill):
                    seconds = time.perf_counter() - start
                    if self.tokens:
                        self._seconds += seconds
                    else:
                        self._prompt_seconds = seconds
                    if text := self._accepted(piece):
                        self.text += text
                        yield text
                    start = time.perf_counter()
        finally:
            self.finish_reason = self.finish_reason or "cancelled"
            model.end(number)

    def _accepted(self, piece: Piece) -> str:
        """The text that is certain with another piece. Raises: the error that it has."""
        if piece.error is not None:
            raise piece.error
        if piece.cached is not None:
            self._cached = piece.cached
        text, count = self._written.feed(piece.tokens, piece.finish)
        self.tokens += piece.tokens[:count]
        self.finish_reason = self._written.finish
        return text
