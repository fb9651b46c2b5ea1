"""The features of a recording, window by window.

A recording is read twice: for its length and its loudest band, below which features count, and for the windows. So the
features are those that openai-whisper computes of the whole at once, in the memory of a window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relaxpy.speech.cut_sound import CutSound
from relaxpy.speech.log_mel import HOP, REACH, SILENCE, LogMel, frames_of, normalised
from relaxpy.speech.sound import Sound


class Spectrum:
    """Log-mel features of a recording. A frame is a hundredth of a second."""

    def __init__(
        self,
        given: Any,
        log_mel: LogMel,
        frames: int,
        *,
        name: str = "",
        longest: float | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """`given` is what `Sound` takes, or what is left of a sound, `frames` those of a window, and `check` is called
        with each piece that is heard for the first time. Raises: UsageError (`bad-sound`)."""
        self._log_mel, self._window = log_mel, frames
        self._loudest = SILENCE
        self._waiting = np.empty(0, np.float32)
        self._begun, self._check = False, check
        self.sound: Sound | CutSound
        if isinstance(given, CutSound):
            self.sound = given
            for piece in given.pieces():
                self._hear(piece)
        else:
            self.sound = Sound(given, name, longest=longest, heard=self._hear)
        self._heard()
        self.frames = frames_of(self.sound.length)
        """Of the recording."""

    def _hear(self, piece: np.ndarray) -> None:
        if self._check is not None:
            self._check()
        if not self._begun and len(piece):
            piece, self._begun = np.concatenate([_mirrored(piece), piece]), True
        self._waiting = np.concatenate([self._waiting, piece])
        bands = self._log_mel.bands(self._waiting)
        if bands.size:
            self._loudest = max(self._loudest, float(bands.max()))
            self._waiting = self._waiting[bands.shape[1] * HOP :]

    def _heard(self) -> None:
        """After the recording there is silence."""
        self._hear(np.zeros(2 * REACH, np.float32))
        self._waiting = np.empty(0, np.float32)

    def window(self, start: int, frames: int) -> np.ndarray:
        """The features (mels, frames of a window) from a frame on, float32; after so many frames they are 0."""
        found = np.zeros((self._log_mel.mels, self._window), np.float32)
        frames = min(frames, self._window)
        if frames <= 0:
            return found
        first = start * HOP - REACH
        samples = self.sound.samples(first, first + (frames - 1) * HOP + 2 * REACH)
        if first < 0:
            samples[:-first] = self.sound.samples(1, 1 - first)[::-1]
        found[:, :frames] = normalised(self._log_mel.bands(samples), self._loudest)
        return found


def _mirrored(samples: np.ndarray) -> np.ndarray:
    """What is before the first sample."""
    found = np.zeros(REACH, np.float32)
    part = samples[1 : REACH + 1][::-1]
    found[REACH - len(part) :] = part
    return found
