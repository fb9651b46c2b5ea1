"""A recording as text by a Moonshine, which hears samples and writes texts without times.

    transcriber = load_transcriber("UsefulSensors/moonshine-tiny")
    for segment in transcriber.transcribe("talk.mp3"):
        print(segment.start, segment.end, segment.text)

A recording of up to 30 seconds is heard as it is. A longer one is cut at pauses, and each window is a segment with the
times at which it was cut: of words there are none. A window has at most 6.5 tokens a second, as its authors have it,
and no less than 8: beyond them such a model repeats itself.

It has no prompt, no language and no other task: options for those are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import islice
from typing import Unpack

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.llm.seq2seq import Seq2SeqModel, Written
from relaxpy.llm.tokenizer import Tokenizer
from relaxpy.serve import Request
from relaxpy.serve.beams import Beams
from relaxpy.serve.request import Features
from relaxpy.speech.log_mel import RATE
from relaxpy.speech.options import TranscriptionOptions, TranscriptionOptionsDict
from relaxpy.speech.segments import Segment
from relaxpy.speech.silence import Detector, Range, VadOptions, cut_at_pauses, within
from relaxpy.speech.sound import Sound
from relaxpy.speech.sound_transcription import SoundTranscription, refuse_others
from relaxpy.speech.transcriber import Given
from relaxpy.speech.windows import compression_ratio

WINDOW = 30 * RATE
"""Samples that are heard at once."""
TOKENS_A_SECOND, LEAST_TOKENS = 6.5, 8
_PAUSE = 160
"""Milliseconds of silence at which windows are cut."""
_TAKEN = frozenset(
    {
        "beam_size", "length_penalty", "repetition_penalty", "no_repeat_ngram_size", "max_new_tokens", "batch_size",
        "clip_timestamps", "condition_on_previous_text", "seed",
    }
)  # fmt: skip
"""Options that are followed: windows do not know the text before them, and nothing is drawn."""


class MoonshineTranscriber:
    """A Moonshine with its tokenizer. Safe to use from several threads: what they hear is heard together."""

    nature = "writes texts without times, prompt and language"
    """What it does that a Whisper does not, in messages."""

    def __init__(self, model: Seq2SeqModel, tokenizer: Tokenizer, *, name: str = "model") -> None:
        """`relaxpy.speech.load_transcriber` makes one of a checkpoint."""
        self.model, self.tokenizer, self.name = model, tokenizer, name

    def __repr__(self) -> str:
        return f"<transcriber {self.name}: {self.model.decoder.vocab_size} tokens, windows of 30 s>"

    def transcribe(
        self,
        given: Given,
        *,
        name: str = "",
        longest: float | None = None,
        check: Callable[[], None] | None = None,
        **options: Unpack[TranscriptionOptionsDict],
    ) -> MoonshineTranscription:
        """The text of a recording, as `Transcriber.transcribe` gives it. Of the options there are those of searches and
        of repetitions, `max_new_tokens`, `batch_size` and `clip_timestamps`.

        Raises: UsageError, before the first segment: `bad-sound`; `bad-arguments`, for other options, too.
        """
        chosen = TranscriptionOptions.of({**options})
        refuse_others(chosen, _TAKEN, f"{self.name} {self.nature}")
        detector = Detector(VadOptions(min_silence_duration_ms=_PAUSE))

        def heard(piece: np.ndarray) -> None:
            if check is not None:
                check()
            detector.hear(piece)

        sound = Sound(given, name, longest=longest, heard=heard)
        return MoonshineTranscription(self, sound, detector, chosen, check)

    def request(self, samples: np.ndarray, options: TranscriptionOptions) -> Request | None:
        """The text of a window of samples; None for one that is too short to be heard."""
        if len(samples) < self.model.source.reach:
            return None
        most = options.max_new_tokens
        if most is None:
            most = max(LEAST_TOKENS, int(len(samples) / RATE * TOKENS_A_SECOND))
        most = min(most, self.model.decoder.positions - 1)
        asked = self.model.request(Features(samples[None]), max_tokens=most)
        sampling = replace(
            asked.sampling,
            temperature=0,
            repetition_penalty=options.repetition_penalty,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            seed=options.seed,
        )
        beams = None
        if options.beam_size > 1:
            beams = Beams(options.beam_size, options.length_penalty, early_stopping=True)
        return replace(asked, sampling=sampling, beams=beams)


class MoonshineTranscription(SoundTranscription):
    """The segments of a recording, one for each window that has a text."""

    def __init__(
        self,
        transcriber: MoonshineTranscriber,
        sound: Sound,
        detector: Detector,
        options: TranscriptionOptions,
        check: Callable[[], None] | None,
    ) -> None:
        self.transcriber = transcriber
        spoken = detector.spoken(sound.length)
        self._spoken = spoken
        super().__init__(sound, options, check)

    def _windows(self) -> list[Range]:
        found: list[Range] = []
        for start, stop in self._clips():
            inside = within(self._spoken, [(start, stop)])
            found += [part for each in cut_at_pauses(inside, start, stop, WINDOW) for part in each]
        return found

    def _every(self) -> Generator[Segment]:
        transcriber, number = self.transcriber, 0
        waiting = iter(self._windows())
        while windows := [*islice(waiting, self.options.batch_size or 1)]:
            if self._check is not None:
                self._check()
            asked = [
                transcriber.request(self.sound.samples(*each), self.options) for each in windows
            ]
            texts = transcriber.model.write_all([each for each in asked if each is not None])
            found = iter(texts)
            for window, request in zip(windows, asked, strict=True):
                self.position = window[1] / RATE
                if request is None:
                    continue
                segment = self._segment(number + 1, window, next(found))
                if segment is not None:
                    number += 1
                    yield segment
        self.position = self.sound.seconds

    def _segment(self, number: int, window: Range, written: Written) -> Segment | None:
        """The text of a window; None if it has none."""
        text = self.transcriber.tokenizer.decode(written.tokens).strip()
        if not text:
            return None
        start, end = (round(each / RATE, 2) for each in window)
        return Segment(
            number, round(100 * start), start, end, " " + text, written.tokens, float(np.mean(written.logprobs)),
            compression_ratio(text), 0.0, None, 0.0, written.logprobs,
        )  # fmt: skip


def check_features(features: dict[str, object], place: str) -> None:
    """Raises: UsageError (`bad-checkpoint`) for a preprocessor_config.json of other sound than 16 kHz as it is."""
    for name, value in {"sampling_rate": RATE, "do_normalize": False}.items():
        if features.get(name, value) != value:
            raise UsageError(
                "bad-checkpoint", f"{place}: {name} is {features[name]!r}, and must be {value}"
            )
