"""What a transcription asks of a model: the texts of windows, the probabilities of tokens, and attention.

`relaxpy.speech.engine_recogniser` has it of an engine; tests have one of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from relaxpy.serve.timestamp_rules import TimestampRules


@dataclass(frozen=True)
class WindowRequest:
    """The text of a window to write."""

    prompt: tuple[int, ...]
    most: int
    """The most tokens."""
    end: int
    """The token that ends the text."""
    temperature: float = 0.0
    beam_size: int = 1
    """Beams at temperature 0."""
    best_of: int = 1
    """Texts that are drawn at other temperatures."""
    patience: float = 1.0
    length_penalty: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    suppress: tuple[int, ...] = ()
    begin_suppress: tuple[int, ...] = ()
    rules: TimestampRules | None = None
    probe: tuple[int, int] = (0, 0)
    """A place of the prompt and a token: how probable is it after this place?"""
    seed: int = 0


@dataclass(frozen=True)
class WindowText:
    """The text of a window."""

    tokens: tuple[int, ...]
    """Without the one that ends it."""
    logprob: float
    """The sum of the logarithms of their probabilities, with that of the end."""
    probe: float
    """The probability that was asked for."""
    logprobs: tuple[float, ...] = ()
    """Of the tokens."""

    @property
    def mean_logprob(self) -> float:
        return self.logprob / (len(self.tokens) + 1)


class Recogniser(Protocol):
    """A model with an encoder of sound and a decoder of text. `features` are float32 (mels, frames)."""

    mels: int
    frames: int
    """Of a window."""
    positions: int
    """The most tokens of a text, prompt included."""

    def write(self, asked: Sequence[tuple[np.ndarray, WindowRequest]]) -> list[WindowText]:
        """The text of each window, by its features; of several that are drawn, the one with the largest log-probability
        by its length. Windows are written together."""
        ...

    def logprobs(self, features: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
        """The logarithms of the probabilities (vocabulary,) of the next token."""
        ...

    def align(
        self, features: np.ndarray, tokens: tuple[int, ...], texts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The weights (heads, tokens, positions) of attention when each token is read, of the heads that follow the
        sound; they are 1 together over the positions. Then the logarithm of the probability of each token but the
        first after those before it, among the tokens below `texts`: (tokens - 1,)."""
        ...
