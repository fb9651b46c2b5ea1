"""Recordings of spoken digits, by espeak-ng: for the training of tests/speech/digits, and as tests of it.

Words are spoken one by one and joined at known times, so that the truth about a recording is known to the sample.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

RATE = 16_000
WORDS = "zero one two three four five six seven eight nine".split()
VOICES = "en en-us en-gb-scotland en+f3 en-us+m3 en+m7 en-gb-x-rp en-us+f2".split()
HAS_ESPEAK = shutil.which("espeak-ng") is not None


@dataclass(frozen=True)
class Voice:
    """How a text is spoken."""

    name: str = "en"
    speed: int = 175
    """Words a minute."""
    pitch: int = 50

    @classmethod
    def draw(cls, rng: random.Random) -> Voice:
        return cls(rng.choice(VOICES), rng.randint(150, 230), rng.randint(20, 80))


@dataclass(frozen=True)
class Word:
    """A word of a recording, with its times in seconds."""

    text: str
    start: float
    end: float


@lru_cache(maxsize=4096)
def speak(text: str, voice: Voice) -> np.ndarray:
    """The samples of a spoken text, float32 at 16 kHz, without the silence around it."""
    command = [
        "espeak-ng",
        "-v",
        voice.name,
        "-s",
        str(voice.speed),
        "-p",
        str(voice.pitch),
        "--stdout",
        text,
    ]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    rate = int.from_bytes(data[24:28], "little")
    sound = np.frombuffer(data[44 : len(data) // 2 * 2], "<i2").astype(np.float32) / 32768
    sound = resampled(sound, rate)
    loud = np.flatnonzero(np.abs(sound) > 0.01)
    return sound[loud[0] : loud[-1] + 1] if len(loud) else sound[:0]


def resampled(sound: np.ndarray, rate: int) -> np.ndarray:
    """At 16 kHz, by the spectrum of the whole: slow and exact, for recordings of seconds."""
    count = round(len(sound) * RATE / rate)
    spectrum = np.fft.rfft(sound)[: count // 2 + 1]
    return (np.fft.irfft(spectrum, count) * (count / len(sound))).astype(np.float32)


def joined(
    segments: list[list[str]],
    rng: random.Random,
    voice: Voice,
    pause: tuple[float, float] = (0.3, 0.9),
) -> tuple[np.ndarray, list[list[Word]]]:
    """A recording of segments of words with pauses of so many seconds between segments and before the first, and the
    words of each segment with their times."""
    parts, at, truth = [], 0, []

    def add(sound: np.ndarray) -> tuple[float, float]:
        nonlocal at
        parts.append(sound)
        at += len(sound)
        return (at - len(sound)) / RATE, at / RATE

    for words in segments:
        add(silence(rng.uniform(*pause)))
        truth.append([])
        for k, word in enumerate(words):
            if k:
                add(silence(rng.uniform(0.04, 0.12)))
            truth[-1].append(Word(word, *add(speak(word, voice))))
    add(silence(rng.uniform(*pause)))
    return np.concatenate(parts), truth


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)
