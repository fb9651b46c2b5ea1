"""Recordings as text, by the Whisper of tests/speech/digits, which reads digits that espeak-ng speaks."""

from __future__ import annotations

import difflib
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy.llm
from relaxpy.errors import UsageError
from relaxpy.speech import LogMel, Transcriber, WhisperModel, load_transcriber
from relaxpy.speech.recogniser import WindowRequest, WindowText
from tests.speech.recordings import encoded
from tests.speech.spoken import HAS_ESPEAK, RATE, WORDS, Voice, joined
from tests.speech.transformers_recogniser import TransformersRecogniser
from tests.sweeps import sweep

HERE = Path(__file__).parent
FOLDER, RECORDED = HERE / "digits", HERE / "recorded"
SAID = {
    "short.wav": [("one two", 0.43, 1.01)],
    "pauses.flac": [("four", 0.7, 0.91), ("nine zero", 1.24, 1.87), ("seven", 2.55, 2.91)],
}
"""What is said in recordings, and when."""
needs_espeak = pytest.mark.skipif(not HAS_ESPEAK, reason="espeak-ng is not installed")


@pytest.fixture(scope="module")
def digits() -> Transcriber:
    return load_transcriber(FOLDER)


def words_of(segments: Any) -> list[str]:
    return [word for segment in segments for word in segment.text.split()]


def share_heard(expected: list[str], found: list[str]) -> float:
    """Of the words that were said."""
    blocks = difflib.SequenceMatcher(None, expected, found, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / max(1, len(expected))


@pytest.mark.parametrize("name", SAID)
def test_recorded(digits: Transcriber, name: str) -> None:
    """What was said, and where it ends. The first segment of a window without another one begins with it: Whisper's rule."""
    for given in (RECORDED / name, str(RECORDED / name), (RECORDED / name).read_bytes()):
        transcription = digits.transcribe(given)
        found = [*transcription]
        assert transcription.info.language == "en"
        assert transcription.info.language_probability > 0.9
        assert [each.text for each in found] == [" " + text for text, _, _ in SAID[name]]
        assert transcription.text == "".join(each.text for each in found)
        for each, (_, start, end) in zip(found, SAID[name]):
            assert abs(each.end - end) < 0.1
            assert each.seek / 100 <= each.start < start + 0.1
        assert [each.id for each in found] == [*range(1, len(found) + 1)]


@needs_espeak
def test_spoken_now(digits: Transcriber) -> None:
    """Strings that nobody trained on, a window each and many windows."""
    rng, expected, found = random.Random(5), [], []
    for length in (1, 1, 1, 2, 2, 3, 6, 12):
        segments = [[rng.choice(WORDS) for _ in range(rng.randint(1, 3))] for _ in range(length)]
        samples, _ = joined(segments, rng, Voice.draw(rng))
        heard = words_of(digits.transcribe(samples))
        said = [word for segment in segments for word in segment]
        expected.append(said)
        found.append(heard)
    shares = [share_heard(a, b) for a, b in zip(expected, found)]
    assert np.mean(shares) > 0.75, [*zip(expected, found)]


OPTIONS: list[dict[str, Any]] = [
    {}, {"word_timestamps": True}, {"condition_on_previous_text": False}, {"initial_prompt": "one two"},
    {"without_timestamps": True}, {"prefix": "four"}, {"hotwords": "seven eight"}, {"clip_timestamps": [1.0, 3.0]},
    {"max_initial_timestamp": 0.3}, {"word_timestamps": True, "hallucination_silence_threshold": 0.3},
    {"language": "german", "suppress_tokens": None}, {"max_new_tokens": 4}, {"multilingual": True}, {"suppress_blank": False},
]  # fmt: skip


@sweep(2)
@pytest.mark.parametrize("options", OPTIONS, ids=[",".join(each) or "none" for each in OPTIONS])
def test_options_beside_transformers(digits: Transcriber, options: dict[str, Any]) -> None:
    """The same segments with transformers' model beneath."""
    other = Transcriber(TransformersRecogniser(FOLDER), digits.vocabulary)
    path = RECORDED / "pauses.flac"
    found, expected = (
        [*each.transcribe(path, temperature=0, **options)] for each in (digits, other)
    )
    assert [(s.text, s.start, s.end, s.tokens) for s in found] == [
        (s.text, s.start, s.end, s.tokens) for s in expected
    ]
    for mine, theirs in zip(found, expected):
        assert abs(mine.avg_logprob - theirs.avg_logprob) < 2e-3
        assert abs(mine.no_speech_prob - theirs.no_speech_prob) < 2e-3
        assert [(w.word, w.start, w.end) for w in mine.words or ()] == [
            (w.word, w.start, w.end) for w in theirs.words or ()
        ]


def test_words(digits: Transcriber) -> None:
    """Words make the text, in order, inside of the recording."""
    for segment in digits.transcribe(RECORDED / "pauses.flac", word_timestamps=True):
        assert segment.words
        assert "".join(word.word for word in segment.words) == segment.text
        times = [time for word in segment.words for time in (word.start, word.end)]
        assert times == sorted(times)
        # Times of segments and words that are less than half a second apart are made equal, or the words give way.
        assert abs(segment.start - times[0]) <= 0.5
        assert abs(segment.end - times[-1]) <= 0.5
        assert all(0 < word.probability <= 1 for word in segment.words)
    assert all(segment.words is None for segment in digits.transcribe(RECORDED / "short.wav"))


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"clip_timestamps": "0,9"}])
def test_trimmed_words(digits: Transcriber, options: dict[str, Any]) -> None:
    """Texts stay, and of the pause before a word none is its own; without times of words nothing changes."""
    path = RECORDED / "pauses.flac"
    plain = [*digits.transcribe(path, language="en", word_timestamps=True, **options)]
    found = [*digits.transcribe(path, language="en", word_timestamps=True, trim_words=True, **options)]  # fmt: skip
    assert [each.text for each in found] == [each.text for each in plain]
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    whole, own = ([w for s in segments for w in s.words or ()] for segments in (plain, found))
    assert [each.word for each in own] == [each.word for each in whole]
    assert all(a.start <= b.start < b.end <= a.end for a, b in zip(whole, own, strict=True))
    assert max(b.start - a.start for a, b in zip(whole, own, strict=True)) > 0.2
    untimed = digits.transcribe(path, language="en", trim_words=True, **options)
    assert all(each.words is None for each in untimed)


