"""Transcriptions as files: subtitles (srt, vtt), tables (tsv), JSON and text, as openai-whisper writes them.

text = "".join(written(segments, "srt"))
for part in written(transcription, "vtt"): …          each part when its segment is there
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from relaxpy.errors import UsageError
from relaxpy.speech.segments import Segment, Word

FORMATS = ("txt", "srt", "vtt", "tsv", "json")
_PAUSE = 3.0
"""Seconds without words after which a subtitle ends."""


@dataclass(frozen=True)
class SubtitleOptions:
    """How the words of subtitles are laid out. All need the times of words."""

    max_line_width: int | None = None
    """Characters of a line."""
    max_line_count: int | None = None
    """Lines of a subtitle, with `max_line_width`."""
    max_words_per_line: int | None = None
    """Without `max_line_width`."""
    highlight_words: bool = False
    """Whether each word is underlined while it is spoken."""

    def __post_init__(self) -> None:
        for name in ("max_line_width", "max_line_count", "max_words_per_line"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UsageError("bad-arguments", f"{name} is at least 1, got {value!r}")
        if self.max_line_count and not self.max_line_width:
            raise UsageError("bad-arguments", "max_line_count needs max_line_width")
        if self.max_words_per_line and self.max_line_width:
            raise UsageError(
                "bad-arguments", "max_words_per_line and max_line_width exclude each other"
            )

    @property
    def needs_words(self) -> bool:
        return self != SubtitleOptions()


_PLAIN = SubtitleOptions()


@dataclass(frozen=True)
class _Subtitle:
    start: float
    end: float
    text: str


def written(
    segments: Iterable[Segment], format: str, options: SubtitleOptions = _PLAIN, language: str = ""
) -> Iterator[str]:
    """The parts of a file, each as soon as its segments are there. JSON is one part, with the `language`.

    Raises: UsageError (`bad-arguments`) for another format.
    """
    if format == "txt":
        yield from (f"{segment.text.strip()}\n" for segment in segments)
    elif format == "tsv":
        yield "start\tend\ttext\n"
        for segment in segments:
            text = segment.text.strip().replace("\t", " ")
            yield f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{text}\n"
    elif format == "vtt":
        yield "WEBVTT\n\n"
        for each in _subtitles(segments, options):
            yield f"{clock(each.start)} --> {clock(each.end)}\n{each.text}\n\n"
    elif format == "srt":
        for number, each in enumerate(_subtitles(segments, options), 1):
            start, end = (clock(time, hours=True, mark=",") for time in (each.start, each.end))
            yield f"{number}\n{start} --> {end}\n{each.text}\n\n"
    elif format == "json":
        found = [*segments]
        text = "".join(segment.text for segment in found)
        data = {"text": text, "segments": [each.as_dict() for each in found], "language": language}
        yield json.dumps(data, ensure_ascii=False) + "\n"
    else:
        raise UsageError(
            "bad-arguments", f"a format is one of {', '.join(FORMATS)}, got {format!r}"
        )


def clock(seconds: float, hours: bool = False, mark: str = ".") -> str:
    """Seconds as hours, minutes, seconds and milliseconds; without hours if there are none, unless `hours`."""
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    full, minutes = divmod(minutes, 60)
    before = f"{full:02d}:" if hours or full else ""
    return f"{before}{minutes:02d}:{milliseconds // 1000:02d}{mark}{milliseconds % 1000:03d}"


def _subtitles(segments: Iterable[Segment], options: SubtitleOptions) -> Iterator[_Subtitle]:
    """One a segment, or as the options lay out words. An arrow in a text would begin a time."""
    layout = _Layout(options)
    has_words = False
    for segment in segments:
        if segment.words is None:
            if options.needs_words:
                raise UsageError(
                    "bad-arguments",
                    "lines of words need the times of words",
                    help="word_timestamps=True",
                )
            yield _Subtitle(segment.start, segment.end, _safe(segment.text.strip()))
            continue
        has_words = True
        for words in layout.add(segment.words):
            yield from _of_words(words, options.highlight_words)
    if has_words and layout.waiting:
        yield from _of_words(layout.waiting, options.highlight_words)


class _Layout:
    """Words of segments in subtitles of lines."""

    def __init__(self, options: SubtitleOptions) -> None:
        self.width = options.max_line_width or 1000
        self.count = options.max_line_count
        self.most_words = options.max_words_per_line or 1000
        self.keeps_segments = options.max_line_count is None or options.max_line_width is None
        self.waiting: list[Word] = []
        """The words of the subtitle that is not full."""
        self._length, self._lines = 0, 1
        self._last: float | None = None

    def add(self, words: tuple[Word, ...]) -> Iterator[list[Word]]:
        """Add the words of a segment. Yields subtitles that are full."""
        if self._last is None and words:
            self._last = words[0].start
        for begin in range(0, len(words), self.most_words):
            for k, word in enumerate(words[begin : begin + self.most_words]):
                yield from self._add(word, k == 0)

    def _add(self, word: Word, is_first: bool) -> Iterator[list[Word]]:
        assert self._last is not None
        is_late = not self.keeps_segments and word.start - self._last > _PAUSE
        fits = self._length + len(word.word) <= self.width
        is_new = is_first and bool(self.waiting) and self.keeps_segments
        text = word.word
        if self._length > 0 and fits and not is_late and not is_new:
            self._length += len(text)
        else:
            text = text.strip()
            is_full = self.count is not None and (is_late or self._lines >= self.count)
            if (self.waiting and is_full) or is_new:
                yield self.waiting
                self.waiting, self._lines = [], 1
            elif self._length > 0:
                self._lines += 1
                text = "\n" + text
            self._length = len(text.strip())
        self.waiting.append(Word(word.start, word.end, text, word.probability))
        self._last = word.start


def _of_words(words: list[Word], highlight: bool) -> Iterator[_Subtitle]:
    text = _safe("".join(word.word for word in words))
    if not highlight:
        yield _Subtitle(words[0].start, words[-1].end, text)
        return
    last = words[0].start
    for k, word in enumerate(words):
        if clock(last) != clock(word.start):
            yield _Subtitle(last, word.start, text)
        parts = [_underlined(each.word) if j == k else each.word for j, each in enumerate(words)]
        yield _Subtitle(word.start, word.end, _safe("".join(parts)))
        last = word.end


def _underlined(word: str) -> str:
    bare = word.lstrip()
    return f"{word[: len(word) - len(bare)]}<u>{bare}</u>"


def _safe(text: str) -> str:
    return text.replace("-->", "->")
