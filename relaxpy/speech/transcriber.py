"""A recording as text: window after window, each begun where the last segment of the one before ended.

    transcriber = load_transcriber("openai/whisper-tiny")
    transcription = transcriber.transcribe("talk.mp3", word_timestamps=True)
    transcription.info.language
    for segment in transcription:
        print(segment.start, segment.end, segment.text)

The windows are openai-whisper's: a model writes times beside the text of 30 seconds, and the next window begins at the
last of them, or after the window if nothing was cut. The text before is the prompt. Options have faster-whisper's names
(`relaxpy.speech.options`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Unpack

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.speech.log_mel import HOP, RATE, LogMel
from relaxpy.speech.options import TranscriptionOptions, TranscriptionOptionsDict
from relaxpy.speech.recogniser import Recogniser
from relaxpy.speech.segments import Segment, TranscriptionInfo
from relaxpy.speech.spectrum import Spectrum
from relaxpy.speech.vocabulary import Vocabulary
from relaxpy.speech.windows import HeardWindow, hear, is_silence, slices, window_prompt
from relaxpy.speech.word_times import Piece, is_odd, last_end, next_spoken, window_words, with_words

FRAMES = RATE // HOP
"""Frames a second."""
_EDGE = 2.0
"""Seconds at the ends of a window in which what is odd is believed less."""

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
        if chosen.vad_filter:
            raise UsageError(
                "bad-arguments",
                "vad_filter is not supported",
                help="no_speech_threshold skips windows without speech, hallucination_silence_threshold silences",
            )
        if chosen.language is not None:
            self.vocabulary.start(self.vocabulary.language(chosen.language), chosen.task)
        spectrum = Spectrum(
            given, self.log_mel, self.recogniser.frames, name=name, longest=longest, check=check
        )
        return Transcription(self, spectrum, chosen, check)

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
        spectrum: Spectrum,
        options: TranscriptionOptions,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.options = options
        self.position = 0.0
        """Seconds of the recording that were heard."""
        self.text = ""
        """Of the segments so far."""
        self.transcriber, self.spectrum, self._check = transcriber, spectrum, check
        self._clips = _clips(options, spectrum.frames)
        if options.language is not None:
            language, share, others = transcriber.vocabulary.language(options.language), 1.0, None
        else:
            language, share, others = transcriber.detect_language(
                spectrum,
                segments=options.language_detection_segments,
                threshold=options.language_detection_threshold,
            )
        transcriber.vocabulary.start(language, options.task)
        seconds = spectrum.sound.seconds
        self.info = TranscriptionInfo(language, share, seconds, seconds, others, options, None)
        self._segments = self._windows()

    def __iter__(self) -> Iterator[Segment]:
        return self

    def __next__(self) -> Segment:
        segment = next(self._segments)
        self.text += segment.text
        return segment

    def close(self) -> None:
        """End the transcription."""
        self._segments.close()

    def _windows(self) -> Any:
        """The segments of all windows."""
        options, vocabulary = self.options, self.transcriber.vocabulary
        recogniser, spectrum = self.transcriber.recogniser, self.spectrum
        prompt = options.initial_prompt
        before = list(
            vocabulary.encode(" " + prompt.strip()) if isinstance(prompt, str) else prompt or ()
        )
        seeds, language, prefix = count(options.seed), self.info.language, options.prefix
        number, spoken = count(1), 0.0
        for first, last in self._clips:
            seek = first
            while seek < last:
                self.position = seek / FRAMES
                if self._check is not None:
                    self._check()
                frames = min(recogniser.frames, spectrum.frames - seek, last - seek)
                features = spectrum.window(seek, frames)
                if options.multilingual and options.language is None and vocabulary.is_multilingual:
                    language = self.transcriber.languages_of(features)[0][0]
                made = window_prompt(
                    vocabulary, options, recogniser.positions, language, before, prefix
                )
                heard = hear(recogniser, vocabulary, options, features, made, lambda: next(seeds))
                if is_silence(heard, options):
                    seek += frames
                    continue
                prefix = None
                window = _Window(self, seek, frames, language, features, heard)
                pieces, after, spoken = window.pieces(spoken)
                seek = after if after > seek else seek + frames  # times of words may stand still
                for piece in pieces:
                    text = vocabulary.decode(piece.tokens)
                    if piece.start == piece.end or not text.strip():
                        continue
                    before += piece.tokens
                    yield Segment(
                        next(number), window.seek, piece.start, piece.end, text, piece.tokens, heard.mean_logprob,
                        heard.compression_ratio, heard.no_speech_prob,
                        piece.words if options.word_timestamps else None, heard.temperature,
                    )  # fmt: skip
                if (
                    not options.condition_on_previous_text
                    or heard.temperature > options.prompt_reset_on_temperature
                ):
                    before = []
        self.position = min(spectrum.frames, self._clips[-1][1] if self._clips else 0) / FRAMES


class _Window:
    """A window that was heard: its segments, and where the next one begins."""

    def __init__(
        self,
        of: Transcription,
        seek: int,
        frames: int,
        language: str,
        features: np.ndarray,
        heard: HeardWindow,
    ) -> None:
        self.of, self.seek, self.frames = of, seek, frames
        self.language, self.features, self.heard = language, features, heard
        self.offset, self.seconds = seek / FRAMES, frames / FRAMES

    def pieces(self, spoken: float) -> tuple[list[Piece], int, float]:
        """The segments, the frame of the next window, and where the last word ends; `spoken` is where that before
        ends."""
        of = self.of
        vocabulary, recogniser = of.transcriber.vocabulary, of.transcriber.recogniser
        parts, stop, ends_alone = slices(self.heard.tokens, vocabulary.time, self.seconds)
        after = self.seek + (self.frames if stop is None else round(stop * FRAMES))
        found = [
            Piece(round(self.offset + each.start, 2), round(self.offset + each.end, 2), each.tokens)
            for each in parts
        ]
        if not of.options.word_timestamps:
            return found, after, spoken
        text = tuple(token for piece in found for token in piece.tokens if token < vocabulary.end)
        words = window_words(
            recogniser, vocabulary, of.options, self.language, self.features, self.frames, text
        )
        found = with_words(found, words, of.options, self.offset, spoken, vocabulary.end)
        end = last_end(found)
        if not ends_alone and end is not None and end > self.offset:
            after = round(end * FRAMES)
        limit = of.options.hallucination_silence_threshold
        if limit is not None:
            found, after, is_skipped = self._without_odd(found, after, spoken, limit, ends_alone)
            if is_skipped:
                return [], after, spoken
        end = last_end(found)
        return found, after, spoken if end is None else end

    def _without_odd(
        self, pieces: list[Piece], after: int, spoken: float, limit: float, ends_alone: bool
    ) -> tuple[list[Piece], int, bool]:
        """The segments without what is odd and between silences of more than `limit` seconds, which nobody spoke; then
        the frame of the next window; then whether this one begins with such a silence, and is heard anew after it."""
        offset, window_end = (
            self.offset,
            self.offset + self.of.transcriber.recogniser.frames / FRAMES,
        )
        end = last_end(pieces)
        if not ends_alone and end is not None and end > offset:
            after = round(end * FRAMES) if window_end - end > limit else self.seek + self.frames
        first = next_spoken(pieces)
        if first is not None and is_odd(first) and first.start - offset > limit:
            return [], self.seek + round((first.start - offset) * FRAMES), True
        for k, piece in enumerate(pieces):
            if not piece.words:
                continue
            if is_odd(piece):
                following = next_spoken(pieces[k + 1 :])
                begins = offset + self.seconds if following is None else following.words[0].start
                is_quiet_before = (
                    piece.start - spoken > limit
                    or piece.start < limit
                    or piece.start - offset < _EDGE
                )
                is_quiet_after = (
                    begins - piece.end > limit
                    or is_odd(following)
                    or window_end - piece.end < _EDGE
                )
                if is_quiet_before and is_quiet_after:
                    after = round(max(offset + 1, piece.start) * FRAMES)
                    if self.of.spectrum.sound.seconds - piece.end < limit:
                        after = self.of.spectrum.frames
                    return pieces[:k], after, False
            spoken = piece.end
        return pieces, after, False


def _clips(options: TranscriptionOptions, frames: int) -> list[tuple[int, int]]:
    """Ranges of frames that are transcribed."""
    points = [round(each * FRAMES) for each in options.clips or ()] or [0]
    if len(points) % 2:
        points.append(frames)
    return [(begin, min(end, frames)) for begin, end in zip(points[::2], points[1::2])]
