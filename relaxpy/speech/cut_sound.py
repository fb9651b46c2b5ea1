"""A recording of which parts are left out: those in which nobody speaks, or all but a window."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from relaxpy.speech.log_mel import RATE
from relaxpy.speech.segments import Segment
from relaxpy.speech.silence import Range
from relaxpy.speech.sound import PIECE, Sound


class CutSound:
    """Ranges of samples of a sound, one after the other, as a sound."""

    def __init__(self, sound: Sound, ranges: Sequence[Range], margin: int = 0) -> None:
        """So many samples at the ends of ranges have no speech."""
        self.sound, self.ranges, self._margin = sound, tuple(ranges), margin
        self._stops = [*accumulate(stop - start for start, stop in ranges)]
        self.length = self._stops[-1] if ranges else 0
        """In samples."""

    @property
    def seconds(self) -> float:
        return self.length / RATE

    def pieces(self) -> Iterator[np.ndarray]:
        """The samples, piece by piece, float32."""
        for start, stop in self.ranges:
            for at in range(start, stop, PIECE):
                yield self.sound.samples(at, min(at + PIECE, stop))

    def samples(self, start: int, stop: int) -> np.ndarray:
        """The samples from `start` to `stop` of what is left, float32; before it and after it they are 0."""
        found = np.zeros(max(0, stop - start), np.float32)
        for (first, last), end in zip(self.ranges, self._stops):
            begin = end - (last - first)
            a, b = max(start, begin), min(stop, end)
            if a < b:
                found[a - start : b - start] = self.sound.samples(
                    first + a - begin, first + b - begin
                )
        return found

    def original(self, seconds: float, index: int | None = None) -> float:
        """The time in the recording of a time in what is left, in the range of this index."""
        if not self.ranges:
            return seconds
        k = self.index(seconds) if index is None else index
        return round(seconds + (self.ranges[k][1] - self._stops[k]) / RATE, 2)

    def index(self, seconds: float, is_end: bool = False) -> int:
        """The range that a time is in. Where one ends and the next begins it is the next one, but for the end of
        something."""
        sample = round(seconds * RATE)
        return min(bisect_right(self._stops, sample - is_end), len(self._stops) - 1)

    def restored(self, segment: Segment) -> Segment:
        """A segment with times of the recording. A word is in the range of its middle."""
        words = segment.words
        seek = round(100 * self.original(segment.seek / 100))
        if words:  # as in faster-whisper, a segment with words has their times
            places = [self.index((word.start + word.end) / 2) for word in words]
            words = tuple(
                replace(each, start=self.original(each.start, k), end=self.original(each.end, k))
                for each, k in zip(words, places)
            )
            return replace(segment, seek=seek, start=words[0].start, end=words[-1].end, words=words)
        first, last = self.index(segment.start), self.index(segment.end, is_end=True)
        start, end = self.original(segment.start, first), self.original(segment.end, last)
        if first < last:  # silence was cut out of it: at its ends it is none of it
            if start * RATE >= self.ranges[first][1] - self._margin:
                start = round(self.ranges[first + 1][0] / RATE, 2)
            if end * RATE <= self.ranges[last][0] + self._margin:
                end = round(self.ranges[last - 1][1] / RATE, 2)
        return replace(segment, seek=seek, start=start, end=end)
