"""Transcriptions by tokens of frames: words, segments and windows, with a model whose logits are given; vocabularies."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from relaxpy.cli.transcribe import transcribe
from relaxpy.errors import UsageError
from relaxpy.speech import CtcTranscriber, ctc
from relaxpy.speech.ctc_vocabulary import CtcVocabulary, read_ctc_vocabulary
from relaxpy.speech.formats import written
from tests.speech.recordings import encoded

TEXTS = ("", " ", *"ABCDEFGH.")
HOP = 320


class Spelled:
    """A model whose frame's token is told by the sample at its middle, and by nothing around it."""

    hop, reach = HOP, HOP

    def __init__(self) -> None:
        self.longest = 0

    def logits(self, samples: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        assert lengths.tolist() == [samples.shape[1]]
        self.longest = max(self.longest, samples.shape[1])
        frames = samples.shape[1] // HOP
        tokens = np.rint(samples[0, HOP // 2 :: HOP][:frames] * 100).astype(int)
        return 9.0 * np.eye(len(TEXTS), dtype=np.float32)[tokens][None]


def spoken(text: str) -> np.ndarray:
    """Samples for a token a character; _ is the blank. As 16 bits they are the same tokens."""
    numbers = [0 if char == "_" else TEXTS.index(char) for char in text]
    return np.repeat(np.array(numbers, np.float32) / 100, HOP)


def transcriber() -> CtcTranscriber:
    return CtcTranscriber(Spelled(), CtcVocabulary(TEXTS, 0), normalise=False, name="spelled")


def heard(text: str, **options: Any) -> list[Any]:
    return [*transcriber().transcribe(spoken(text), **options)]


def test_words_and_their_times() -> None:
    """Repetitions are one letter, unless a blank is between them."""
    (segment,) = heard("__AAB_ B_B  __ C_", word_timestamps=True)
    assert segment.text == " AB BB C"
    assert [word.word for word in segment.words] == [" AB", " BB", " C"]
    times = [(round(word.start / 0.02), round(word.end / 0.02)) for word in segment.words]
    assert times == [(2, 5), (7, 10), (15, 16)]
    assert segment.tokens == (2, 3, 3, 3, 4)
    assert all(0.99 < word.probability <= 1 for word in segment.words)
    assert (segment.id, segment.seek, segment.start, segment.end) == (1, 0, 0.04, 0.32)
    assert segment.words is not None
    assert heard("AB")[0].words is None


@pytest.mark.parametrize("text", ["", "_", " ", "____   __"])
def test_nothing_is_said(text: str) -> None:
    assert heard(text) == []


def test_segments() -> None:
    """They end with a pause of a second, with a sentence, and with the first word after 15 seconds."""
    paused = heard("A B" + "_" * 48 + " C" + "_" * 49 + " D")
    assert [each.text for each in paused] == [" A B C", " D"]
    assert [each.text for each in heard("A B. C")] == [" A B.", " C"]
    found = heard("A_ _" * 400)
    assert [len(each.text.split()) for each in found] == [189, 189, 22]
    assert [each.id for each in found] == [1, 2, 3]
    assert found[1].seek / 100 < found[1].start


def test_windows() -> None:
    """A recording of any length is read in windows of the same length, and nothing is lost or said twice at their
    edges."""
    rng = np.random.default_rng(0)
    for frames in (1499, 1500, 1501, 1999, 2000, 2001, 2500, 2501, 4987):
        text = "".join(rng.choice([*"ABCDEFGH _"], frames))
        made = transcriber()
        transcription = made.transcribe(spoken(text))
        found = "".join(each.text for each in transcription)
        whole = "".join(char for k, char in enumerate(text) if k == 0 or char != text[k - 1])
        assert found.split() == whole.replace("_", "").split(), frames
        assert made.model.longest <= 30 * 16_000  # type: ignore[attr-defined]
        assert transcription.position == transcription.info.duration == frames / 50
        assert transcription.text == found


def test_clips() -> None:
    text = "AB_C D" + "_" * 44 + "E F_" + "_" * 46
    (segment,) = heard(text, clip_timestamps="1")
    assert (segment.text, segment.start) == (" E F", 1.0)
    assert [each.text for each in heard(text, clip_timestamps="0,0.04,1.04,9")] == [" AB", " F"]


REFUSED: dict[str, Any] = {
    "language": "en", "task": "translate", "temperature": 0.4, "initial_prompt": "A", "hotwords": "A", "prefix": "A",
    "beam_size": 5, "vad_filter": True, "without_timestamps": True, "max_new_tokens": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_options_of_others(name: str) -> None:
    with pytest.raises(UsageError, match=f"spelled gives a token for each frame, and takes no {name}"):  # fmt: skip
        transcriber().transcribe(spoken("A"), **{name: REFUSED[name]})


def test_checks_and_files() -> None:
    """What `check` raises ends it; all formats are written."""

    class Gone(Exception):
        pass

    def check() -> None:
        raise Gone

    with pytest.raises(Gone):
        transcriber().transcribe(spoken("A"), check=check)
    with pytest.raises(UsageError, match=r"longer than 0\.01 s"):
        transcriber().transcribe(spoken("AB"), longest=0.01)
    segments = heard("AB C_D", word_timestamps=True)
    assert "".join(written(segments, "srt")).startswith("1\n00:00:00,000 --> 00:00:00,120\n")
    assert "".join(written(segments, "txt")) == "AB CD\n"
    assert json.loads("".join(written(segments, "json")))["text"] == " AB CD"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, subtitles with words, and options that are refused by name."""
    path = tmp_path / "talk.wav"
    path.write_bytes(encoded(spoken("AB C_D"), 16_000, "wav"))
    own = transcriber()
    monkeypatch.setattr("relaxpy.speech.load_transcriber", lambda *_, **__: own)

    def run(*args: str) -> Any:
        return CliRunner().invoke(transcribe, [str(path), *args, "--model", str(tmp_path)])

    assert run().stdout == "AB CD\n"
    assert run("--format", "vtt", "--words").stdout.startswith("WEBVTT\n\n00:00.000 --> 00:00.120")
    assert json.loads(run("-f", "json", "--independent").stdout)["language"] == ""
    for option in (["--language", "de"], ["--task", "translate"], ["--temperature", "0.2"], ["--initial-prompt", "x"]):  # fmt: skip
        done = run(*option)
        assert f"takes no {option[0].strip('-').replace('-', '_')}" in done.stderr
        assert done.exit_code == 1
    live = CliRunner().invoke(transcribe, ["-", "--live", "--model", str(tmp_path)])
    assert "takes no --live" in str(live.exception)


def test_in_a_server() -> None:
    """What is known, and then the segments; the form that answers have, without a language."""
    from relaxpy.server.audio import SpeechBody, _Heard, _written
    from relaxpy.server.errors import ApiError
    from relaxpy.server.speech_model import SpeechModel

    sound = encoded(spoken("AB C_D"), 16_000, "wav")

    async def ask(**options: Any) -> list[Any]:
        model = SpeechModel("spelled", transcriber(), 1, 1)
        body = SpeechBody(file=sound, response_format="verbose_json", **options)
        heard = _Heard(None, model, body, "talk.wav", "transcribe")  # type: ignore[arg-type]
        source = model.transcribe(
            sound, "talk.wav", longest=9, seconds=9, **body.options("transcribe")
        )
        heard.info, *segments = [each async for each in source]  # type: ignore[assignment]
        await model.close()
        return [json.loads(bytes(_written(heard, segments).body))]

    (answer,) = asyncio.run(ask(timestamp_granularities=["word", "segment"]))
    assert (answer["text"], answer["language"], answer["duration"]) == ("AB CD", "", 0.12)
    assert [word["word"] for word in answer["words"]] == ["AB", "CD"]
    assert answer["segments"][0]["tokens"] == [2, 3, 4, 5]
    with pytest.raises(UsageError, match="takes no language"):
        asyncio.run(ask(language="de"))
    with pytest.raises(
        ApiError, match="spelled gives a token for each frame, and takes no include"
    ):
        asyncio.run(ask(include=["logprobs"]))


def test_best_path() -> None:
    logits = np.array([[1.0, 3.0, -90.0], [5.0, 5.0, 4.0]], np.float32)
    best, logprobs = ctc.best_path(logits)
    assert best.tolist() == [1, 0]
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(np.exp(logprobs), shares.max(1), rtol=1e-6)


def test_vocabularies(tmp_path: Path) -> None:
    def written_as(vocab: Any, **options: Any) -> CtcVocabulary:
        (tmp_path / "vocab.json").write_text(json.dumps(vocab))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
        return read_ctc_vocabulary(tmp_path, 0, 5)

    own = {"<pad>": 0, "|": 1, "A": 2, "<unk>": 3}
    assert written_as(own).pieces == ("<pad>", " ", "A", "<unk>", "<unk>")
    lower = written_as({**own, "_": 4}, do_lower_case=True, word_delimiter_token={"content": "_"})
    assert lower.pieces == ("<pad>", "|", "A", "<unk>", " ")
    assert lower.text(["A", "A"]) == "aa"
    with pytest.raises(UsageError, match="'B' is token 5, and the model has tokens from 0 to 4"):
        written_as({**own, "B": 5})
    with pytest.raises(UsageError, match="'<pad>', the blank, is token 4"):
        written_as({"<pad>": 4})
    with pytest.raises(UsageError, match=r"several languages \(eng, deu"):
        written_as({"eng": own, "deu": own})
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(UsageError, match=r"neither a vocab.json nor a tokenizer.json"):
        read_ctc_vocabulary(tmp_path, 0, 5)
