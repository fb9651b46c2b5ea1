"""The options by which the tokens of a request are sampled, and the arguments that they become."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaxpy.errors import UsageError


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
            _is_integer(token) and 0 <= token < (1 << 31) - 1 and _is_number(by) and by < math.inf
            for token, by in self.bias.items()
        )
        need(is_bias, "bias", "numbers by token, finite or -infinity")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


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


def sampling_arguments(draws: Sequence[Draw], vocab: int) -> tuple[np.ndarray, ...]:
    """The arguments of `nn.sample` after the logits. Raises: UsageError (`sampling`) for a mask of another size."""
    options = [draw.sampling for draw in draws]
    words = -(-vocab // 32)
    masks = np.full((len(draws), words), -1, np.int32)
    for row, draw in enumerate(draws):
        if draw.mask is None:
            continue
        mask = np.asarray(draw.mask)
        if mask.shape != (words,) or mask.dtype.name not in ("int32", "uint32"):
            raise UsageError(
                "sampling",
                f"a mask of {vocab} tokens has {words} words of 32 bits, got {mask.dtype} {mask.shape}",
            )
        masks[row] = mask.view(np.int32)

    def floats(name: str) -> np.ndarray:
        return np.array([getattr(each, name) for each in options], np.float32)

    def integers(values: Sequence[int]) -> np.ndarray:
        return np.array(values, np.int64)

    penalised = [
        draw.tokens
        if (each.repetition_penalty, each.presence_penalty, each.frequency_penalty) != (1, 0, 0)
        else ()
        for draw, each in zip(draws, options, strict=True)
    ]
    return (
        floats("temperature"),
        integers([each.top_k for each in options]),
        floats("top_p"),
        floats("min_p"),
        floats("repetition_penalty"),
        floats("presence_penalty"),
        floats("frequency_penalty"),
        _padded([list(each.bias) for each in options], -1, "int32"),
        _padded([list(each.bias.values()) for each in options], 0, "float32"),
        masks,
        _padded(penalised, -1, "int32"),
        integers([draw.prompt for draw in draws]),
        integers([each.seed for each in options]),
        integers([draw.request for draw in draws]),
        integers([len(draw.tokens) for draw in draws]),
    )


def _padded(rows: Sequence[Sequence[float]], filler: float, dtype: str) -> np.ndarray:
    """Rows of different lengths as a matrix."""
    out = np.full((len(rows), max(map(len, rows), default=0)), filler, dtype)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out
