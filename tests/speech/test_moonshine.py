"""Transcriptions by a Moonshine: windows, segments, options; with a model that spells how long a window is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from relaxpy.cli.transcribe import transcribe
from relaxpy.errors import UsageError
from relaxpy.llm.seq2seq import Written
from relaxpy.serve import Request, Sampling
from relaxpy.serve.request import Features
from relaxpy.serve.sources import SourceShape
from relaxpy.speech import MoonshineTranscriber
from relaxpy.speech.moonshine import check_features
from tests.speech.recordings import encoded

RATE = 16_000


class Spelled:
    """A model whose token is the tenths of a second of a window."""

    source = SourceShape(1248, 384, 1, 0, 895)
    decoder = SimpleNamespace(positions=194, vocab_size=500)

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.calls: list[int] = []

    def request(self, features: Features, max_tokens: int) -> Request:
        return Request(0, (1,), max_tokens, Sampling(temperature=0), features=features)

    def write_all(self, requests: Sequence[Request]) -> list[Written]:
        self.asked += requests
        self.calls.append(len(requests))
        lengths = [each.features.values.shape[1] for each in requests if each.features]
        return [Written((n // 1600,), (-0.5,), "stop") for n in lengths]


class Numbers:
    def decode(self, tokens: Sequence[int]) -> str:
        return "" if tokens[0] == 3 else f" {tokens[0]} "


def transcriber() -> Any:
    model: Any = Spelled()
    tokenizer: Any = Numbers()
    return MoonshineTranscriber(model, tokenizer, name="spelled")


def noise(seconds: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    return 0.3 * rng.standard_normal(round(seconds * RATE)).clip(-3, 3).astype(np.float32)


def test_windows() -> None:
    """A recording of 30 seconds is heard as it is; a longer one is cut at the last pause that there is, in its later
    half (sound that is equally loud everywhere is one), and at most 30 seconds are heard at once. What is too short, or has no text, is no segment."""
    (segment,) = transcriber().transcribe(noise(30))
    assert (segment.id, segment.start, segment.end, segment.text) == (1, 0, 30, " 300")
    assert (segment.words, segment.tokens, segment.avg_logprob) == (None, (300,), -0.5)
    pause = np.zeros(3 * RATE, np.float32)
    paused = np.concatenate([noise(20), pause, noise(20), pause, noise(4)])
    made = transcriber()
    transcription = made.transcribe(paused)
    found = [*transcription]
    assert [each.id for each in found] == [1, 2]
    assert 21.5 < found[0].end < 22.6
    assert found[1].start == found[0].end
    assert found[1].end == 50
    assert transcription.text == "".join(each.text for each in found)
    assert transcription.position == transcription.info.duration == 50
    assert made.model.calls == [1, 1]
    whole = [*transcriber().transcribe(noise(70))]
    assert [(each.start, each.end) for each in whole] == [(0, 30), (30, 52.5), (52.5, 70)]
    assert [*transcriber().transcribe(noise(0.05))] == []
    assert [*transcriber().transcribe(noise(0.3))] == []  # its text is none


def test_options() -> None:
    """Windows are heard together, tokens are bounded by the length, and searches are told."""
    made = transcriber()
    next(made.transcribe(noise(70), batch_size=2))
    assert made.model.calls == [2]
    assert [each.max_tokens for each in made.model.asked] == [193, 146]
    made = transcriber()
    others = {"clip_timestamps": "1,3,4,4.5", "repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    found = [*made.transcribe(noise(9), beam_size=4, length_penalty=0.5, **others)]
    assert [(each.start, each.end) for each in found] == [(1, 3), (4, 4.5)]
    first, second = made.model.asked
    assert (first.max_tokens, second.max_tokens) == (13, 8)
    assert (first.beams.num_beams, first.beams.length_penalty) == (4, 0.5)
    assert (first.sampling.repetition_penalty, first.sampling.no_repeat_ngram_size) == (1.5, 2)
    assert [*made.transcribe(noise(1), max_new_tokens=5)]
    assert made.model.asked[-1].max_tokens == 5


REFUSED: dict[str, Any] = {
    "language": "en", "task": "translate", "temperature": 0.4, "initial_prompt": "A", "hotwords": "A", "prefix": "A",
    "word_timestamps": True, "vad_filter": True, "without_timestamps": True, "patience": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_options_of_others(name: str) -> None:
    with pytest.raises(UsageError, match=f"times, prompt and language, and takes no {name}"):
        transcriber().transcribe(noise(1), **{name: REFUSED[name]})


def test_checks() -> None:
    class Gone(Exception):
        pass

    def check() -> None:
        raise Gone

    with pytest.raises(Gone):
        transcriber().transcribe(noise(1), check=check)
    with pytest.raises(UsageError, match=r"longer than 0\.5 s"):
        transcriber().transcribe(noise(1), longest=0.5)
    check_features({"sampling_rate": 16_000}, "p.json")
    with pytest.raises(UsageError, match=r"p\.json: sampling_rate is 8000, and must be 16000"):
        check_features({"sampling_rate": 8000}, "p.json")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, subtitles, and options that are refused by name."""
    path = tmp_path / "talk.wav"
    path.write_bytes(encoded(noise(2), RATE, "wav"))
    own = transcriber()

    def load(_: str, **_others: Any) -> Any:
        return own

    monkeypatch.setattr("relaxpy.speech.load_transcriber", load)

    def run(*args: str) -> Any:
        return CliRunner().invoke(transcribe, [*args, "--model", str(tmp_path)])

    assert run(str(path)).stdout == "20\n"
    assert run(str(path), "--format", "vtt").stdout.startswith(
        "WEBVTT\n\n00:00.000 --> 00:02.000\n20\n"
    )
    assert "takes no word_timestamps" in run(str(path), "--words").stderr
    assert "takes no --live" in str(run("--live", "-").exception)


def test_in_a_server() -> None:
    """Segments as they are heard, with log-probabilities that are no part of answers; times of words are refused."""
    from relaxpy.server.audio import (
        SpeechBody,
        _Heard,  # pyright: ignore[reportPrivateUsage]
    )
    from relaxpy.server.errors import ApiError
    from relaxpy.server.speech_model import SpeechModel

    sound = encoded(noise(2), RATE, "wav")

    async def ask(**options: Any) -> list[Any]:
        model = SpeechModel("spelled", transcriber(), 1, 1)
        body = SpeechBody(file=sound, **options)
        _Heard(None, model, body, "talk.wav", "transcribe")  # type: ignore[arg-type]
        given = body.options("transcribe")
        source = model.transcribe(sound, "talk.wav", longest=9, seconds=9, **given)
        found = [each async for each in source]
        await model.close()
        return found

    info, segment = asyncio.run(ask())
    assert (info.language, info.duration, segment.text) == ("", 2, " 20")
    words = {"response_format": "verbose_json", "timestamp_granularities": ["word"]}
    with pytest.raises(UsageError, match="takes no word_timestamps"):
        asyncio.run(ask(**words))
    with pytest.raises(ApiError, match="prompt and language, and takes no include"):
        asyncio.run(ask(include=["logprobs"]))
