"""Requests: what an engine is asked to write, and what it tells of its work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Literal, NamedTuple

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.serve.beams import Beams
from relaxpy.serve.pages import NONE
from relaxpy.serve.pictures import Placed
from relaxpy.serve.sampling import Sampling

Finish = Literal["stop", "length", "error"]
"""Why a text ends: at a token that ends texts, or where its grammar does; at its greatest length; by a mistake."""

NOT_A_NUMBER = "not-a-number"
"""The code of errors by NaNs and infinities."""


class Features:
    """What an encoder reads: float32 (mels, frames) of sound, or int64 (tokens,) of a text. Equal ones are encoded
    once, whoever asks: they are told apart by a digest of their bytes. The array is not to be changed afterwards."""

    def __init__(self, values: np.ndarray) -> None:
        """Raises: UsageError (`bad-prompt`) for another rank or dtype, and for numbers that are not finite."""
        dtype = {1: np.int64, 2: np.float32}.get(np.ndim(values))
        if dtype is None or np.asarray(values).dtype.kind not in (
            "iu" if dtype is np.int64 else "f"
        ):
            raise UsageError(
                "bad-prompt",
                "an encoder reads numbers (mels, frames), or integers (tokens,), got "
                f"{np.asarray(values).dtype} {np.shape(values)}",
            )
        self.values = np.ascontiguousarray(values, dtype)
        if not np.isfinite(self.values).all():
            raise UsageError("bad-prompt", "the features of sound are not all finite")

    @cached_property
    def digest(self) -> str:
        """Of all that the encoder's output depends on."""
        found = sha256(repr(self.values.shape).encode())
        found.update(self.values.data)
        return found.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Features) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<features {self.values.dtype} {self.values.shape}>"


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
    ruled: bool = False
    """Whether the log-probabilities of tokens are among those that the rules of its sampling allow (suppressed tokens,
    a grammar, timestamps), at a temperature of 1; else they are among all."""
    features: Features | None = None
    """What the encoder reads, of a model that has one."""
    probes: tuple[tuple[int, int], ...] = ()
    """Places of the prompt, and a token for each: with the first piece come the log-probabilities of these tokens after
    the prompt up to and with the place, without rules of sampling."""

    pictures: tuple[Placed, ...] = ()
    """Those that tokens of the prompt stand for, one after the other."""
    beams: Beams | None = None
    """The text is searched with beams, of which so many run in the place of `n` texts, and comes when the search is
    over; temperature, `top_k`, `top_p`, `min_p` and the seed are of no use then. None: it is drawn."""

    @property
    def places(self) -> int:
        """The texts that run at once."""
        return self.n if self.beams is None else self.beams.num_beams

    @property
    def texts(self) -> int:
        """The texts that come of it."""
        return self.n if self.beams is None else self.beams.num_return_sequences

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
    probes: tuple[float, ...] = ()
    """With the first piece of the first text: the answers to `Request.probes`."""
    score: float | None = None
    """Of a text that was searched with beams."""
