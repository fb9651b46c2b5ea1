"""Speech while it is spoken: what is settled is never taken back, however the sound comes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.speech import Sound, Transcriber, load_transcriber
from tests.speech.test_transcriber import FOLDER, RECORDED, share_heard

RATE = 16_000
SAID = "four nine zero seven".split()


@pytest.fixture(scope="module")
def digits() -> Transcriber:
    return load_transcriber(FOLDER)


def long_sound() -> np.ndarray:
    """Three times the recording: more than two windows."""
    sound = Sound(RECORDED / "pauses.flac")
    return np.concatenate([sound.samples(0, sound.length)] * 3)


@pytest.mark.parametrize("seed", range(5))
def test_any_pieces(digits: Transcriber, seed: int) -> None:
    """Pieces of a sample, of nothing, of a step, of minutes: words are settled in order, once, at the times where they
    are, and the text is what was said."""
    rng = random.Random(seed)
    samples = long_sound()
    largest = rng.choice([1500, 8000, 20_000, 10**6])
    live, at, text = digits.live(language="en"), 0, ""
    words: list[Any] = []
    while at < len(samples):
        piece = samples[at : at + rng.choice([0, 1, rng.randint(1, largest)])]
        at += len(piece)
        heard = live.feed(piece)
        text += heard.settled
        words += heard.words
        assert text == "".join(word.word for word in words)
        assert all(word.end <= at / RATE + 0.02 for word in words)
    last = live.finish()
    assert last.provisional == ""
    words += last.words
    assert text + last.settled == "".join(word.word for word in words)
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert share_heard(SAID * 3, (text + last.settled).split()) > 0.6
    ends = [word.end for word in words if word.word == " seven"]
    assert any(abs(end - 2.91) < 0.3 for end in ends)


def test_text_comes_while_it_is_spoken(digits: Transcriber) -> None:
    """A word is settled within two steps of its end, in this recording, and known before."""
    live, sound = digits.live(language="en"), Sound(RECORDED / "pauses.flac")
    seen: dict[str, float] = {}
    for at in range(0, sound.length, 1600):
        heard = live.feed(sound.samples(at, min(at + 1600, sound.length)))
        for word in heard.settled.split():
            seen.setdefault(word, (at + 1600) / RATE)
    assert seen["four"] < 0.91 + 1.5
    assert seen["zero"] < 1.87 + 1.5


def test_silence_and_nothing(digits: Transcriber) -> None:
    live = digits.live()
    assert live.finish().settled == ""
    live = digits.live(initial_prompt="one two", step=0.3)
    heard = live.feed(np.zeros(10 * RATE, np.int16))
    assert (heard.settled, heard.provisional) == ("", "")
    assert live.finish().words == ()


def test_the_language_is_heard(digits: Transcriber) -> None:
    live = digits.live()
    assert live.language is None
    live.feed(long_sound()[: 2 * RATE])
    assert live.language == "en"


def test_mistakes(digits: Transcriber) -> None:
    for options, text in (
        ({"vad_filter": True}, "vad_filter is for recordings"), ({"language": "klingon"}, "klingon"),
        ({"step": 9}, "a quarter of a window"), ({"step": 0}, "step"), ({"beams": 2}, "no option beams"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=text):
            digits.live(**options)  # type: ignore[arg-type]
    live = digits.live()
    with pytest.raises(UsageError, match="one channel"):
        live.feed(np.zeros((2, 5), np.float32))
    live.finish()
    with pytest.raises(UsageError, match="has ended this recording"):
        live.feed(np.zeros(5, np.float32))
