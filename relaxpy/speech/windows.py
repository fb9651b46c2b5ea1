"""The text of a window: the prompt, the retries at other temperatures, and the segments that its times make."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from relaxpy.serve.timestamp_rules import TimestampRules
from relaxpy.speech.options import TranscriptionOptions
from relaxpy.speech.recogniser import Recogniser, WindowRequest, WindowText
from relaxpy.speech.vocabulary import STEP, Vocabulary


@dataclass(frozen=True)
class HeardWindow:
    """The text of a window, and how good it is."""

    tokens: tuple[int, ...]
    """With times, and with the prefix that was given."""
    text: str
    mean_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float
    logprobs: tuple[float | None, ...] = ()
    """Of the tokens; None for those of the prefix."""


@dataclass(frozen=True)
class Slice:
    """A segment of a window, with times in seconds of the window."""

    start: float
    end: float
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Prompt:
    """The tokens before the text of a window."""

    tokens: tuple[int, ...]
    start: int
    """The place of `<|startoftranscript|>`."""
    begun: tuple[int, ...] = ()
    """Those at the end that are the beginning of the text: a prefix."""


def window_prompt(
    vocabulary: Vocabulary,
    options: TranscriptionOptions,
    positions: int,
    language: str,
    before: Sequence[int],
    prefix: str | None,
) -> Prompt:
    """The prompt of a window: `hotwords` and the text before it, the language and the task, and a prefix. Each part has
    at most about half of the positions of the decoder; of the text before it is the end that counts."""
    half = positions // 2 - 1
    context: list[int] = []
    if options.hotwords and not prefix:
        context += vocabulary.encode(" " + options.hotwords.strip())[:half]
    room = half - len(context)
    context += before[max(0, len(before) - room) :] if room else []
    tokens = [vocabulary.previous, *context] if context else []
    start = len(tokens)
    tokens += vocabulary.start(language, options.task)
    if options.without_timestamps:
        tokens.append(vocabulary.without_times)
    begun: list[int] = []
    if prefix:
        begun = vocabulary.encode(" " + prefix.strip())[: positions // 4]
        if not options.without_timestamps:
            begun = [vocabulary.time, *begun]
    return Prompt((*tokens, *begun), start, tuple(begun))


def hear(
    recogniser: Recogniser,
    vocabulary: Vocabulary,
    options: TranscriptionOptions,
    windows: Sequence[tuple[np.ndarray, Prompt]],
    draw: Callable[[], int],
) -> list[HeardWindow]:
    """The texts of windows, each by its features and prompt, which are written together. Those that fail a threshold
    are written again, at the next temperature; `draw` gives seeds."""
    asked = [_request(recogniser, vocabulary, options, prompt) for _, prompt in windows]
    found: dict[int, HeardWindow] = {}
    left = [*range(len(windows))]
    for temperature in options.temperatures:
        drawn = [
            (windows[k][0], replace(asked[k], temperature=temperature, seed=draw())) for k in left
        ]
        for k, text in zip(left, recogniser.write(drawn), strict=True):
            found[k] = _heard(vocabulary, text, windows[k][1], temperature)
        left = [k for k in left if _fails(found[k], options)]
        if not left:
            break
    return [found[k] for k in range(len(windows))]


def _request(
    recogniser: Recogniser, vocabulary: Vocabulary, options: TranscriptionOptions, prompt: Prompt
) -> WindowRequest:
    rules = None
    if not options.without_timestamps:
        most = options.max_initial_timestamp
        rules = TimestampRules(
            vocabulary.time, vocabulary.without_times, vocabulary.end,
            None if not most else round(most / STEP), prompt.begun,
        )  # fmt: skip
    begin = (
        (*vocabulary.encode(" "), vocabulary.end)
        if options.suppress_blank and not prompt.begun
        else ()
    )
    room = recogniser.positions - len(prompt.tokens) + 1  # the last token is not read
    return WindowRequest(
        prompt.tokens,
        max(1, min(options.max_new_tokens or recogniser.positions // 2, room)),
        vocabulary.end,
        beam_size=options.beam_size,
        best_of=options.best_of,
        patience=options.patience,
        length_penalty=options.length_penalty,
        repetition_penalty=options.repetition_penalty,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
        suppress=vocabulary.suppressed(options.suppress_tokens),
        begin_suppress=begin,
        rules=rules,
        probe=(prompt.start, vocabulary.no_speech),
    )


def _heard(
    vocabulary: Vocabulary, written: WindowText, prompt: Prompt, temperature: float
) -> HeardWindow:
    tokens = (*prompt.begun, *written.tokens)
    text = vocabulary.decode(tokens).strip()
    ratio = compression_ratio(text)
    logprobs = (*(None for _ in prompt.begun), *written.logprobs)
    return HeardWindow(
        tokens, text, written.mean_logprob, written.probe, ratio, temperature, logprobs
    )


def compression_ratio(text: str) -> float:
    """Bytes of a text to those after compression."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def _fails(heard: HeardWindow, options: TranscriptionOptions) -> bool:
    most, least = options.compression_ratio_threshold, options.log_prob_threshold
    is_improbable = least is not None and heard.mean_logprob < least
    if is_improbable and _is_unspoken(heard, options):
        return False  # it is silence, and no other text is better
    return is_improbable or (most is not None and heard.compression_ratio > most)


def _is_unspoken(heard: HeardWindow, options: TranscriptionOptions) -> bool:
    limit = options.no_speech_threshold
    return limit is not None and heard.no_speech_prob > limit


def is_silence(heard: HeardWindow, options: TranscriptionOptions) -> bool:
    """Does nobody speak in the window? A text that is probable counts more than the probability of no speech."""
    least = options.log_prob_threshold
    is_probable = least is not None and heard.mean_logprob > least
    return _is_unspoken(heard, options) and not is_probable


def slices(
    tokens: Sequence[int], first: int, seconds: float
) -> tuple[list[Slice], float | None, bool]:
    """The segments of the tokens of a window of so many seconds, where `first` is the token of time 0; then the seconds
    after which the next window begins (None: after this one); then whether the text ends with the end of a segment, and
    so after it there is no speech."""
    is_time = [token >= first for token in tokens]
    ends_alone = is_time[-2:] == [False, True]
    cuts = [k for k in range(1, len(tokens)) if is_time[k - 1] and is_time[k]]
    if not cuts:
        times = [token - first for token in tokens if token >= first]
        end = times[-1] * STEP if times and times[-1] else seconds
        return [Slice(0.0, end, tuple(tokens))], None, ends_alone
    if ends_alone:
        cuts.append(len(tokens))
    found: list[Slice] = []
    for begin, end in zip([0, *cuts], cuts):
        part = tuple(tokens[begin:end])
        found.append(Slice(max(0, part[0] - first) * STEP, (part[-1] - first) * STEP, part))
    return found, None if ends_alone else (tokens[cuts[-1] - 1] - first) * STEP, ends_alone
