"""Words of segments with their times, and what improbable words say about a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from relaxpy.speech.alignment import (
    TimedWord,
    median_length,
    shortened,
    timed_words,
    token_times,
    with_punctuation,
)
from relaxpy.speech.options import TranscriptionOptions
from relaxpy.speech.recogniser import Recogniser
from relaxpy.speech.segments import Word
from relaxpy.speech.vocabulary import Vocabulary

_PUNCTUATION = "\"'“¿([{-\"'.。,，!！?？:：”)]}、"
_SHORT, _LONG = 0.133, 2.0
"""Seconds: words out of this range are odd."""
_IMPROBABLE = 0.15


@dataclass(frozen=True)
class Piece:
    """A segment while it is made, with times in seconds of the recording."""

    start: float
    end: float
    tokens: tuple[int, ...]
    words: tuple[Word, ...] = ()


def window_words(
    recogniser: Recogniser,
    vocabulary: Vocabulary,
    options: TranscriptionOptions,
    language: str,
    features: np.ndarray,
    frames: int,
    text: tuple[int, ...],
) -> list[TimedWord]:
    """The words of the text of a window, which has so many frames. Seconds are those of the window."""
    if not text:
        return []
    start = vocabulary.start(language, options.task)
    tokens = (*start, vocabulary.without_times, *text, vocabulary.end)
    weights, logprobs = recogniser.align(features, tokens, vocabulary.end)
    weights = weights[:, :, : max(1, frames // 2)].astype(np.float64)
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    # A token is written when the one before it is read.
    begins = token_times(weights, slice(len(start), -1))
    words = vocabulary.words(text, language)
    return timed_words(words, begins, np.exp(logprobs[len(start) : -1]).tolist())


def with_words(
    pieces: Sequence[Piece], words: Sequence[TimedWord], options: TranscriptionOptions, offset: float, spoken: float,
    end: int,
) -> list[Piece]:  # fmt: skip
    """Segments with the words of their window, which begins `offset` seconds after the beginning of the recording. The
    segments get the times of their words, unless those are far off. `spoken` is where the last word before the window
    ends, and `end` the first token that is no text."""
    median = median_length(words)
    longest = 2 * median
    words = shortened(words, longest) if median else words
    words = with_punctuation(words, options.prepend_punctuations, options.append_punctuations)
    found: list[Piece] = []
    at = 0
    for piece in pieces:
        count, taken = sum(token < end for token in piece.tokens), 0
        own: list[Word] = []
        while at < len(words) and taken < count:
            word = words[at]
            if word.word:
                begin, after = round(offset + word.start, 2), round(offset + word.end, 2)
                own.append(Word(begin, after, word.word, word.probability))
            taken += len(word.tokens)
            at += 1
        if own:
            piece, own = _fitted(piece, own, median, longest, spoken)
            spoken = piece.end
        found.append(replace(piece, words=tuple(own)))
    return found


def _fitted(
    piece: Piece, words: list[Word], median: float, longest: float, spoken: float
) -> tuple[Piece, list[Word]]:
    """A segment and its words: the first word after a pause is not long, and what is far from the times of the segment
    gives way to them."""
    first = words[0]
    is_long = first.end - first.start > longest or (
        len(words) > 1 and words[1].end - first.start > 2 * longest
    )
    if first.end - spoken > 4 * median and is_long:
        if len(words) > 1 and words[1].end - words[1].start > longest:
            border = max(words[1].end / 2, words[1].end - longest)
            words[:2] = replace(first, end=border), replace(words[1], start=border)
        words[0] = replace(words[0], start=max(0.0, words[0].end - longest))
    first = words[0]
    if piece.start < first.end and piece.start - 0.5 > first.start:
        words[0] = replace(first, start=max(0.0, min(first.end - median, piece.start)))
    else:
        piece = replace(piece, start=first.start)
    last = words[-1]
    if piece.end > last.start and piece.end + 0.5 < last.end:
        words[-1] = replace(last, end=max(last.start + median, piece.end))
    else:
        piece = replace(piece, end=last.end)
    return piece, words


def last_end(pieces: Sequence[Piece]) -> float | None:
    """Where the last word ends; None without segments."""
    ends = [word.end for piece in pieces for word in piece.words]
    return ends[-1] if ends else pieces[-1].end if pieces else None


def is_odd(piece: Piece | None) -> bool:
    """Are the words of a segment improbable, or too short or long, as those that nobody spoke mostly are?"""
    if piece is None or not piece.words:
        return False
    words = [word for word in piece.words if word.word not in _PUNCTUATION][:8]
    score = sum(map(_oddness, words))
    return score >= 3 or score + 0.01 >= len(words)


def _oddness(word: Word) -> float:
    length = word.end - word.start
    found = 1.0 if word.probability < _IMPROBABLE else 0.0
    found += max(0.0, _SHORT - length) * 15
    return found + max(0.0, length - _LONG)


def next_spoken(pieces: Sequence[Piece]) -> Piece | None:
    """The first segment that has words."""
    return next((piece for piece in pieces if piece.words), None)
