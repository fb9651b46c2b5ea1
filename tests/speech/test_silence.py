"""Voice activity: where somebody speaks, windows that are cut at pauses, and times of what was cut."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.speech import (
    BatchedInferencePipeline,
    Sound,
    Transcriber,
    WhisperModel,
    load_transcriber,
)
from relaxpy.speech.cut_sound import CutSound
from relaxpy.speech.silence import (
    FRAME,
    Detector,
    VadOptions,
    cut_at_pauses,
    packed,
    trimmed,
    within,
)
from tests.speech.test_transcriber import FOLDER, RECORDED, SAID, share_heard, words_of

RATE = 16_000
NOISE = np.random.default_rng(3)


@pytest.fixture(scope="module")
def digits() -> Transcriber:
    return load_transcriber(FOLDER)


def samples_of(name: str) -> np.ndarray:
    sound = Sound(RECORDED / name)
    return sound.samples(0, sound.length)


def spoken(samples: np.ndarray, pieces: int = 1, **options: Any) -> list[tuple[int, int]]:
    detector = Detector(VadOptions(**options))
    for piece in np.array_split(samples, pieces):
        detector.hear(piece)
    return detector.spoken(len(samples))


def test_by_loudness() -> None:
    """Speech is found where it is, in silence and in noise 20 decibels below it, however it comes in pieces."""
    samples = samples_of("pauses.flac")
    # Consonants are faint: a frame more or less.
    said = [(0.7, 0.91), (1.24, 1.87), (2.55, 2.91)]
    noise = NOISE.standard_normal(len(samples)) * np.sqrt(np.square(samples).mean()) / 10
    for given in (samples, samples + noise.astype(np.float32), samples / 30):
        found = spoken(given, min_silence_duration_ms=200, speech_pad_ms=0)
        assert len(found) == 3
        for (start, stop), (first, last) in zip(found, said):
            assert abs(start / RATE - first) < 0.12
            assert abs(stop / RATE - last) < 0.12
        assert found == spoken(given, 17, min_silence_duration_ms=200, speech_pad_ms=0)


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 48_001])
def test_nobody_speaks(count: int) -> None:
    assert spoken(np.zeros(count, np.float32)) == []
    assert spoken((NOISE.standard_normal(count) * 0.01).astype(np.float32)) == []


class Scores(Detector):
    """A detector with scores that are given."""

    def __init__(self, scores: list[float], **options: Any) -> None:
        super().__init__(VadOptions(model=None, **options))
        self.options = VadOptions(model="given", **options)
        self._score = lambda frames: np.array(scores[: len(frames)])  # all at once


def frames_of(scores: list[float], **options: Any) -> list[tuple[float, float]]:
    """Speech by scores, in frames."""
    options.setdefault("speech_pad_ms", 0)
    detector = Scores(scores, **options)
    detector.hear(np.zeros(FRAME * len(scores), np.float32))
    detector._score = lambda frames: np.zeros(len(frames))
    return [(a / FRAME, b / FRAME) for a, b in detector.spoken(FRAME * len(scores))]


def test_rules() -> None:
    """By hand: frames of 32 ms."""
    speech, pause, unsure = [0.9], [0.1], [0.4]
    short = {"min_silence_duration_ms": 64}
    assert frames_of(pause + 3 * speech + 5 * pause, **short) == [(1, 4)]
    # A short pause is part of speech, and so is what is unsure.
    assert frames_of(speech + pause + speech + unsure * 9 + speech + 4 * pause, **short) == [
        (0, 13)
    ]
    assert frames_of(unsure * 5 + speech + 4 * pause, **short) == [(5, 6)]
    assert frames_of(2 * speech + 4 * pause + speech, **short, min_speech_duration_ms=33) == [
        (0, 2)
    ]
    assert frames_of(speech + 5 * pause + speech, **short, speech_pad_ms=32) == [(0, 2), (5, 7)]
    assert frames_of(speech + 4 * pause + speech, **short, speech_pad_ms=999) == [(0, 3), (3, 6)]
    # Too long: cut in the pause, or where it becomes too long.
    long = {"min_silence_duration_ms": 2000, "max_speech_duration_s": 21 * FRAME / RATE}
    assert frames_of(9 * speech + 5 * pause + 9 * speech, **long) == [(0, 9), (14, 23)]
    assert frames_of(30 * speech, **long) == [(0, 21), (22, 30)]


def test_words_without_silence() -> None:
    """By hand: frames of 32 ms, of which 2 and 10 to 14 have speech."""
    speech = np.zeros(20, bool)
    speech[[2, 10, 11, 12, 14]] = True
    assert trimmed(0.1, 0.6, speech) == (0.32, 0.48)  # frame 2 is the end of another word
    assert trimmed(0.35, 0.4, speech) == (0.35, 0.4)
    assert trimmed(0.13, 0.3, speech) == (0.13, 0.3)  # nothing is there
    assert trimmed(0.0, 0.2, speech) == (0.06, 0.1)
    speech[3:6] = True  # a word, and another one
    assert trimmed(0.0, 0.6, speech) == (0.06, 0.48)
    speech[18] = True  # another one begins
    assert trimmed(0.3, 0.6, speech) == (0.32, 0.48)
    speech[[13, 14]] = False
    assert trimmed(0.25, 0.6, speech) == (0.32, 0.42)
    speech[17:] = False
    assert trimmed(0.7, 9.0, speech) == (0.7, 9.0)


def test_windows() -> None:
    assert packed([(0, 4), (6, 9), (20, 22)], 7) == [[(0, 4), (6, 9)], [(20, 22)]]
    assert packed([(0, 23)], 10) == [[(0, 10)], [(10, 20)], [(20, 23)]]
    assert packed([], 10) == []
    assert within([(0, 5), (8, 12)], [(1, 9), (11, 99)]) == [(1, 5), (8, 9), (11, 12)]
    assert cut_at_pauses([(1, 5), (9, 12)], 0, 14, 10) == [[(0, 8)], [(8, 14)]]
    assert cut_at_pauses([(0, 30)], 0, 30, 12) == [[(0, 12)], [(12, 24)], [(24, 30)]]
    assert cut_at_pauses([], 0, 30, 12) == [[(0, 12)], [(12, 22)], [(22, 30)]]


def test_windows_of_anything() -> None:
    """Windows at pauses are the whole, in order, and not too long; those without silence have all speech."""
    rng = random.Random(7)
    for _ in range(300):
        edges = sorted(rng.sample(range(1000), 2 * rng.randint(0, 20)))
        ranges, most = [*zip(edges[::2], edges[1::2])], rng.randint(1, 300)
        windows = cut_at_pauses(ranges, 0, 1000, most)
        flat = [each for window in windows for each in window]
        assert (flat[0][0], flat[-1][1]) == (0, 1000)
        assert all(a[1] == b[0] for a, b in pairwise(flat))
        assert all(0 < b - a <= most for a, b in flat)
        # Speech is cut only where no pause ends in the window.
        for a, b in flat[:-1]:
            if any(x < b < y for x, y in ranges):
                middles = [
                    (p + q) // 2
                    for (_, p), (q, _) in zip([(0, 0), *ranges], [*ranges, (1000, 0)])
                    if p < q
                ]
                assert not any(a < middle <= b for middle in middles)
        full = packed(ranges, most)
        assert all(0 < sum(b - a for a, b in each) <= most for each in full)
        covered = np.zeros(1000, int)
        for a, b in (each for window in full for each in window):
            covered[a:b] += 1
        expected = np.zeros(1000, int)
        for a, b in ranges:
            expected[a:b] = 1
        assert (covered == expected).all()


def test_what_is_left_of_a_sound() -> None:
    samples = NOISE.standard_normal(50_000).astype(np.float32) / 9
    ranges = [(100, 20_007), (20_007, 20_008), (31_000, 49_999)]
    cut, expected = (
        CutSound(Sound(samples), ranges),
        np.concatenate([samples[a:b] for a, b in ranges]),
    )
    assert cut.length == len(expected)
    np.testing.assert_array_equal(np.concatenate([*cut.pieces()]), expected)
    for start, stop in ((0, 7), (19_900, 19_911), (38_000, 40_000), (5, 5), (0, cut.length)):
        found = cut.samples(start, stop)
        np.testing.assert_array_equal(found[: cut.length - start], expected[start:stop])
        assert not found[cut.length - start :].any()
    assert not cut.samples(-9, 0).any()
    for sample in (0, 19_906, 19_908, 30_000):
        before = sum(b - a for a, b in ranges[: cut.index(sample / RATE)])
        place = ranges[cut.index(sample / RATE)][0] + sample - before
        assert cut.original(sample / RATE) == round(place / RATE, 2)
    joint = 19_908 / RATE  # what ends there ends before the silence
    assert cut.original(joint, cut.index(joint, is_end=True)) == round(20_008 / RATE, 2)
    assert cut.original(joint) == round(31_000 / RATE, 2)


HEARD: list[dict[str, Any]] = [
    {"vad_filter": True}, {"batch_size": 3}, {"batch_size": 2, "vad_filter": True, "without_timestamps": True},
    {"batch_size": 8, "vad_filter": True, "word_timestamps": True},
    {"vad_filter": True, "word_timestamps": True, "vad_parameters": {"speech_pad_ms": 200, "min_silence_duration_ms": 500}},
]  # fmt: skip


@pytest.mark.parametrize("options", HEARD, ids=[",".join(each) for each in HEARD])
def test_times_are_those_of_the_recording(digits: Transcriber, options: dict[str, Any]) -> None:
    """Long silence before, between and after what is said: the words are heard where they are spoken."""
    part = samples_of("pauses.flac")
    silence = np.zeros(5 * RATE, np.float32)
    samples = np.concatenate([silence, part, silence, part, silence])
    transcription = digits.transcribe(samples, **options)
    found = [*transcription]
    begins = [5.0, 10 + len(part) / RATE]
    said = [
        (text, start + at, end + at) for at in begins for text, start, end in SAID["pauses.flac"]
    ]
    assert share_heard([w for text, _, _ in said for w in text.split()], words_of(found)) > 0.6
    assert transcription.info.duration == len(samples) / RATE
    assert transcription.position == pytest.approx(len(samples) / RATE)
    if options.get("vad_filter"):
        assert transcription.info.duration_after_vad < 2.5 * len(part) / RATE
        assert (transcription.info.vad_options or {})["threshold"] == 0.5
    else:
        assert transcription.info.duration_after_vad == pytest.approx(len(samples) / RATE, abs=0.01)
    assert [each.id for each in found] == [*range(1, len(found) + 1)]
    assert [each.start for each in found] == sorted(each.start for each in found)
    for each in found:
        inside = [
            at for at in begins if at - 0.7 <= each.start <= each.end <= at + len(part) / RATE + 0.7
        ]
        if not options.get("vad_filter") or options.get("without_timestamps"):
            continue  # segments have the silence around them
        assert len(inside) == 1, each
        for word in each.words or ():
            at = inside[0]
            (near,) = {(a, b) for text, a, b in SAID["pauses.flac"] if word.word.strip() in text}
            assert near[0] - 0.6 < word.start - at < near[1] < word.end - at + 0.5 < near[1] + 1


def test_batches_are_what_windows_are_alone(digits: Transcriber) -> None:
    """Whatever the batch, the segments are the same."""
    samples = np.concatenate([samples_of("pauses.flac")] * 3)

    def heard(**options: Any) -> list[Any]:
        return [
            (s.text, s.start, s.end, s.seek)
            for s in digits.transcribe(samples, temperature=0, **options)
        ]

    for options in ({"vad_filter": True}, {}, {"without_timestamps": True}):
        assert heard(batch_size=1, **options) == heard(batch_size=5, **options)
    clipped = heard(batch_size=4, clip_timestamps="0.5,2.2,4.0,5.0")
    assert clipped
    assert all(0.5 <= a <= b <= 2.2 or 4.0 <= a <= b <= 5.0 for _, a, b, _ in clipped)


def test_batches_are_given_as_they_are_heard(
    digits: Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits to be given is at most a few windows, however long the recording is."""
    samples = np.concatenate([samples_of("pauses.flac")] * 12)
    heard: list[int] = []
    write = digits.recogniser.write
    monkeypatch.setattr(
        digits.recogniser, "write", lambda asked: (heard.append(len(asked)), write(asked))[1]
    )
    for segment in digits.transcribe(samples, batch_size=3, temperature=0, language="en"):
        given = segment.start / 3  # windows of at most 3 seconds
        assert sum(heard) <= 1.5 * given + 9
    assert max(heard) == 3