def test_windows(digits: Transcriber) -> None:
    """A long recording is heard window after window: what is in it three times is heard three times."""
    samples = digits.log_mel and np.concatenate([_samples("pauses.flac")] * 3)
    found = [*digits.transcribe(samples)]
    said = [word for text, _, _ in SAID["pauses.flac"] for word in text.split()] * 3
    assert share_heard(said, words_of(found)) > 0.75
    assert len({segment.seek for segment in found}) >= 3
    assert [s.start for s in found] == sorted(s.start for s in found)


def test_segments_come_as_they_are_heard(digits: Transcriber) -> None:
    transcription = digits.transcribe(np.concatenate([_samples("pauses.flac")] * 4))
    next(transcription)
    assert transcription.position < transcription.info.duration / 2
    transcription.close()
    assert [*transcription] == []


def test_clips(digits: Transcriber) -> None:
    found = [*digits.transcribe(RECORDED / "pauses.flac", clip_timestamps="1.05,2.2")]
    assert words_of(found) == ["nine", "zero"]
    assert all(1.05 <= segment.start < 2.2 for segment in found)
    assert [*digits.transcribe(RECORDED / "pauses.flac", clip_timestamps="5,6")] == []


@pytest.mark.parametrize("count", [0, 1, 159, 160, 399, 400, 47_999, 48_000, 48_001])
def test_silence(digits: Transcriber, count: int) -> None:
    """No words where nobody speaks, whatever the length."""
    transcription = digits.transcribe(np.zeros(count, np.float32))
    assert words_of(transcription) == []
    assert transcription.info.duration == count / RATE


def test_equal_seeds_give_equal_texts(digits: Transcriber) -> None:
    def drawn(seed: int) -> list[tuple[int, ...]]:
        found = digits.transcribe(
            RECORDED / "pauses.flac", temperature=2.0, best_of=2, seed=seed,
            no_speech_threshold=None, without_timestamps=True,
        )  # fmt: skip
        return [segment.tokens for segment in found]

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(6)}) > 1


def test_beams(digits: Transcriber) -> None:
    found = [*digits.transcribe(RECORDED / "pauses.flac", beam_size=3)]
    assert words_of(found) == ["four", "nine", "zero", "seven"]
    with pytest.raises(UsageError, match="patience"):
        [*digits.transcribe(RECORDED / "short.wav", beam_size=3, patience=2.0)]


