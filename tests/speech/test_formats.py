"""Transcriptions as files. The texts are those that openai-whisper 20250625 writes for these segments."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from relaxpy.errors import UsageError
from relaxpy.speech.formats import SubtitleOptions, clock, written
from relaxpy.speech.segments import Segment, Word


def segment(
    number: int,
    start: float,
    end: float,
    text: str,
    words: list[tuple[str, float, float]] | None = None,
) -> Segment:
    timed = None if words is None else tuple(Word(a, b, word, 0.5) for word, a, b in words)
    return Segment(number, 0, start, end, text, (1, 2), -0.25, 0.75, 0.0, timed, 0.0)


PLAIN = [segment(1, 0.0, 1.5, " Hello\tworld."), segment(2, 3599.9996, 3662.25, " a --> b")]
WORDS = [
    segment(
        1,
        0.0,
        1.5,
        " one two three",
        [(" one", 0.0, 0.4), (" two", 0.4, 0.8), (" three", 1.0, 1.5)],
    ),
    segment(2, 6.0, 7.0, " four five", [(" four", 6.0, 6.5), (" five", 6.5, 7.0)]),
]


def text(segments: list[Segment], format: str, **options: object) -> str:
    return "".join(written(segments, format, SubtitleOptions(**options), "en"))  # type: ignore[arg-type]


def test_plain() -> None:
    assert text(PLAIN, "txt") == "Hello\tworld.\na --> b\n"
    assert (
        text(PLAIN, "tsv") == "start\tend\ttext\n0\t1500\tHello world.\n3600000\t3662250\ta --> b\n"
    )
    assert text(PLAIN, "vtt") == (
        "WEBVTT\n\n00:00.000 --> 00:01.500\nHello\tworld.\n\n01:00:00.000 --> 01:01:02.250\na -> b\n\n"
    )
    assert text(PLAIN, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello\tworld.\n\n2\n01:00:00,000 --> 01:01:02,250\na -> b\n\n"
    )
    data = json.loads(text(PLAIN, "json"))
    assert data["language"] == "en"
    assert data["text"] == " Hello\tworld. a --> b"
    assert data["segments"][0] == {
        "id": 1, "seek": 0, "start": 0.0, "end": 1.5, "text": " Hello\tworld.", "tokens": [1, 2],
        "avg_logprob": -0.25, "compression_ratio": 0.75, "no_speech_prob": 0.0, "temperature": 0.0,
    }  # fmt: skip


def test_words() -> None:
    assert text(WORDS, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\none two three\n\n2\n00:00:06,000 --> 00:00:07,000\nfour five\n\n"
    )
    assert text(WORDS, "vtt", max_words_per_line=2) == (
        "WEBVTT\n\n00:00.000 --> 00:00.800\none two\n\n00:01.000 --> 00:01.500\nthree\n\n"
        "00:06.000 --> 00:07.000\nfour five\n\n"
    )
    assert text(WORDS, "vtt", max_line_width=8) == (
        "WEBVTT\n\n00:00.000 --> 00:01.500\none two\nthree\n\n00:06.000 --> 00:07.000\nfour\nfive\n\n"
    )
    assert text(WORDS, "vtt", max_line_width=80, max_line_count=1) == (
        "WEBVTT\n\n00:00.000 --> 00:01.500\none two three\n\n00:06.000 --> 00:07.000\nfour five\n\n"
    )
    assert text(WORDS[1:], "vtt", highlight_words=True) == (
        "WEBVTT\n\n00:06.000 --> 00:06.500\n<u>four</u> five\n\n00:06.500 --> 00:07.000\nfour <u>five</u>\n\n"
    )
    assert json.loads(text(WORDS, "json"))["segments"][1]["words"][0] == {
        "start": 6.0, "end": 6.5, "word": " four", "probability": 0.5,
    }  # fmt: skip


def test_no_segments() -> None:
    assert [text([], each) for each in ("txt", "srt", "vtt", "tsv")] == [
        "",
        "",
        "WEBVTT\n\n",
        "start\tend\ttext\n",
    ]
    assert json.loads(text([], "json")) == {"text": "", "segments": [], "language": "en"}
    assert text([replace(WORDS[0], words=())], "srt") == ""


def test_parts_come_with_their_segments() -> None:
    taken: list[int] = []

    def segments():
        for each in PLAIN:
            taken.append(each.id)
            yield each

    parts = written(segments(), "srt")
    next(parts)
    assert taken == [1]


def test_mistakes() -> None:
    with pytest.raises(UsageError, match="txt, srt, vtt, tsv, json"):
        text(PLAIN, "docx")
    with pytest.raises(UsageError, match="times of words"):
        text(PLAIN, "srt", highlight_words=True)
    with pytest.raises(UsageError, match="max_line_width"):
        SubtitleOptions(max_line_count=2)
    with pytest.raises(UsageError, match="at least 1"):
        SubtitleOptions(max_line_width=0)


def test_clock() -> None:
    assert clock(59.9996) == "01:00.000"
    assert clock(360000.5, hours=True, mark=",") == "100:00:00,500"