def test_nobody_is_heard(digits: Transcriber) -> None:
    for options in HEARD:
        transcription = digits.transcribe(np.zeros(50_000, np.float32), **options)
        assert [*transcription] == []
        assert transcription.position == pytest.approx(50_000 / RATE)
    assert [*digits.transcribe(np.zeros(0, np.float32), batch_size=2)] == []


def test_faster_whispers_batches(digits: Transcriber) -> None:
    model = WhisperModel(FOLDER)
    segments, info = BatchedInferencePipeline(model=model).transcribe(
        str(RECORDED / "pauses.flac"), batch_size=2
    )
    assert words_of(segments) == ["four", "nine", "zero", "seven"]
    assert info.vad_options is not None
    assert info.vad_options["min_silence_duration_ms"] == 160


def test_a_file_of_silero() -> None:
    """A network with the inputs and outputs of Silero's, whose score is the loudness of a frame."""
    import onnx
    from onnx import TensorProto, helper

    def model(*states: str) -> bytes:
        nodes = [
            helper.make_node("ReduceMax", ["input"], ["most"], axes=[1], keepdims=1),
            helper.make_node("Mul", ["most", "two"], ["scores"]),
            *(helper.make_node("Identity", [name], [name + "n"]) for name in states),
        ]
        shape = [2, 1, 128] if states == ("state",) else [1, 1, 128]
        given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in states]
        after = [
            helper.make_tensor_value_info(name + "n", TensorProto.FLOAT, shape) for name in states
        ]
        graph = helper.make_graph(
            nodes, "vad", [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", 576]), *given],
            [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 1]), *after],
            [helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])],
        )  # fmt: skip
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return made.SerializeToString()

    import tempfile

    samples = np.zeros(40 * FRAME, np.float32)
    samples[11 * FRAME + 70 : 12 * FRAME] = 0.4
    with tempfile.TemporaryDirectory() as folder:
        for states in (("h", "c"), ("state",)):
            path = Path(folder) / f"{len(states)}.onnx"
            path.write_bytes(model(*states))
            for pieces in (1, 9):
                # The frame after it has the last 64 samples before it.
                assert spoken(
                    samples, pieces, model=path, speech_pad_ms=0, min_silence_duration_ms=50
                ) == [(11 * FRAME, 13 * FRAME)]
        path.write_bytes(model("memory"))
        with pytest.raises(UsageError, match=r"no file of Silero.*input, memory"):
            spoken(samples, model=path)
    assert onnx.__version__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vad_filter": True, "vad_parameters": {"treshold": 0.3}}, "has no 'treshold'"),
        ({"vad_filter": True, "vad_parameters": {"threshold": 2}}, "from 0 to 1"),
        ({"vad_filter": True, "vad_parameters": {"speech_pad_ms": -1}}, "at least 0"),
        ({"vad_parameters": {"threshold": 0.3}}, "nothing asks for it"),
        ({"batch_size": 0}, "batch_size"), ({"batch_size": True}, "batch_size"),
        ({"batch_size": 2, "word_timestamps": True, "hallucination_silence_threshold": 1.0}, "batch_size cuts it"),
    ],
)  # fmt: skip
def test_mistakes(digits: Transcriber, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as found:
        digits.transcribe(RECORDED / "short.wav", **options)
    assert found.value.code == "bad-arguments"
