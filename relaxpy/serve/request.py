"""Requests: what an engine is asked to write, and what it tells of its work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from relaxpy.serve.pages import NONE
from relaxpy.serve.sampling import Sampling

Finish = Literal["stop", "length", "error"]
"""Why a text ends: at a token that ends texts, or where its grammar does; at its greatest length; by a mistake."""

NOT_A_NUMBER = "not-a-number"
"""The code of errors by NaNs and infinities."""


@dataclass(frozen=True)
class Request:
    """Texts to write after a prompt."""

    number: int
    """Names the request. No two that run at the same time have the same."""
    prompt: tuple[int, ...]
    max_tokens: int
    """The most tokens of a text; 0: only the prompt is computed."""
    sampling: Sampling = field(default_factory=Sampling)
    ends: frozenset[int] = frozenset()
    """Tokens that end a text."""
    n: int = 1
    """The number of texts (choices). They share the computation of the prompt."""
    top: int | None = None
    """With the logarithms of probabilities, and those of so many most probable tokens; None: without."""
    adapter: int = NONE
    salt: str = ""
    """Requests share the cache of a common beginning only if they have the same salt."""
    client: str = ""
    """Whom the request is from: clients share the engine fairly."""
    priority: int = 0
    """Requests of smaller numbers go first; others wait for them, for a bounded time."""
    grammar: str = ""
    """The grammar of the text, as `relaxpy.serve.grammar` writes it; "": any text."""
    scored: int | None = None
    """With the scores of the prompt's tokens, and so many most probable tokens at the place of each; None: without."""

    @property
    def most_tokens(self) -> int:
        """The length of a text of this request that is never cut short, prompt included."""
        return len(self.prompt) + self.max_tokens


class Score(NamedTuple):
    """How probable a token of a prompt is after those before it."""

    logprob: float
    rank: int
    """1 for the most probable token."""
    top: Mapping[int, float]
    """The logarithms of the probabilities of the most probable tokens at its place."""


@dataclass(frozen=True)
class Piece:
    """New tokens of a text of a request. The last piece has a reason; an error ends all texts of the request."""

    request: int
    choice: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    """The logarithm of each token's probability, if they were asked for."""
    top: tuple[Mapping[int, float], ...] = ()
    """For each token, the most probable ones at its place."""
    cached: int | None = None
    """With the first piece: the tokens of the prompt whose keys and values were in the cache."""
    finish: Finish | None = None
    error: Exception | None = None
    """The mistake."""
    scores: tuple[Score, ...] = ()
    """With the first piece of the first text, if they were asked for: of all tokens of the prompt but the first."""
