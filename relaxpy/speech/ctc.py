"""A recording as text by a model that gives a token for each frame (CTC): wav2vec 2.0, HuBERT, Parakeet.

    transcriber = load_transcriber("facebook/wav2vec2-base-960h")
    for segment in transcriber.transcribe("talk.mp3", word_timestamps=True):
        print(segment.start, segment.end, segment.text)

The text is that of the most probable token of each frame, and words have the times of their frames. A long recording is
read in windows of 30 seconds that overlap; what is near an edge inside of the recording is taken from the window in
which it is not (as transformers' pipeline does with `chunk_length_s=30`), so memory does not depend on the length.

Such a model has no prompt, no language and no other task: options for those are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Protocol, Unpack

import numpy as np

from relaxpy.speech.ctc_vocabulary import CtcVocabulary
from relaxpy.speech.log_mel import RATE
from relaxpy.speech.options import TranscriptionOptions, TranscriptionOptionsDict
from relaxpy.speech.segments import Segment, Word
from relaxpy.speech.sound import Sound
from relaxpy.speech.sound_transcription import SoundTranscription, refuse_others
from relaxpy.speech.transcriber import Given
from relaxpy.speech.windows import compression_ratio

WINDOW = 30.0
"""Seconds that are read at once."""
EDGE = 5.0
"""Seconds at the ends of a window that another one reads better."""
PAUSE = 1.0
"""Seconds without a word that end a segment."""
LONGEST = 15.0
"""Seconds after which a segment ends with the next word."""
_ENDS = (".", "?", "!", "。", "？", "！")
_TAKEN = frozenset({"word_timestamps", "clip_timestamps", "condition_on_previous_text", "seed"})
"""Options that are followed: windows do not know the text before them, and nothing is drawn."""


class FrameModel(Protocol):
    """What gives the logits of frames (`relaxpy.models.loaded_ctc.LoadedCtc`)."""

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        ...

    @property
    def reach(self) -> int:
        """The fewest samples that have a frame."""
        ...

    def logits(self, samples: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Samples (batch, samples) → (batch, frames, vocabulary)."""
        ...


@dataclass(frozen=True)
class _Spoken:
    """A word, with the frames of its tokens."""

    text: str
    tokens: tuple[int, ...]
    start: int
    end: int
    logprobs: tuple[float, ...]
    """Of its frames."""
    window: int
    """The sample at which the window begins that it was read in."""


