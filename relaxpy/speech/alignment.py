"""When words were spoken: the path of a text through the encoder's positions that attention follows.

    times = word_times(weights, counts)

Some heads of the decoder look at the sound of the word that comes next. Their weights, normalised and smoothed, are the
gain of a token at a position; dynamic time warping finds the path of both forward with the largest sum
(openai-whisper, `timing.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from relaxpy.speech.vocabulary import STEP

_WIDTH = 7
"""Positions of the median by which weights are smoothed."""
_LONGEST = 0.7
"""The largest median of the lengths of words, in seconds, that is believed."""
_SENTENCE_ENDS = ".。!！?？"


@dataclass(frozen=True)
class TimedWord:
    """A word, with times in seconds of its window."""

    word: str
    tokens: tuple[int, ...]
    start: float
    end: float
    probability: float


def token_times(weights: np.ndarray, chosen: slice = slice(None)) -> np.ndarray:
    """Where each of the chosen tokens begins, in seconds, by weights (heads, tokens, positions) of attention."""
    deviation = weights.std(axis=-2, keepdims=True)
    standard = (weights - weights.mean(axis=-2, keepdims=True)) / np.where(
        deviation > 0, deviation, 1
    )
    gains = smoothed(standard).mean(axis=0)[chosen]
    tokens, positions = warped(-gains)
    begins = np.diff(tokens, prepend=-1) > 0
    return positions[begins] * STEP


def smoothed(values: np.ndarray, width: int = _WIDTH) -> np.ndarray:
    """The median of so many neighbours along the last axis, which is mirrored at its ends; shorter rows stay."""
    reach = width // 2
    if values.shape[-1] <= reach:
        return values
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(reach, reach)], mode="reflect")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1), axis=-1)


def warped(costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cheapest path through costs (rows, columns) from the first corner to the last one, by steps to the next row,
    the next column, or both: its rows and columns."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0
    # Cells of an antidiagonal depend on the two before it only.
    steps = np.zeros((rows + 1, columns + 1), np.int8)
    for diagonal in range(2, rows + columns + 1):
        first, last = max(1, diagonal - columns), min(rows, diagonal - 1)
        i = np.array(range(first, last + 1), np.int64)
        j = diagonal - i
        both, below, beside = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        is_both = (both < below) & (both < beside)
        is_row = ~is_both & (below < both) & (below < beside)
        total[i, j] = costs[i - 1, j - 1] + np.where(is_both, both, np.where(is_row, below, beside))
        steps[i, j] = np.where(is_both, 0, np.where(is_row, 1, 2))
    steps[0, :], steps[:, 0] = 2, 1
    row, column = rows, columns
    path: list[tuple[int, int]] = []
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        step = int(steps[row, column])
        row, column = row - (step != 2), column - (step != 1)
    found = np.array(path[::-1], np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def timed_words(
    words: Sequence[tuple[str, tuple[int, ...]]], begins: np.ndarray, probabilities: Sequence[float]
) -> list[TimedWord]:
    """Words with times, by those at which their tokens begin (one more than they have tokens: the end of the text)."""
    found: list[TimedWord] = []
    at = 0
    for word, tokens in words:
        after = at + len(tokens)
        probability = float(np.mean(probabilities[at:after]))
        found.append(TimedWord(word, tokens, float(begins[at]), float(begins[after]), probability))
        at = after
    return found


def median_length(words: Sequence[TimedWord]) -> float:
    """Of words that have a length, in seconds."""
    lengths = [word.end - word.start for word in words if word.end != word.start]
    return min(_LONGEST, float(np.median(lengths))) if lengths else 0.0


def shortened(words: Sequence[TimedWord], longest: float) -> list[TimedWord]:
    """Words at the ends of sentences are not longer than `longest`: a pause is no part of them."""
    found = [*words]
    for k in range(1, len(found)):
        if found[k].end - found[k].start > longest:
            if found[k].word in _SENTENCE_ENDS:
                found[k] = replace(found[k], end=found[k].start + longest)
            elif found[k - 1].word in _SENTENCE_ENDS:
                found[k] = replace(found[k], start=found[k].end - longest)
    return found


def with_punctuation(words: Sequence[TimedWord], before: str, after: str) -> list[TimedWord]:
    """Punctuation joined to the words that it belongs to: `before` to the next one, `after` to the one before. What was
    joined is left as a word without text."""
    found = [*words]
    target = len(found) - 1
    for k in range(len(found) - 2, -1, -1):
        word = found[k]
        if word.word.startswith(" ") and word.word.strip() in before:
            found[target] = replace(
                found[target],
                word=word.word + found[target].word,
                tokens=word.tokens + found[target].tokens,
            )
            found[k] = replace(word, word="", tokens=())
        else:
            target = k
    target = 0
    for k in range(1, len(found)):
        word = found[k]
        if not found[target].word.endswith(" ") and word.word in after:
            found[target] = replace(
                found[target],
                word=found[target].word + word.word,
                tokens=found[target].tokens + word.tokens,
            )
            found[k] = replace(word, word="", tokens=())
        else:
            target = k
    return found
