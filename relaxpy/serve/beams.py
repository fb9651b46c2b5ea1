"""Beam search: several texts of a request go on together, and the most probable whole ones are kept.

The search is that of transformers (`GenerationMixin._beam_search`), to the token: from each beam's log-probabilities,
after the rules of sampling, the best continuations of all beams are taken; those that end go to the finished ones by
their score, the sum of log-probabilities divided by length ** length_penalty, and the others are the next beams. Here
are the numbers of one request; its texts, which share pages as forks do, are the scheduler's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.serve.sampling import Draw
from relaxpy.serve.token_rules import forbidden_tokens, forced_token, token_biases

_F = np.float32


@dataclass(frozen=True)
class Beams:
    """Options of a search, by transformers' names. Raises: UsageError (`sampling`)."""

    num_beams: int
    length_penalty: float = 1.0
    """Scores are divided by the number of tokens to this power: above 0 longer texts are preferred, below 0 shorter
    ones."""
    early_stopping: bool | Literal["never"] = False
    """True: the search ends with as many finished texts as beams. False: it also ends when no beam, as it is, is better
    than the worst finished text. "never": when none can become better."""
    num_return_sequences: int = 1
    """The number of texts that are given, the best one first."""

    def __post_init__(self) -> None:
        def need(fits: bool, name: str, expected: str) -> None:
            if not fits:
                raise UsageError(
                    "sampling", f"{name} must be {expected}, got {getattr(self, name)!r}"
                )

        whole = [type(n) is int for n in (self.num_beams, self.num_return_sequences)]
        need(whole[0] and 1 <= self.num_beams <= 1 << 10, "num_beams", "from 1 to 1024")
        need(
            whole[1] and 1 <= self.num_return_sequences <= self.num_beams,
            "num_return_sequences", "from 1 to the number of beams",
        )  # fmt: skip
        is_number = type(self.length_penalty) in (int, float) and math.isfinite(self.length_penalty)
        need(is_number, "length_penalty", "a finite number")
        need(
            self.early_stopping in (True, False, "never"), "early_stopping", "true, false or never"
        )


@dataclass(frozen=True)
class Beam:
    """A text of a search."""

    tokens: tuple[int, ...] = ()
    """Those after the prompt."""
    logprobs: tuple[float, ...] = ()
    score: float = 0.0
    """The sum of log-probabilities; of a finished text, divided by its length's power."""
    is_ended: bool = False
    """Whether its last token ends texts."""


class BeamSearch:
    """The search of one request."""

    def __init__(self, beams: Beams, max_tokens: int, ends: frozenset[int]) -> None:
        self.options, self.max_tokens, self.ends = beams, max_tokens, ends
        self.running = [Beam()]
        """The beams, the best one first: at most so many as there are to be."""
        self.finished: list[Beam] = []
        """The best finished texts, the best one first."""
        self.is_over = False

    def advance(
        self, scores: np.ndarray, logprob_of: Callable[[int, int], float]
    ) -> list[tuple[int, int]]:
        """Go on by a token. `scores` (beams, vocabulary) float32 are the log-probabilities of each beam's next tokens,
        after all rules; `logprob_of` gives that of a token after a beam which is told. Returns for each next beam the
        number of the one that it continues, and its token; nothing if the search is over."""
        options, count = self.options, len(self.running[0].tokens) + 1
        vocab = scores.shape[1]
        together = scores + np.array([each.score for each in self.running], _F)[:, None]
        found: list[tuple[int, int, float]] = []
        for place in _largest(together.reshape(-1), max(2, 1 + len(self.ends)) * options.num_beams):
            parent, token = divmod(int(place), vocab)
            found.append((parent, token, float(together[parent, token])))
        is_last = count >= self.max_tokens
        penalty = _F(float(count) ** options.length_penalty)
        is_full = len(self.finished) == options.num_beams and options.early_stopping is True
        chosen: list[tuple[int, int, float]] = []
        ended: list[Beam] = []
        for number, (parent, token, score) in enumerate(found):
            if not is_last and token not in self.ends:
                if len(chosen) < options.num_beams:
                    chosen.append((parent, token, score))
            elif number < options.num_beams and not is_full:
                made = self._grown(parent, token, float(_F(score) / penalty), logprob_of)
                ended.append(made)
        # of equal scores those that were there come first
        self.finished = sorted([*self.finished, *ended], key=lambda each: -each.score)
        del self.finished[options.num_beams :]
        self.running = [
            self._grown(parent, token, score, logprob_of) for parent, token, score in chosen
        ]
        self.is_over = not chosen or not self._goes_on(count)
        return [] if self.is_over else [(parent, token) for parent, token, _ in chosen]

    @property
    def best(self) -> list[Beam]:
        """The texts that are given, when the search is over."""
        return self.finished[: self.options.num_return_sequences]

    def _grown(
        self, parent: int, token: int, score: float, logprob_of: Callable[[int, int], float]
    ) -> Beam:
        old = self.running[parent]
        logprobs = (*old.logprobs, logprob_of(parent, token))
        return Beam((*old.tokens, token), logprobs, score, token in self.ends)

    def _goes_on(self, count: int) -> bool:
        """Can the search find a better text?"""
        options = self.options
        if len(self.finished) < options.num_beams:
            return True
        if options.early_stopping is True:
            return False
        is_far = options.early_stopping == "never" and options.length_penalty > 0
        length = self.max_tokens if is_far else count
        possible = _F(self.running[0].score) / _F(float(length) ** options.length_penalty)
        return bool(possible > _F(self.finished[-1].score))


def beam_scores(logits: np.ndarray, draw: Draw) -> np.ndarray:
    """The log-probabilities (vocabulary,) float32 of the next token of a beam by its logits, after the rules of its
    draw: as transformers has it, log-probabilities first. What is ruled out has minus infinity."""
    if (forced := forced_token(draw)) is not None:
        found = np.full(len(logits), -np.inf, _F)
        found[forced] = 0
        return found
    wide = logits.astype(_F)
    wide = wide - wide.max()
    scores = wide - np.log(np.exp(wide).sum(dtype=_F))
    options = draw.sampling
    if options.repetition_penalty != 1 and len(draw.tokens):
        seen = np.unique(np.asarray(draw.tokens, np.int64))
        own = scores[seen]
        by = _F(options.repetition_penalty)
        scores[seen] = np.where(own < 0, own * by, own / by)
    if options.presence_penalty or options.frequency_penalty:
        seen, times = np.unique(
            np.asarray(draw.tokens[draw.prompt :], np.int64), return_counts=True
        )
        scores[seen] -= (options.presence_penalty + options.frequency_penalty * times).astype(_F)
    for token, by in token_biases(draw).items():
        scores[token] += _F(by)
    allowed = np.ones(len(scores), bool)
    allowed[[token for token in forbidden_tokens(draw) if token < len(scores)]] = False
    if options.timestamps is not None:
        options.timestamps.restrict(allowed, draw.tokens[draw.prompt :], scores)
    scores[~allowed] = -np.inf
    return scores


def _largest(scores: np.ndarray, count: int) -> Sequence[int]:
    """The places of the greatest scores, the greatest first, of equal ones the first; none of minus infinity."""
    count = min(count, len(scores))
    bound = np.partition(scores, -count)[-count]
    found = np.flatnonzero(scores >= bound if bound > -np.inf else scores > -np.inf)
    return found[np.argsort(-scores[found], kind="stable")][:count].tolist()
