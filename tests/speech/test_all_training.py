"""The Whisper of tests/speech/digits is trained anew, by its script: nine minutes of a core."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxpy.speech import load_transcriber
from tests.speech.spoken import HAS_ESPEAK
from tests.speech.test_transcriber import RECORDED, SAID, share_heard, words_of
from tests.sweeps import full


@full
@pytest.mark.skipif(not HAS_ESPEAK, reason="espeak-ng is not installed")
def test_it_learns(tmp_path: Path) -> None:
    from tests.speech.train_digits import train

    right, within = train(tmp_path / "digits", minutes=8)
    assert right > 0.75
    assert within > 0.45
    model = load_transcriber(tmp_path / "digits")
    for name, said in SAID.items():
        expected = [word for text, _, _ in said for word in text.split()]
        assert share_heard(expected, words_of(model.transcribe(RECORDED / name))) >= 0.5