def test_threads(digits: Transcriber) -> None:
    """What is heard at the same time is heard as alone."""
    expected = {name: words_of(digits.transcribe(RECORDED / name)) for name in SAID}
    found: dict[tuple[int, str], list[str]] = {}

    def hear(number: int, name: str) -> None:
        found[number, name] = words_of(digits.transcribe(RECORDED / name))

    threads = [threading.Thread(target=hear, args=(k, name)) for k in range(3) for name in SAID]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {(k, name): expected[name] for k in range(3) for name in SAID}


def test_faster_whispers_interface() -> None:
    model = WhisperModel(FOLDER)
    segments, info = model.transcribe(str(RECORDED / "short.wav"), word_timestamps=True)
    assert info.language == "en"
    assert [segment.text for segment in segments] == [" one two"]
    assert model.supported_languages == ["en", "de"]
    assert model.detect_language(_samples("short.wav"))[0] == "en"
    with pytest.raises(UsageError, match="compute_type"):
        WhisperModel(FOLDER, compute_type="int4")
    with pytest.raises(UsageError, match="num_workers"):
        WhisperModel(FOLDER, num_workers=2)


def test_llm_load() -> None:
    model: Any = relaxpy.llm.load(FOLDER)
    assert isinstance(model, Transcriber)
    assert words_of(model.transcribe(RECORDED / "short.wav")) == ["one", "two"]
    with pytest.raises(UsageError, match="takes no context"):
        relaxpy.llm.load(FOLDER, context=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 3}, "no option beam"), ({"diarize": True}, "no option diarize"), ({"task": "sing"}, "transcribe or"),
        ({"language": "klingon"}, "no language 'klingon'"), ({"language": "fr"}, "does not know the language 'fr'"),
        ({"vad_filter": 1}, "vad_filter"), ({"temperature": -1.0}, "temperature"),
        ({"temperature": []}, "temperature"), ({"beam_size": 0}, "beam_size"), ({"best_of": 2.5}, "best_of"),
        ({"clip_timestamps": "3,1"}, "clip_timestamps"), ({"clip_timestamps": "x"}, "clip_timestamps"),
        ({"hallucination_silence_threshold": 1.0}, "word_timestamps=True"), ({"suppress_tokens": "-1"}, "suppress_tokens"),
        ({"no_speech_threshold": "0.5"}, "no_speech_threshold"), ({"initial_prompt": 3}, "initial_prompt"),
    ],
)  # fmt: skip
def test_mistakes(digits: Transcriber, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as found:
        digits.transcribe(RECORDED / "short.wav", **options)
    assert found.value.code == "bad-arguments"


def test_a_folder_that_is_no_whisper(tmp_path: Path) -> None:
    for path in FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "preprocessor_config.json").write_text('{"sampling_rate": 8000}')
    with pytest.raises(UsageError, match="sampling_rate is 8000"):
        load_transcriber(tmp_path)


