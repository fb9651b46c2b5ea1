"""A recording as text: window after window, each begun where the last segment of the one before ended.

    transcriber = load_transcriber("openai/whisper-tiny")
    transcription = transcriber.transcribe("talk.mp3", word_timestamps=True)
    transcription.info.language
    for segment in transcription:
        print(segment.start, segment.end, segment.text)

The windows are openai-whisper's: a model writes times beside the text of 30 seconds, and the next window begins at the
last of them, or after the window if nothing was cut. The text before is the prompt. With `batch_size` a recording is
cut at pauses into windows that are heard together, and with `vad_filter` without silence (`relaxpy.speech.material`).
Options have faster-whisper's names (`relaxpy.speech.options`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Unpack

import numpy as np

from relaxpy.speech.course import FRAMES, Course
from relaxpy.speech.cut_sound import CutSound
from relaxpy.speech.live import LiveTranscriber
from relaxpy.speech.log_mel import LogMel
from relaxpy.speech.material import Material, material
from relaxpy.speech.options import TranscriptionOptions, TranscriptionOptionsDict
from relaxpy.speech.recogniser import Recogniser
from relaxpy.speech.segments import Segment, TranscriptionInfo
from relaxpy.speech.silence import trimmed
from relaxpy.speech.spectrum import Spectrum
from relaxpy.speech.vocabulary import Vocabulary
from relaxpy.speech.windows import hear

Given = str | os.PathLike[str] | bytes | np.ndarray
"""A recording: a file, its contents, or samples (n,) at 16 kHz."""


class Transcriber:
    """A model of speech with its vocabulary. Safe to use from several threads."""

    def __init__(
        self, recogniser: Recogniser, vocabulary: Vocabulary, *, name: str = "model"
    ) -> None:
        """`relaxpy.speech.load_transcriber` makes one of a checkpoint."""
        self.recogniser, self.vocabulary, self.name = recogniser, vocabulary, name
        self.log_mel = LogMel(recogniser.mels)

    def __repr__(self) -> str:
        languages = len(self.vocabulary.languages) if self.vocabulary.is_multilingual else 1
        return f"<transcriber {self.name}: {languages} languages, windows of {self.recogniser.frames / FRAMES:g} s>"

    def transcribe(
        self,
        given: Given,
        *,
        name: str = "",
        longest: float | None = None,
        check: Callable[[], None] | None = None,
        **options: Unpack[TranscriptionOptionsDict],
    ) -> Transcription:
        """The text of a recording, a file, its bytes, or samples (n,) at 16 kHz: an iterator of segments, each given
        when it is certain. `name` is what errors call the recording, `longest` the most seconds of it. `check` is
        called with each piece that is decoded for the first time, and before each window: what it raises ends the
        transcription.

        Options are the fields of `relaxpy.speech.options.TranscriptionOptions`.

        Raises: UsageError, before the first segment: `bad-sound`, `bad-arguments`.
        """
        chosen = TranscriptionOptions.of({**options})
        if chosen.language is not None:
            self.vocabulary.start(self.vocabulary.language(chosen.language), chosen.task)
        heard = material(
            given,
            self.log_mel,
            self.recogniser.frames,
            chosen,
            name=name,
            longest=longest,
            check=check,
        )
        return Transcription(self, heard, chosen, check)

    def live(
        self, *, step: float | None = None, **options: Unpack[TranscriptionOptionsDict]
    ) -> LiveTranscriber:
        """Hears sound while it is spoken (`relaxpy.speech.live`). It is heard anew each `step` seconds: 1 unless it is
        given, and less for models of short windows. Options are those of `transcribe` that say how a text is written.

        Raises: UsageError (`bad-arguments`).
        """
        return LiveTranscriber(self, step, {**options})

    def detect_language(
        self, given: Given | Spectrum, *, segments: int = 1, threshold: float = 0.5
    ) -> tuple[str, float, tuple[tuple[str, float], ...]]:
        """The language of a recording, its probability, and those of all, the most probable first. It is heard in the
        first windows, up to `segments`, until one is more probable than `threshold`; if none is, the one that was found
        most often."""
        if not self.vocabulary.is_multilingual:
            return "en", 1.0, (("en", 1.0),)
        spectrum = (
            given
            if isinstance(given, Spectrum)
            else Spectrum(given, self.log_mel, self.recogniser.frames)
        )
        found: list[tuple[tuple[str, float], ...]] = []
        for k in range(segments):
            start = k * self.recogniser.frames
            if k and start >= spectrum.frames:
                break
            window = spectrum.window(start, min(self.recogniser.frames, spectrum.frames - start))
            found.append(self.languages_of(window))
            if found[-1][0][1] > threshold:
                return *found[-1][0], found[-1]
        names = [each[0][0] for each in found]
        most = max(names, key=names.count)
        first = found[names.index(most)]
        return *first[0], first

    def languages_of(self, features: np.ndarray) -> tuple[tuple[str, float], ...]:
        """The probabilities of the languages of a window, the largest first."""
        logprobs = self.recogniser.logprobs(features, (self.vocabulary.first,))
        codes, numbers = zip(*self.vocabulary.languages.items())
        chosen = logprobs[list(numbers)].astype(np.float64)
        shares = np.exp(chosen - chosen.max())
        shares /= shares.sum()
        order = np.argsort(-shares, kind="stable")
        return tuple((codes[k], float(shares[k])) for k in order)


class Transcription:
    """The segments of a recording, an iterator; used by one thread. What `info` says is known before the first one."""

    def __init__(
        self,
        transcriber: Transcriber,
        material: Material,
        options: TranscriptionOptions,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.options = options
        self.position = 0.0
        """Seconds of the recording that were heard."""
        self.text = ""
        """Of the segments so far."""
        self.transcriber, self._material, self._check = transcriber, material, check
        if options.language is not None:
            language, share, others = transcriber.vocabulary.language(options.language), 1.0, None
        else:
            language, share, others = transcriber.detect_language(
                material.first,
                segments=options.language_detection_segments,
                threshold=options.language_detection_threshold,
            )
        transcriber.vocabulary.start(language, options.task)
        vad = material.vad.as_dict() if material.vad is not None else None
        self.info = TranscriptionInfo(
            language, share, material.seconds, material.spoken, others, options, vad
        )
        self._segments = self._heard()

    def __iter__(self) -> Iterator[Segment]:
        return self

    def __next__(self) -> Segment:
        segment = next(self._segments)
        self.text += segment.text
        return segment

    def close(self) -> None:
        """End the transcription."""
        self._segments.close()

    def _heard(self) -> Generator[Segment]:
        """The segments of all parts, in their order. So many parts as a batch has are heard together."""
        transcriber, options = self.transcriber, self.options
        waiting = iter(enumerate(self._material.parts))
        running: list[_Running] = []
        seeds, number = count(options.seed), count(1)
        is_last = False
        while not is_last or running:
            while not is_last and sum(not each.course.is_over for each in running) < (
                options.batch_size or 1
            ):
                k, part = next(waiting, (0, None))
                if part is None:
                    is_last = True
                    break
                own = options if k == 0 else replace(options, prefix=None)
                spectrum = part.spectrum()
                clips = part.clips or ((0, spectrum.frames),)
                course = Course(transcriber, own, self.info.language, spectrum, clips)
                running.append(_Running(course, part.cut))
            while running:
                self.position = running[0].position
                for segment in running[0].taken():
                    yield self._trimmed(replace(segment, id=next(number)))
                if not running[0].course.is_over:
                    break
                running.pop(0)
            asked = [each for each in running if not each.course.is_over]
            if not asked:
                continue
            if self._check is not None:
                self._check()
            windows = [each.course.next() for each in asked]
            texts = hear(
                transcriber.recogniser,
                transcriber.vocabulary,
                options,
                windows,
                lambda: next(seeds),
            )
            for each, text in zip(asked, texts, strict=True):
                each.found += each.course.take(text)
        clips = self._material.parts[-1].clips if self._material.parts else None
        self.position = clips[-1][1] / FRAMES if clips else self.info.duration

    def _trimmed(self, segment: Segment) -> Segment:
        """A segment whose words do not begin or end in silence, where that is known."""
        speech = self._material.speech
        if speech is None or not segment.words:
            return segment
        times = [trimmed(word.start, word.end, speech) for word in segment.words]
        words = [replace(w, start=a, end=b) for w, (a, b) in zip(segment.words, times, strict=True)]
        return replace(segment, start=words[0].start, end=words[-1].end, words=tuple(words))


@dataclass
class _Running:
    """A part that is heard."""

    course: Course
    cut: CutSound | None
    found: list[Segment] = field(default_factory=list[Segment])
    """Segments that were not given yet."""

    @property
    def position(self) -> float:
        """Seconds of the recording."""
        seconds = self.course.seek / FRAMES
        return seconds if self.cut is None else self.cut.original(seconds)

    def taken(self) -> list[Segment]:
        """The segments, with times of the recording."""
        found, self.found = self.found, []
        return found if self.cut is None else [self.cut.restored(each) for each in found]
