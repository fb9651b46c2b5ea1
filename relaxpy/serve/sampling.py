"""The options by which the tokens of a request are sampled, and the arguments that they become."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypedDict

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.narrow import is_sequence
from relaxpy.serve.log_sum import log_sum
from relaxpy.serve.timestamp_rules import TimestampRules
from relaxpy.serve.token_rules import forbidden_tokens, forced_token, token_biases


@dataclass(frozen=True)
class Sampling:
    """Options of a request, by the names of transformers and OpenAI. Raises: UsageError (`sampling`)."""

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the most probable token."""
    top_k: int = 0
    """Only the so many most probable tokens; 0: all."""
    top_p: float = 1.0
    """Only the most probable tokens whose probabilities together reach it."""
    min_p: float = 0.0
    """Only tokens at least so probable, relative to the most probable one."""
    repetition_penalty: float = 1.0
    """Logits of tokens in the text so far are divided by it, negative ones multiplied."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that were generated."""
    frequency_penalty: float = 0.0
    """The same, for each time."""
    bias: Mapping[int, float] = field(default_factory=dict[int, float])
    """Token → what is added to its logit."""
    seed: int = 0
    min_tokens: int = 0
    """Until so many were generated, none that ends the text."""
    suppress_tokens: tuple[int, ...] = ()
    """Tokens that never come."""
    begin_suppress_tokens: tuple[int, ...] = ()
    """Tokens that do not come first."""
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that are never completed; a token that ends the text is none."""
    no_repeat_ngram_size: int = 0
    """So many tokens in a row come only once, the prompt included; 0: as often as they like."""
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    """Sequences of tokens, and what is added to the logit of the last one after the others."""
    forced_tokens: tuple[tuple[int, int], ...] = ()
    """Places after the prompt, 0 for the first token, and the token that comes there, with probability 1."""
    timestamps: TimestampRules | None = None
    """The rules of times in a text of speech (Whisper)."""

    def __post_init__(self) -> None:
        def need(fits: bool, name: str, expected: str) -> None:
            if not fits:
                raise UsageError(
                    "sampling", f"{name} must be {expected}, got {getattr(self, name)!r}"
                )

        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            need(_is_finite(getattr(self, name)), name, "a finite number")
        for name in ("top_k", "seed"):
            need(_is_integer(getattr(self, name)), name, "an integer")
        need(self.temperature >= 0, "temperature", "at least 0")
        need(0 <= self.top_k < 1 << 31, "top_k", "0, for all tokens, or a number of tokens")
        need(0 < self.top_p <= 1, "top_p", "above 0, at most 1")
        need(0 <= self.min_p <= 1, "min_p", "from 0 to 1")
        need(self.repetition_penalty > 0, "repetition_penalty", "above 0")
        for name in ("presence_penalty", "frequency_penalty"):
            need(_is_finite(getattr(self, name)), name, "a finite number")
        need(-(1 << 63) <= self.seed < 1 << 63, "seed", "an integer of 64 bits")
        is_bias = isinstance(self.bias, Mapping) and all(
            _is_token(token) and _is_bias(by) for token, by in self.bias.items()
        )
        need(is_bias, "bias", "numbers by token, finite or -infinity")
        for name in ("min_tokens", "no_repeat_ngram_size"):
            value = getattr(self, name)
            need(_is_integer(value) and 0 <= value < 1 << 31, name, "a number of tokens, or 0")
        for name in ("suppress_tokens", "begin_suppress_tokens"):
            need(_are_tokens(getattr(self, name)), name, "numbers of tokens")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        rules: Any = self.timestamps
        need(
            rules is None or isinstance(rules, TimestampRules), "timestamps", "rules of timestamps"
        )
        words: Any = self.bad_words_ids
        are_words = is_sequence(words) and all(_are_tokens(each) and each for each in words)
        need(are_words, "bad_words_ids", "sequences of at least one token")
        object.__setattr__(self, "bad_words_ids", tuple(tuple(each) for each in words))
        biases: Any = self.sequence_bias
        are_biases = is_sequence(biases) and all(
            is_sequence(each) and len(each) == 2
            and _are_tokens(each[0]) and each[0] and _is_bias(each[1])
            for each in biases
        )  # fmt: skip
        need(are_biases, "sequence_bias", "pairs of a sequence of tokens and a number")
        biases = tuple((tuple(tokens), float(by)) for tokens, by in biases)
        object.__setattr__(self, "sequence_bias", biases)
        forced: Any = self.forced_tokens
        are_forced = is_sequence(forced) and all(_are_tokens(p) and len(p) == 2 for p in forced)
        need(are_forced, "forced_tokens", "pairs of a place and a token")
        object.__setattr__(self, "forced_tokens", tuple((place, token) for place, token in forced))

    def check_vocabulary(self, vocab: int) -> None:
        """Raises: UsageError (`sampling`) for a bias of a token that a vocabulary of this size does not have."""
        biased = {
            "bias": [*self.bias],
            "sequence_bias": [t for s, _ in self.sequence_bias for t in s],
            "forced_tokens": [token for _, token in self.forced_tokens],
        }
        for name, tokens in biased.items():
            if wrong := [token for token in tokens if token >= vocab]:
                raise UsageError(
                    "sampling",
                    f"{name} names token {wrong[0]}, and the model has tokens 0 to {vocab - 1}",
                )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_token(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < (1 << 31) - 1


def _are_tokens(values: object) -> bool:
    return is_sequence(values) and all(map(_is_token, values))


def _is_bias(value: Any) -> bool:
    return _is_number(value) and value < math.inf


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampling` as options of a function; None is like not given."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    bias: Mapping[int, float] | None
    seed: int | None
    min_tokens: int | None
    suppress_tokens: Sequence[int] | None
    begin_suppress_tokens: Sequence[int] | None
    bad_words_ids: Sequence[Sequence[int]] | None
    no_repeat_ngram_size: int | None
    sequence_bias: Sequence[tuple[Sequence[int], float]] | None
    forced_tokens: Sequence[tuple[int, int]] | None
    timestamps: TimestampRules | None


@dataclass(frozen=True, eq=False)
class Draw:
    """A token to sample."""

    sampling: Sampling = Sampling()
    tokens: Sequence[int] = ()
    """The text so far. Its length is the position of the new token."""
    prompt: int = 0
    """The number of its first tokens that were given, not generated."""
    request: int = 0
    """Tells requests of equal seeds apart; requests with equal seeds and numbers draw equal numbers."""
    mask: np.ndarray | None = None
    """The words of a mask of the allowed tokens, int32, a bit a token from the lowest on; None: all are allowed."""
    ends: frozenset[int] = frozenset()
    """Tokens that end the text."""
    ruled: bool = False
    """Whether its log-probability is among the tokens that its rules allow."""


_FLOATS = [
    attrgetter(name)
    for name in (
        "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    )
]  # fmt: skip


def sampling_arguments(
    draws: Sequence[Draw], vocab: int, logits: Callable[[], np.ndarray] | None = None
) -> tuple[np.ndarray, ...]:
    """The arguments of `nn.sample` after the logits. `logits` gives those as numbers (draws, vocab), which rules of
    timestamps look at. Raises: UsageError (`sampling`) for a mask of another size."""
    options = [draw.sampling for draw in draws]
    biases = [token_biases(draw) for draw in draws]
    words = -(-vocab // 32)
    masks = np.full((len(draws), words), -1, np.int32)
    for row, draw in enumerate(draws):
        if draw.mask is not None:
            mask = np.asarray(draw.mask)
            if mask.shape != (words,) or mask.dtype.name not in ("int32", "uint32"):
                raise UsageError(
                    "sampling",
                    f"a mask of {vocab} tokens has {words} words of 32 bits, got {mask.dtype} {mask.shape}",
                )
            masks[row] = mask.view(np.int32)
        if forbidden := [token for token in forbidden_tokens(draw) if token < vocab]:
            place = np.array(forbidden, np.int64)
            bits = ~(np.uint32(1) << (place % 32).astype(np.uint32))
            np.bitwise_and.at(masks[row].view(np.uint32), place // 32, bits)
        if (rules := draw.sampling.timestamps) is not None and logits is not None:
            allowed = allowed_by(masks[row], vocab)
            rules.restrict(allowed, draw.tokens[draw.prompt :], logits()[row])
            packed = np.packbits(allowed, bitorder="little")
            masks[row].view(np.uint8)[: len(packed)] = packed
        if (forced := forced_token(draw)) is not None:
            masks[row] = 0
            masks[row].view(np.uint32)[forced // 32] = np.uint32(1) << np.uint32(forced % 32)

    penalised = [
        draw.tokens
        if (each.repetition_penalty, each.presence_penalty, each.frequency_penalty) != (1, 0, 0)
        else ()
        for draw, each in zip(draws, options, strict=True)
    ]
    temperature, *floats = np.array([[*map(get, options)] for get in _FLOATS], np.float32)
    top_k, *integers = np.array(
        [
            [each.top_k for each in options],
            [draw.prompt for draw in draws],
            [each.seed for each in options],
            [draw.request for draw in draws],
            [len(draw.tokens) for draw in draws],
        ],
        np.int64,
    )
    return (
        temperature,
        top_k,
        *floats,
        _padded([[*each] for each in biases], -1, "int32"),
        _padded([[*each.values()] for each in biases], 0, "float32"),
        masks,
        _padded(penalised, -1, "int32"),
        *integers,
    )


def allowed_by(mask: np.ndarray, vocab: int) -> np.ndarray:
    """The tokens (vocab,) that the words of a mask allow, as booleans."""
    return np.unpackbits(mask.view(np.uint8), count=vocab, bitorder="little").astype(bool)


def ruled_logprob(
    logits: Callable[[], np.ndarray], mask: np.ndarray, token: int, logprob: float
) -> float:
    """The log-probability of a token by the logits (vocab,) of those that a mask allows, given that among all."""
    if (mask == -1).all():
        return logprob
    found = logits()
    wide = found[allowed_by(mask, len(found))].astype(np.float64)
    return float(found[token] - log_sum(wide))


def no_token(logits: np.ndarray) -> UsageError:
    """Why no token was drawn from a row of logits, or one whose log-probability is NaN."""
    wrong = int(np.isnan(logits).sum())
    if wrong or not np.isfinite(logits.max(initial=-math.inf)):
        what = f"{wrong} of {logits.size} are NaN" if wrong else f"the largest is {logits.max()}"
        return UsageError(
            "not-a-number",
            f"the logits after this text are not numbers: {what}",
            help="the weights are damaged, or numbers overflow (float16): Scheme(check_numbers=True), or "
            "--check-numbers on the command line, names the first layer",
        )
    return UsageError(
        "sampling",
        "no token is possible after this text: the grammar, or an option of sampling, rules out each of them",
    )


def _padded(rows: Sequence[Sequence[float]], filler: float, dtype: str) -> np.ndarray:
    """Rows of different lengths as a matrix."""
    width = max(map(len, rows), default=0)
    if not width:
        return np.empty((len(rows), 0), dtype)
    out = np.full((len(rows), width), filler, dtype)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out
