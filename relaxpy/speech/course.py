"""A sound that is heard window after window: what the next window is, and the segments that its text makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from relaxpy.speech.log_mel import HOP, RATE
from relaxpy.speech.segments import Segment
from relaxpy.speech.windows import HeardWindow, Prompt, is_silence, slices, window_prompt
from relaxpy.speech.word_times import Piece, is_odd, last_end, next_spoken, window_words, with_words

if TYPE_CHECKING:
    from relaxpy.speech.options import TranscriptionOptions
    from relaxpy.speech.spectrum import Spectrum
    from relaxpy.speech.transcriber import Transcriber

FRAMES = RATE // HOP
"""Frames a second."""
_EDGE = 2.0
"""Seconds at the ends of a window in which what is odd is believed less."""


class Course:
    """Asks for the texts of windows, one after the other: `next`, then `take` of its text, until `is_over`."""

    def __init__(
        self,
        transcriber: Transcriber,
        options: TranscriptionOptions,
        language: str,
        spectrum: Spectrum,
        clips: Sequence[tuple[int, int]],
    ) -> None:
        """`clips` are the ranges of frames to hear."""
        self.transcriber, self.options, self.spectrum = transcriber, options, spectrum
        self.seek = 0
        """The frame where the next window begins."""
        self._language = language
        self._clips = iter([(first, last) for first, last in clips if first < last])
        self._last = 0
        prompt = options.initial_prompt
        self._before = (
            self.transcriber.vocabulary.encode(" " + prompt.strip())
            if isinstance(prompt, str)
            else [*(prompt or ())]
        )
        self._prefix = options.prefix
        self._spoken = 0.0
        self._asked: tuple[int, str, np.ndarray] | None = None
        self._go_on()

    @property
    def is_over(self) -> bool:
        """Whether there is no further window."""
        return self.seek >= self._last

    def _go_on(self) -> None:
        """To the next clip, if this one was heard."""
        if self.is_over and (clip := next(self._clips, None)) is not None:
            self.seek, self._last = clip

    def next(self) -> tuple[np.ndarray, Prompt]:
        """The features and the prompt of the next window."""
        options, spectrum = self.options, self.spectrum
        frames = min(
            self.transcriber.recogniser.frames, spectrum.frames - self.seek, self._last - self.seek
        )
        features = spectrum.window(self.seek, frames)
        language = self._language
        if (
            options.multilingual
            and options.language is None
            and self.transcriber.vocabulary.is_multilingual
        ):
            language = self.transcriber.languages_of(features)[0][0]
        self._asked = frames, language, features
        prompt = window_prompt(
            self.transcriber.vocabulary,
            options,
            self.transcriber.recogniser.positions,
            language,
            self._before,
            self._prefix,
        )
        return features, prompt

    def take(self, heard: HeardWindow) -> Iterator[Segment]:
        """The segments of the window's text, which count from 0, with times in seconds of the sound."""
        assert self._asked is not None
        frames, language, features = self._asked
        if is_silence(heard, self.options):
            self.seek += frames
            self._go_on()
            return
        self._prefix = None
        window = _Window(self, self.seek, frames, language, features, heard)
        pieces, after, self._spoken = window.pieces(self._spoken)
        begin = self.seek
        self.seek = after if after > begin else begin + frames  # times of words may stand still
        self._go_on()
        at = 0
        for piece in pieces:
            logprobs = heard.logprobs[at : at + len(piece.tokens)]
            at += len(piece.tokens)
            text = self.transcriber.vocabulary.decode(piece.tokens)
            if piece.start == piece.end or not text.strip():
                continue
            self._before += piece.tokens
            yield Segment(
                0, begin, piece.start, piece.end, text, piece.tokens, heard.mean_logprob,
                heard.compression_ratio, heard.no_speech_prob,
                piece.words if self.options.word_timestamps else None, heard.temperature,
                logprobs,
            )  # fmt: skip
        if (
            not self.options.condition_on_previous_text
            or heard.temperature > self.options.prompt_reset_on_temperature
        ):
            self._before = []


class _Window:
    """A window that was heard: its segments, and where the next one begins."""

    def __init__(
        self,
        course: Course,
        seek: int,
        frames: int,
        language: str,
        features: np.ndarray,
        heard: HeardWindow,
    ) -> None:
        self.course, self.seek, self.frames = course, seek, frames
        self.language, self.features, self.heard = language, features, heard
        self.offset, self.seconds = seek / FRAMES, frames / FRAMES

    def pieces(self, spoken: float) -> tuple[list[Piece], int, float]:
        """The segments, the frame of the next window, and where the last word ends; `spoken` is where that before
        ends."""
        course = self.course
        vocabulary, recogniser, options = (
            course.transcriber.vocabulary,
            course.transcriber.recogniser,
            course.options,
        )
        parts, stop, ends_alone = slices(self.heard.tokens, vocabulary.time, self.seconds)
        after = self.seek + (self.frames if stop is None else round(stop * FRAMES))
        found = [
            Piece(round(self.offset + each.start, 2), round(self.offset + each.end, 2), each.tokens)
            for each in parts
        ]
        if not options.word_timestamps:
            return found, after, spoken
        text = tuple(token for piece in found for token in piece.tokens if token < vocabulary.end)
        words = window_words(
            recogniser, vocabulary, options, self.language, self.features, self.frames, text
        )
        found = with_words(found, words, options, self.offset, spoken, vocabulary.end)
        end = last_end(found)
        if not ends_alone and end is not None and end > self.offset:
            after = round(end * FRAMES)
        limit = options.hallucination_silence_threshold
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
            self.offset + self.course.transcriber.recogniser.frames / FRAMES,
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
                    if self.course.spectrum.sound.seconds - piece.end < limit:
                        after = self.course.spectrum.frames
                    return pieces[:k], after, False
            spoken = piece.end
        return pieces, after, False
