"""A text that a language model writes: an iterator of its pieces, which says afterwards why it ended and how fast it
was."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from relaxpy.llm.detokenizer import Detokenizer
from relaxpy.llm.loops import LoopDetector
from relaxpy.llm.stop_strings import StopStrings
from relaxpy.serve import Draw, Sampling

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
        self,
        model: LanguageModel,
        prompt: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        stops: StopStrings,
        end_tokens: frozenset[int],
        detokenizer: Detokenizer,
        prefill: int,
        loops: LoopDetector | None = None,
    ) -> None:
        """Used by `LanguageModel.generate`, which checks all of this."""
        self.prompt = tuple(prompt)
        """The tokens that were given."""
        self.sampling = sampling
        self.max_tokens = max_tokens
        """The most tokens that are generated."""
        self.tokens: list[int] = []
        """The tokens that were generated, with the one that ends the text."""
        self.text = ""
        """The pieces so far, joined."""
        self.finish_reason: Literal["stop", "length", "repetition", "cancelled"] | None = None
        """`stop`: the model ended the text, or a stop string was found; `length`: `max_tokens`, or the context is full;
        `repetition`: it repeats itself, and that was asked for; `cancelled`: closed, or an exception was raised; None:
        not yet."""
        self._cached = 0
        self._prompt_seconds = self._seconds = 0.0
        self._stops, self._ends, self._detokenizer = stops, end_tokens, detokenizer
        self._loops = loops
        self._pieces = self._run(model, prefill)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, which is no part of it."""
        return self._stops.found

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

    def _run(self, model: LanguageModel, prefill: int) -> Generator[str, None, None]:
        book, sequence = model.book, model.book.add(self.prompt)
        try:
            self._cached = len(self.prompt) - len(book.pending(sequence))
            history = list(self.prompt)
            while self.finish_reason is None:
                start = time.perf_counter()
                logits = model.step(sequence, prefill)
                while book.pending(sequence):
                    logits = model.step(sequence, prefill)
                draw = Draw(self.sampling, history, len(self.prompt), ends=self._ends)
                token = model.sample(logits, draw)
                seconds = time.perf_counter() - start
                if self.tokens:
                    self._seconds += seconds
                else:
                    self._prompt_seconds = seconds
                history.append(token)
                piece = self._accepted(token)
                if piece:
                    self.text += piece
                    yield piece
                book.append(sequence, [token])
        finally:
            self.finish_reason = self.finish_reason or "cancelled"
            book.free(sequence)

    def _accepted(self, token: int) -> str:
        """The text that is certain with another token. Sets the reason if it is the last one."""
        self.tokens.append(token)
        stops = self._stops
        if token in self._ends:
            self.finish_reason = "stop"
            return stops.feed(self._detokenizer.finish()) + stops.finish()
        text = self._detokenizer.feed(token)
        piece = stops.feed(text)
        if self._loops is not None and self._loops.feed(token, text):
            self.finish_reason = "repetition"
        elif len(self.tokens) >= self.max_tokens:
            self.finish_reason = "length"
        if stops.found is None and self.finish_reason is not None:
            piece += stops.feed(self._detokenizer.finish(cut=True)) + stops.finish()
        if stops.found is not None:
            self.finish_reason = "stop"
        return piece
