"""What transcribers that hear samples have in common, beside those of Whisper: models with few of the options, which
are refused by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import fields

from relaxpy.errors import UsageError
from relaxpy.speech.log_mel import RATE
from relaxpy.speech.options import TranscriptionOptions
from relaxpy.speech.segments import Segment, TranscriptionInfo
from relaxpy.speech.silence import Range
from relaxpy.speech.sound import Sound


def refuse_others(options: TranscriptionOptions, taken: frozenset[str], who: str) -> None:
    """Raises: UsageError (`bad-arguments`) for an option with a value of its own that is none of those `taken`. `who`
    is the name of a model, and why it takes no more."""
    for each in fields(TranscriptionOptions):
        value = getattr(options, each.name)
        if each.name not in taken and value != each.default:
            raise UsageError(
                "bad-arguments",
                f"{who}, and takes no {each.name} (got {value!r})",
                help="a Whisper takes it: load_transcriber('openai/whisper-base')",
            )


class SoundTranscription(ABC):
    """The segments of a recording, an iterator; used by one thread."""

    def __init__(
        self, sound: Sound, options: TranscriptionOptions, check: Callable[[], None] | None
    ) -> None:
        self.options, self.sound, self._check = options, sound, check
        self.position = 0.0
        """Seconds of the recording that were heard."""
        self.text = ""
        """Of the segments so far."""
        seconds = sound.seconds
        self.info = TranscriptionInfo("", 0.0, seconds, seconds, None, options, None)
        """The language is not known: ""."""
        self._segments = self._every()

    def __iter__(self) -> Iterator[Segment]:
        return self

    def __next__(self) -> Segment:
        segment = next(self._segments)
        self.text += segment.text
        return segment

    def close(self) -> None:
        """End the transcription."""
        self._segments.close()

    @abstractmethod
    def _every(self) -> Generator[Segment]:
        """The segments, in order."""

    def _clips(self) -> list[Range]:
        """Ranges of samples that are transcribed."""
        length = self.sound.length
        points = [min(round(each * RATE), length) for each in self.options.clips or ()] or [0]
        if len(points) % 2:
            points.append(length)
        return [*zip(points[::2], points[1::2], strict=True)]
