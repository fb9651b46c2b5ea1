"""The options of a transcription, by the names that faster-whisper and openai-whisper have for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, TypedDict

from relaxpy.errors import UsageError, did_you_mean
from relaxpy.narrow import is_mapping, is_sequence
from relaxpy.speech.silence import VadOptions

TASKS = ("transcribe", "translate")
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_PREPENDED = "\"'“¿([{-"
_APPENDED = "\"'.。,，!！?？:：”)]}、"
_NOT_HERE = {
    "log_progress": "iterate over the segments: each has its end in seconds",
    "verbose": "print the segments as they come",
    "fp16": "load the model with the scheme that you want",
    "chunk_length": "windows have the length that the model was made for",
    "diarize": "whisperx and pyannote.audio say who speaks",
    "speaker_labels": "whisperx and pyannote.audio say who speaks",
}
"""Options of others that there are none of here, and what to do."""


class TranscriptionOptionsDict(TypedDict, total=False):
    """The fields of `TranscriptionOptions` as options of a function."""

    language: str | None
    task: str
    beam_size: int
    best_of: int
    patience: float
    length_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    temperature: float | Sequence[float]
    compression_ratio_threshold: float | None
    log_prob_threshold: float | None
    no_speech_threshold: float | None
    condition_on_previous_text: bool
    prompt_reset_on_temperature: float
    initial_prompt: str | Sequence[int] | None
    prefix: str | None
    suppress_blank: bool
    suppress_tokens: Sequence[int] | None
    without_timestamps: bool
    max_initial_timestamp: float | None
    word_timestamps: bool
    prepend_punctuations: str
    append_punctuations: str
    multilingual: bool
    trim_words: bool
    vad_filter: bool
    vad_parameters: Mapping[str, Any] | None
    batch_size: int | None
    max_new_tokens: int | None
    clip_timestamps: str | Sequence[float]
    hallucination_silence_threshold: float | None
    hotwords: str | None
    language_detection_threshold: float
    language_detection_segments: int
    seed: int


@dataclass(frozen=True)
class TranscriptionOptions:
    """Options of `Transcriber.transcribe`. Raises: UsageError (`bad-arguments`)."""

    language: str | None = None
    """Code ("en") or name ("english") of the language that is spoken; None: it is heard in the first window."""
    task: str = "transcribe"
    """Or "translate": to English."""
    beam_size: int = 1
    """Beams of the search at temperature 0; 1: the most probable token each time."""
    best_of: int = 5
    """Texts that are drawn at other temperatures, of which the most probable one is taken."""
    patience: float = 1.0
    """The search ends when `beam_size * patience` texts have ended."""
    length_penalty: float = 1.0
    """The exponent of the length by which beams are compared."""
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    temperature: float | Sequence[float] = TEMPERATURES
    """Temperatures that are tried one after the other while the text of a window fails a threshold."""
    compression_ratio_threshold: float | None = 2.4
    """A text that compresses better fails."""
    log_prob_threshold: float | None = -1.0
    """A text of less mean log-probability fails."""
    no_speech_threshold: float | None = 0.6
    """A window in which speech is less probable than 1 minus this is skipped, unless its text has
    `log_prob_threshold`."""
    condition_on_previous_text: bool = True
    """Whether the text of the windows before is the prompt of the next one."""
    prompt_reset_on_temperature: float = 0.5
    """Not that of windows whose text was drawn at a higher temperature."""
    initial_prompt: str | Sequence[int] | None = None
    """A text, or tokens, before the first window."""
    prefix: str | None = None
    """What the text of the first window begins with."""
    suppress_blank: bool = True
    """Whether no text is empty or begins with a lone space."""
    suppress_tokens: Sequence[int] | None = (-1,)
    """Tokens that never come; -1 stands for symbols that are not spoken."""
    without_timestamps: bool = False
    max_initial_timestamp: float | None = 1.0
    """Seconds after which the first segment of a window may not begin."""
    word_timestamps: bool = False
    prepend_punctuations: str = _PREPENDED
    append_punctuations: str = _APPENDED
    multilingual: bool = False
    """Whether the language is heard anew in each window."""
    trim_words: bool = False
    """With `word_timestamps`: whether words do not begin or end in silence, as with `vad_filter`. Texts stay. Not in
    faster-whisper."""
    vad_filter: bool = False
    """Whether silence is cut out before the model hears the recording."""
    vad_parameters: Mapping[str, Any] | None = None
    """Fields of `relaxpy.speech.silence.VadOptions`, by which speech is told from silence."""
    batch_size: int | None = None
    """So many windows are heard together, which are cut at pauses; they do not know the text before them. None: one
    after the other."""
    max_new_tokens: int | None = None
    """The most tokens of a window."""
    clip_timestamps: str | Sequence[float] = "0"
    """Seconds "start,end,start,end" of what is transcribed; the last end is that of the recording if there is none."""
    hallucination_silence_threshold: float | None = None
    """With `word_timestamps`: silences of more seconds are skipped where the text around is improbable."""
    hotwords: str | None = None
    """Words that come up: in the prompt of every window without `prefix`."""
    language_detection_threshold: float = 0.5
    """Further windows are heard while no language is so probable."""
    language_detection_segments: int = 1
    """The most windows in which the language is looked for."""
    seed: int = 0

    def __post_init__(self) -> None:
        def need(fits: bool, name: str, expected: str) -> None:
            if not fits:
                raise UsageError(
                    "bad-arguments", f"{name} is {expected}, got {getattr(self, name)!r}"
                )

        need(self.task in TASKS, "task", " or ".join(TASKS))
        need(
            self.language is None or isinstance(self.language, str),
            "language",
            "a code or a name, or None",
        )
        whole = ("beam_size", "best_of", "language_detection_segments")
        for name in whole:
            need(
                _is_whole(getattr(self, name)) and 1 <= getattr(self, name) <= 1024,
                name,
                "from 1 to 1024",
            )
        need(
            _is_whole(self.no_repeat_ngram_size) and self.no_repeat_ngram_size >= 0,
            "no_repeat_ngram_size",
            "0 or more",
        )
        need(_is_whole(self.seed), "seed", "an integer")
        most = self.max_new_tokens
        need(
            most is None or (_is_whole(most) and most >= 1), "max_new_tokens", "at least 1, or None"
        )
        need(_is_number(self.patience) and self.patience > 0, "patience", "above 0")
        need(_is_number(self.length_penalty), "length_penalty", "a number")
        need(
            _is_number(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            "above 0",
        )
        need(bool(self.temperatures), "temperature", "a number of at least 0, or several")
        for name in ("compression_ratio_threshold", "log_prob_threshold", "no_speech_threshold",
                     "hallucination_silence_threshold", "max_initial_timestamp"):  # fmt: skip
            need(
                getattr(self, name) is None or _is_number(getattr(self, name)),
                name,
                "a number, or None",
            )
        need(
            self.max_initial_timestamp is None or self.max_initial_timestamp >= 0,
            "max_initial_timestamp",
            "0 or more",
        )
        for name in ("prompt_reset_on_temperature", "language_detection_threshold"):
            need(_is_number(getattr(self, name)), name, "a number")
        for name in ("condition_on_previous_text", "suppress_blank", "without_timestamps", "word_timestamps",
                     "multilingual", "vad_filter"):  # fmt: skip
            need(isinstance(getattr(self, name), bool), name, "True or False")
        for name in ("prefix", "hotwords"):
            need(
                getattr(self, name) is None or isinstance(getattr(self, name), str),
                name,
                "a text, or None",
            )
        prompt = self.initial_prompt
        are_tokens = is_sequence(prompt) and all(map(_is_whole, prompt))
        need(
            prompt is None or isinstance(prompt, str) or are_tokens,
            "initial_prompt",
            "a text, or tokens",
        )
        given = self.suppress_tokens
        need(
            given is None or (is_sequence(given) and all(map(_is_whole, given))),
            "suppress_tokens",
            "tokens, or None",
        )
        need(
            self.vad_parameters is None or is_mapping(self.vad_parameters),
            "vad_parameters",
            "numbers by name, or None",
        )
        need(self.clips is not None, "clip_timestamps", "seconds that rise, start and end in turn")
        size = self.batch_size
        need(
            size is None or (_is_whole(size) and 1 <= size <= 1024),
            "batch_size",
            "from 1 to 1024, or None",
        )
        VadOptions.of(self.vad_parameters)
        is_cut = self.vad_filter or size is not None
        if self.vad_parameters is not None and not is_cut:
            raise UsageError(
                "bad-arguments",
                "vad_parameters say where speech is, and nothing asks for it",
                help="vad_filter=True cuts out silence, batch_size=8 cuts at pauses",
            )
        if self.hallucination_silence_threshold is not None and size is not None:
            raise UsageError(
                "bad-arguments",
                "hallucination_silence_threshold looks for silence in a whole recording, and batch_size cuts it",
                help="vad_filter=True cuts out silence",
            )
        if self.hallucination_silence_threshold is not None and not self.word_timestamps:
            raise UsageError(
                "bad-arguments",
                "hallucination_silence_threshold needs the times of words",
                help="word_timestamps=True",
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TranscriptionOptions:
        """Options by name. Raises: UsageError (`bad-arguments`), for unknown ones too."""
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in known:
                raise UsageError(
                    "bad-arguments",
                    f"transcribe has no option {name}",
                    help=_NOT_HERE.get(name)
                    or did_you_mean(name, known)
                    or f"there are {', '.join(known)}",
                )
        return cls(**given)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Those to try; none if they are not numbers."""
        given: Any = self.temperature
        found = tuple(given) if is_sequence(given) else (given,)
        return found if all(_is_number(each) and each >= 0 for each in found) else ()

    @property
    def clips(self) -> tuple[float, ...] | None:
        """The seconds of `clip_timestamps`; None if they are not numbers that rise."""
        given: Any = self.clip_timestamps
        try:
            parts = (
                [each for each in given.split(",") if each.strip()]
                if isinstance(given, str)
                else [*given]
            )
            found = tuple(map(float, parts))
        except (TypeError, ValueError):
            return None
        is_rising = all(a <= b for a, b in pairwise(found))
        return found if is_rising and all(0 <= each < math.inf for each in found) else None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
