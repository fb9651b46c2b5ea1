"""What of a recording is heard: all of it, clips, or the parts in which somebody speaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relaxpy.speech.course import FRAMES
from relaxpy.speech.cut_sound import CutSound
from relaxpy.speech.log_mel import HOP, RATE, LogMel
from relaxpy.speech.options import TranscriptionOptions
from relaxpy.speech.silence import Detector, Range, VadOptions, cut_at_pauses, packed, within
from relaxpy.speech.sound import Sound
from relaxpy.speech.spectrum import Spectrum

_PAUSE = 160
"""Milliseconds of silence at which windows are cut, unless `vad_parameters` has others."""


@dataclass(frozen=True)
class Part:
    """A sound that is heard by itself: the whole, or a window."""

    spectrum: Callable[[], Spectrum]
    clips: tuple[tuple[int, int], ...] | None = None
    """Ranges of its frames; None: all."""
    cut: CutSound | None = None
    """What its times refer to; None: they are those of the recording."""


@dataclass(frozen=True)
class Material:
    """The parts of a recording that are heard."""

    parts: Sequence[Part]
    seconds: float
    spoken: float
    """Seconds of what is left where silence is cut out."""
    first: Spectrum
    """Where the language is heard."""
    vad: VadOptions | None = None
    speech: np.ndarray | None = None
    """Whether frames of 512 samples have speech, where silence is cut out or words are trimmed."""


def material(
    given: Any,
    log_mel: LogMel,
    frames: int,
    options: TranscriptionOptions,
    *,
    name: str = "",
    longest: float | None = None,
    check: Callable[[], None] | None = None,
) -> Material:
    """The parts of a recording, of which windows have so many `frames`. Raises: UsageError (`bad-sound`,
    `bad-arguments`)."""

    def spectrum_of(source: Any) -> Spectrum:
        return Spectrum(source, log_mel, frames, name=name, longest=longest, check=check)

    is_heard = options.trim_words and options.word_timestamps
    if not options.vad_filter and options.batch_size is None and not is_heard:
        whole = spectrum_of(given)
        seconds = whole.sound.seconds
        return Material(
            [Part(lambda: whole, _clips(options, whole.frames))], seconds, seconds, whole
        )
    window = frames * HOP
    vad = VadOptions.of(options.vad_parameters)
    if options.batch_size is not None:
        given_ones = options.vad_parameters or {}
        vad = replace(
            vad,
            min_silence_duration_ms=given_ones.get("min_silence_duration_ms", _PAUSE),
            max_speech_duration_s=min(vad.max_speech_duration_s, frames / FRAMES),
        )
    detector = Detector(vad)

    def heard(piece: np.ndarray) -> None:
        if check is not None:
            check()
        detector.hear(piece)

    sound = Sound(given, name, longest=longest, heard=heard)
    clips = [(a * HOP, b * HOP) for a, b in _clips(options, sound.length // HOP + 1)]
    clips = [(a, min(b, sound.length)) for a, b in clips]
    spoken = within(detector.spoken(sound.length), clips)
    if not options.vad_filter and options.batch_size is None:
        whole = spectrum_of(CutSound(sound, [(0, sound.length)]))
        part = Part(lambda: whole, _clips(options, whole.frames))
        return Material([part], sound.seconds, sound.seconds, whole, None, detector.speech)
    if options.batch_size is None:
        windows = [spoken]
    elif options.vad_filter:
        windows = packed(spoken, window)
    else:
        windows = [
            each for a, b in clips for each in cut_at_pauses(within(spoken, [(a, b)]), a, b, window)
        ]
    margin = round(RATE * vad.speech_pad_ms / 1000)
    cuts = [CutSound(sound, ranges, margin) for ranges in windows]
    seconds = sum(cut.seconds for cut in cuts)
    shown = vad if options.vad_filter else None
    speech = detector.speech if options.vad_filter or is_heard else None
    if options.batch_size is None:
        whole = spectrum_of(cuts[0])
        parts = [Part(lambda: whole, None, cuts[0])]
        return Material(parts, sound.seconds, seconds, whole, shown, speech)
    first = windows[: options.language_detection_segments]
    # A window is kept while it is heard: windows before it would be decoded anew.
    parts = [Part(_of_window(spectrum_of, cut), None, cut) for cut in cuts]
    of_first = spectrum_of(CutSound(sound, [part for each in first for part in each]))
    return Material(parts, sound.seconds, seconds, of_first, shown, speech)


def _of_window(spectrum_of: Callable[[Any], Spectrum], cut: CutSound) -> Callable[[], Spectrum]:
    return lambda: spectrum_of(cut.samples(0, cut.length))


def _clips(options: TranscriptionOptions, frames: int) -> tuple[Range, ...]:
    """Ranges of frames that are transcribed."""
    points = [round(each * FRAMES) for each in options.clips or ()] or [0]
    if len(points) % 2:
        points.append(frames)
    return tuple((begin, min(end, frames)) for begin, end in zip(points[::2], points[1::2]))
