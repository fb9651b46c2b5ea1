"""Log-mel features: the compiled program of `relaxpy.models.log_mel`, and what is around it.

log_mel = LogMel(80)
log_mel(samples)               (80, frames): those of transformers' WhisperFeatureExtractor, of any number of samples
log_mel.bands(samples)         without reflection at the ends, and not normalised: for windows of a long recording
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from threading import Lock

import numpy as np

from relaxpy.identity import installation
from relaxpy.runtime import VirtualMachine, host_features
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.executable_cache import kept_or_made

RATE = 16_000
"""Samples a second."""
HOP = 160
"""Samples of a frame: a hundred frames are a second."""
REACH = 200
"""Samples before and after the middle of a frame that it depends on."""
RANGE = 8.0
"""Decades below the loudest band of a recording that are told apart."""
SILENCE = -10.0
"""The logarithm of the power of no sound."""


def frames_of(samples: int) -> int:
    """The frames of so many samples."""
    return samples // HOP


def normalised(bands: np.ndarray, loudest: float) -> np.ndarray:
    """The features of a model: logarithms within a range below the loudest of the recording, scaled."""
    return (np.maximum(bands, np.float32(loudest - RANGE)) + np.float32(4)) / np.float32(4)


class LogMel:
    """Makes log-mel features. Safe to use from several threads."""

    def __init__(self, mels: int, target: str = "llvm") -> None:
        """With so many mel bands: 80, or 128 for Whisper large-v3. Compiled at the first use on a machine."""
        self.mels = mels
        self._vm = _machine(mels, target)

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """The features (mels, frames) float32 of samples (n,) at 16 kHz, with as many frames as there are whole hops;
        at both ends the sound is reflected. Equal to those of WhisperFeatureExtractor without padding."""
        count = frames_of(len(samples))
        if not count:
            return np.empty((self.mels, 0), np.float32)
        bands = self.bands(reflected(samples, count))
        return normalised(bands, float(bands.max()))

    def bands(self, samples: np.ndarray) -> np.ndarray:
        """The logarithms of powers (mels, frames) float32, frame t of samples 160 t to 160 t + 400: of n samples there
        are (n - 240) // 160 frames."""
        count = max(0, (len(samples) - 240) // HOP)
        if not count:
            return np.empty((self.mels, 0), np.float32)
        needed = (count + 2) * HOP
        given = np.zeros(needed, np.float32)
        given[: min(needed, len(samples))] = samples[:needed]
        # The last samples of the program's input have no weight.
        return self._vm["log_mel"](given).numpy().T


def reflected(samples: np.ndarray, count: int) -> np.ndarray:
    """Samples for `LogMel.bands` whose frame t is around sample 160 t of these, mirrored at their ends."""
    return np.pad(samples, REACH, mode="reflect")[: (count - 1) * HOP + 2 * REACH]


_lock = Lock()


@lru_cache(maxsize=4)
def _compiled(mels: int, target: str) -> VirtualMachine:
    installed = installation()
    features = " ".join(sorted(host_features()))
    key = f"log-mel-{sha256(f'{mels} {target} {features} {installed}'.encode()).hexdigest()[:24]}"
    return kept_or_made(key if installed else None, lambda: (_built(mels, target), None))[0]


def _built(mels: int, target: str) -> Executable:
    import relaxpy
    from relaxpy.models import log_mel

    mod, _ = log_mel.LogMel(mels).export(log_mel.SPEC)
    return relaxpy.build(mod, params=log_mel.weights(mels), target=target)


def _machine(mels: int, target: str) -> VirtualMachine:
    with _lock:
        return _compiled(mels, target)
