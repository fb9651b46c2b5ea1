"""What a transcription gives. Names and fields are faster-whisper's, so that its users change an import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxpy.speech.options import TranscriptionOptions


@dataclass(frozen=True)
class Word:
    """A word with its times, in seconds of the recording."""

    start: float
    end: float
    word: str
    """With the space before it."""
    probability: float


@dataclass(frozen=True)
class Segment:
    """A piece of text with its times, in seconds of the recording."""

    id: int
    """Counts from 1."""
    seek: int
    """Where the window began that it was read in, in hundredths of a second."""
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    avg_logprob: float
    """The mean logarithm of the probabilities of the window's tokens."""
    compression_ratio: float
    """Bytes of the window's text to those after compression: texts that repeat themselves have large ones."""
    no_speech_prob: float
    """The probability that nobody speaks in the window."""
    words: tuple[Word, ...] | None
    """None without `word_timestamps`."""
    temperature: float
    """At which the window's tokens were drawn; 0: the most probable ones."""
    logprobs: tuple[float | None, ...] = ()
    """Of the tokens, their log-probabilities under the rules that hold for texts; None for those that were given as the
    `prefix`. Not in faster-whisper."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the fields of openai-whisper; without words if there are none."""
        found = asdict(self)
        del found["logprobs"]
        found["tokens"] = [*self.tokens]
        if self.words is None:
            del found["words"]
        else:
            found["words"] = [asdict(word) for word in self.words]
        return found


@dataclass(frozen=True)
class TranscriptionInfo:
    """What is known before the first segment."""

    language: str
    language_probability: float
    duration: float
    """Seconds."""
    duration_after_vad: float
    """Seconds in which somebody speaks, with `vad_filter`; else like `duration`."""
    all_language_probs: tuple[tuple[str, float], ...] | None
    """Languages with their probabilities, the most probable first; None if the language was given."""
    transcription_options: TranscriptionOptions
    vad_options: Mapping[str, float] | None