class CtcTranscriber:
    """A model of speech with its vocabulary. Safe to use from several threads: windows are read one after the other."""

    nature = "gives a token for each frame"
    """What it does that a Whisper does not, in messages."""

    def __init__(
        self, model: FrameModel, vocabulary: CtcVocabulary, *, normalise: bool, name: str = "model"
    ) -> None:
        """With `normalise` the samples of a window get mean 0 and variance 1. `relaxpy.speech.load_transcriber` makes
        one of a checkpoint."""
        self.model, self.vocabulary, self.normalise, self.name = model, vocabulary, normalise, name
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<transcriber {self.name}: {len(self.vocabulary.pieces)} tokens, of {self.model.hop} samples each>"

    def transcribe(
        self,
        given: Given,
        *,
        name: str = "",
        longest: float | None = None,
        check: Callable[[], None] | None = None,
        **options: Unpack[TranscriptionOptionsDict],
    ) -> CtcTranscription:
        """The text of a recording, as `Transcriber.transcribe` gives it. Of the options there are `word_timestamps` and
        `clip_timestamps`.

        Raises: UsageError, before the first segment: `bad-sound`; `bad-arguments`, for other options, too.
        """
        chosen = TranscriptionOptions.of({**options})
        refuse_others(chosen, _TAKEN, f"{self.name} {self.nature}")

        def heard(_: np.ndarray) -> None:
            if check is not None:
                check()

        sound = Sound(given, name, longest=longest, heard=heard)
        return CtcTranscription(self, sound, chosen, check)

    def frames_of(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The most probable token of each frame (frames,), and the logarithm of its probability."""
        if len(samples) < self.model.reach:
            return np.empty(0, np.int64), np.empty(0)
        if self.normalise:
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + 1e-7)
        with self._lock:
            (logits,) = self.model.logits(
                samples.astype(np.float32)[None], np.array([len(samples)], np.int64)
            )
        return best_path(logits)


def best_path(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most probable token of each frame of (frames, vocabulary), and the logarithm of its probability."""
    best = logits.argmax(-1)
    rows = logits.astype(np.float64)
    top = rows.max(-1)
    log_sum = top + np.log(np.exp(rows - top[:, None]).sum(-1))
    return best, rows[np.arange(len(best)), best] - log_sum


class CtcTranscription(SoundTranscription):
    """The segments of a recording."""

    def __init__(
        self,
        transcriber: CtcTranscriber,
        sound: Sound,
        options: TranscriptionOptions,
        check: Callable[[], None] | None,
    ) -> None:
        self.transcriber = transcriber
        super().__init__(sound, options, check)

    def _every(self) -> Generator[Segment]:
        number = 0
        for first, last in self._clips():
            for words in _grouped(self._words(first, last), self.transcriber.model.hop):
                number += 1
                yield self._segment(number, first, words)
        self.position = self.sound.seconds

    def _segment(self, number: int, offset: int, words: list[_Spoken]) -> Segment:
        """A segment of words, whose frames are counted from the sample `offset`."""

        def seconds(frame: int) -> float:
            return round((offset + frame * self.transcriber.model.hop) / RATE, 2)

        text = "".join(" " + word.text for word in words)
        timed = tuple(
            Word(seconds(word.start), seconds(word.end), " " + word.text, float(np.exp(np.mean(word.logprobs))))
            for word in words
        )  # fmt: skip
        logprobs = [value for word in words for value in word.logprobs]
        tokens = tuple(token for word in words for token in word.tokens)
        return Segment(
            number, round(100 * words[0].window / RATE), timed[0].start, timed[-1].end, text, tokens,
            float(np.mean(logprobs)), compression_ratio(text.strip()), 0.0,
            timed if self.options.word_timestamps else None, 0.0,
        )  # fmt: skip

    def _words(self, first: int, last: int) -> Iterator[_Spoken]:
        """The words of the samples from `first` to `last`, when they are certain."""
        vocabulary = self.transcriber.vocabulary
        pieces: list[str] = []
        tokens: list[int] = []
        logprobs: list[float] = []
        start = end = window = 0
        before = vocabulary.blank
        for frame, token, logprob, begins in self._frames(first, last):
            if token == vocabulary.blank:
                before = token
                continue
            piece = vocabulary.pieces[token]
            is_again, before = token == before, token
            if is_again and tokens and tokens[-1] == token:
                end = frame + 1
                logprobs.append(logprob)
            if is_again:
                continue
            if piece.startswith(" ") and pieces:
                if text := vocabulary.text(pieces):
                    yield _Spoken(text, tuple(tokens), start, end, tuple(logprobs), window)
                pieces, tokens, logprobs = [], [], []
            if not piece.strip():
                continue
            if not pieces:
                start, window = frame, begins
            pieces.append(piece)
            tokens.append(token)
            logprobs.append(logprob)
            end = frame + 1
        if text := vocabulary.text(pieces):
            yield _Spoken(text, tuple(tokens), start, end, tuple(logprobs), window)

    def _frames(self, first: int, last: int) -> Iterator[tuple[int, int, float, int]]:
        """The number, the token and its log-probability of each frame, and the sample at which the window begins that
        it is of."""
        transcriber, hop = self.transcriber, self.transcriber.model.hop
        whole, edge = (round(seconds * RATE / hop) for seconds in (WINDOW, EDGE))
        at = 0
        while True:
            if self._check is not None:
                self._check()
            begin = first + at * hop
            is_last = begin + whole * hop >= last
            samples = self.sound.samples(begin, min(begin + whole * hop, last))
            best, logprobs = transcriber.frames_of(samples)
            for k in range(edge if at else 0, len(best) if is_last else min(len(best), whole - edge)):  # fmt: skip
                yield at + k, int(best[k]), float(logprobs[k]), begin
            if is_last:
                return
            at += whole - 2 * edge
            self.position = (first + (at + edge) * hop) / RATE


def _grouped(words: Iterator[_Spoken], hop: int) -> Iterator[list[_Spoken]]:
    """The words of segments, which end with a pause, with a sentence, or when they are long."""
    found: list[_Spoken] = []
    for word in words:
        if found and (
            (word.start - found[-1].end) * hop >= PAUSE * RATE
            or (found[-1].end - found[0].start) * hop >= LONGEST * RATE
            or found[-1].text.endswith(_ENDS)
        ):
            yield found
            found = []
        found.append(word)
    if found:
        yield found