class Scripted:
    """Writes texts that are given, in turn."""

    mels, frames, positions = 80, 300, 48

    def __init__(self, texts: list[WindowText]) -> None:
        self.texts, self.asked = texts, list[WindowRequest]()

    def write(self, asked: Sequence[tuple[np.ndarray, WindowRequest]]) -> list[WindowText]:
        first = len(self.asked)
        self.asked += [request for _, request in asked]
        return self.texts[first : len(self.asked)]

    def logprobs(self, features: np.ndarray, tokens: tuple[int, ...]) -> np.ndarray:
        return np.zeros(400)

    def align(
        self, features: np.ndarray, tokens: tuple[int, ...], texts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError


def scripted(digits: Transcriber, *texts: tuple[str, float, float]) -> tuple[Transcriber, Scripted]:
    """A transcriber whose model writes texts without times, with a mean log-probability, and a probability of no speech."""
    made = []
    for text, mean, probe in texts:
        tokens = tuple(digits.vocabulary.encode(text))
        made.append(WindowText(tokens, mean * (len(tokens) + 1), probe))
    model = Scripted(made)
    return Transcriber(model, digits.vocabulary), model


def test_retries(digits: Transcriber) -> None:
    """A text that fails a threshold is drawn anew at the next temperature."""
    loop = " one two" * 10
    made, model = scripted(digits, (loop, -0.1, 0.0), (" one", -1.5, 0.0), (" two", -0.9, 0.0))
    (segment,) = made.transcribe(
        np.zeros(48_000, np.float32), language="en", without_timestamps=True
    )
    assert segment.text == " two"
    assert segment.temperature == 0.4
    assert [(each.temperature, each.best_of) for each in model.asked] == [
        (0.0, 5),
        (0.2, 5),
        (0.4, 5),
    ]
    assert len({each.seed for each in model.asked}) == 3


def test_the_last_text_is_taken(digits: Transcriber) -> None:
    made, _ = scripted(digits, (" one", -1.5, 0.0), (" two", -1.6, 0.0))
    (segment,) = made.transcribe(
        np.zeros(48_000, np.float32), language="en", without_timestamps=True, temperature=[0.0, 1.0]
    )
    assert segment.text == " two"
    made, _ = scripted(digits, (" one", -1.5, 0.0))
    (segment,) = made.transcribe(
        np.zeros(48_000, np.float32),
        language="en",
        without_timestamps=True,
        log_prob_threshold=None,
    )
    assert segment.text == " one"
    assert segment.temperature == 0


def test_no_speech(digits: Transcriber) -> None:
    """An improbable text of a window where nobody speaks is skipped, without retries; a probable one is not."""
    given = {"language": "en", "without_timestamps": True}
    made, model = scripted(digits, (" one", -1.5, 0.9), (" two", -0.5, 0.9))
    found = [*made.transcribe(np.zeros(96_000, np.float32), **given)]
    assert [(each.text, each.start) for each in found] == [(" two", 3.0)]
    assert len(model.asked) == 2
    made, _ = scripted(digits, (" one", -0.5, 0.9))
    assert [*made.transcribe(np.zeros(48_000, np.float32), **given, log_prob_threshold=None)] == []


def test_the_text_before_is_the_prompt(digits: Transcriber) -> None:
    vocabulary = digits.vocabulary

    def prompts(*texts: tuple[str, float, float], **options: Any) -> list[str]:
        made, model = scripted(digits, *texts)
        [
            *made.transcribe(
                np.zeros(144_000, np.float32), language="en", without_timestamps=True, **options
            )
        ]
        return [vocabulary.tokenizer.decode(each.prompt, special=True) for each in model.asked]

    start = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
    three = [(" one", -0.1, 0.0), (" two", -0.1, 0.0), (" six", -0.1, 0.0)]
    assert prompts(*three) == [
        start,
        f"<|startofprev|> one{start}",
        f"<|startofprev|> one two{start}",
    ]
    assert prompts(*three, condition_on_previous_text=False) == [start] * 3
    assert prompts(*three, initial_prompt=" nine")[:2] == [
        f"<|startofprev|> nine{start}", f"<|startofprev|> nine one{start}",
    ]  # fmt: skip
    assert prompts(*three, hotwords="zero")[1] == f"<|startofprev|> zero one{start}"
    assert prompts(*three, prefix="four")[:2] == [
        f"{start} four",
        f"<|startofprev|> four one{start}",
    ]
    hot = [(" one", -1.5, 0.0)] * 5 + three
    assert (
        prompts(*hot)[6] == start
    )  # the text of a window that was drawn at a high temperature is no prompt
    long = prompts(
        (" one" * 20, -0.1, 0.0),
        (" two", -0.1, 0.0),
        (" six", -0.1, 0.0),
        compression_ratio_threshold=None,
    )
    assert long[2].count("one") == 20
    assert max(len(vocabulary.tokenizer.encode(each, special=False)) for each in long) <= 48


def test_log_mel_is_shared(digits: Transcriber) -> None:
    assert digits.log_mel.mels == 80
    assert isinstance(digits.log_mel, LogMel)


def _samples(name: str) -> np.ndarray:
    from relaxpy.speech import Sound

    sound = Sound(RECORDED / name)
    return sound.samples(0, sound.length)


@pytest.mark.parametrize("kind", ["webm", "m4a"])
def test_formats_of_recordings(digits: Transcriber, kind: str) -> None:
    """A compressed recording has the words of the original. (This model, which was
    trained on clean sound, does not read mp3 of 16 kHz.)"""
    found = words_of(digits.transcribe(encoded(_samples("pauses.flac"), RATE, kind)))
    assert share_heard(["four", "nine", "zero", "seven"], found) >= 0.75
