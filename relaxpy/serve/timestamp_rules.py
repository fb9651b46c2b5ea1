"""The rules by which Whisper writes times: which tokens may come next, by the text so far and by the logits.

They are those of OpenAI's `ApplyTimestampRules` and transformers' `WhisperTimeStampLogitsProcessor`. Times come in
pairs, the end of a segment and the beginning of the next, never go back, and a text begins with one. Where all times
together are more probable than each token of text, a time comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.serve.log_sum import log_sum


@dataclass(frozen=True)
class TimestampRules:
    """Tokens of times: all from `first` on are times, in steps of 20 ms. Raises: UsageError (`sampling`)."""

    first: int
    """The token of the time 0."""
    no_timestamps: int
    """`<|notimestamps|>`, which never comes."""
    end: int
    """The token that ends a text. Those below it are text."""
    max_initial: int | None = None
    """The latest time that a text begins with, in steps; None: any."""
    before: tuple[int, ...] = ()
    """Tokens at the end of the prompt that are the beginning of the text."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", tuple(self.before))
        numbers = self.first, self.no_timestamps, self.end, self.max_initial or 0, *self.before
        if any(not isinstance(each, int) or not 0 <= each < 1 << 31 for each in numbers):
            raise UsageError(
                "sampling", f"rules of timestamps name tokens by their numbers, got {self}"
            )

    def restrict(self, allowed: np.ndarray, written: Sequence[int], logits: np.ndarray) -> None:
        """Of the tokens (vocabulary,) that are allowed, forbid those that must not come after what was `written` since
        the prompt, with these logits (vocabulary,)."""
        first, written = self.first, (*self.before, *written)
        allowed[self.no_timestamps : self.no_timestamps + 1] = False
        last = len(written) >= 1 and written[-1] >= first
        second_last = len(written) < 2 or written[-2] >= first
        if last:
            if second_last:
                allowed[first:] = False
            else:
                allowed[: self.end] = False
        time = next((token for token in reversed(written) if token >= first), None)
        if time is not None:
            allowed[first : time + (0 if last and not second_last else 1)] = False
        if not written:
            allowed[:first] = False
            if self.max_initial is not None:
                allowed[first + self.max_initial + 1 :] = False
        texts, times = (
            part[chosen].astype(np.float64)
            for part, chosen in (
                (logits[:first], allowed[:first]),
                (logits[first:], allowed[first:]),
            )
        )
        if len(times) and len(texts):
            largest = times.max()
            together = log_sum(times) if np.isfinite(largest) else largest
            if together > texts.max():
                allowed[:first] = False
