"""The rows of a step: after which of its tokens logits are needed, and what for.

A row is for the next token of a text, or for its next token after each draft, or for the score of a token of a prompt,
or for a probe. Rows of a search with beams, of scores and of probes are looked at on the host; others are drawn from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.serve.log_sum import log_sum
from relaxpy.serve.pages import Batch
from relaxpy.serve.request import Score
from relaxpy.serve.sampling import Draw, Sampling, no_token
from relaxpy.serve.scheduler import Chunk, Text


class Matcher(Protocol):
    """Follows a text through a grammar (`relaxpy.serve.grammar`)."""

    def mask(self) -> np.ndarray:
        """The tokens that may come next, a bit a token."""
        ...

    def accept(self, token: int) -> None:
        """Go on by a token. Raises: UsageError (`grammar`)."""
        ...

    def back(self, count: int) -> None:
        """Go back by so many tokens."""
        ...

    def right(self, tokens: Sequence[int]) -> int:
        """How many of these tokens the grammar allows."""
        ...

    def forced(self) -> list[int]:
        """Tokens that must come next."""
        ...

    def copy(self) -> Matcher:
        """Another one at the same place."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing may come."""
        ...


PLAIN = Draw(Sampling(temperature=0.0))
"""For rows whose token is not needed."""


class StepRows:
    """The rows of a step."""

    def __init__(
        self, parts: Sequence[Chunk], batch: Batch, matchers: Mapping[Text, Matcher]
    ) -> None:
        self.rows: list[int] = []
        """For each, the token of the batch."""
        self.draws: list[Draw] = []
        self.first: dict[Text, int] = {}
        """The first row of each text."""
        self.wrong: dict[Text, Exception] = {}
        """The texts that cannot go on."""
        lasts = batch.rows.tolist()
        for last, part in zip(lasts, parts, strict=True):
            self.first[part.text] = len(self.rows)
            if part.is_last and part.text.beams is not None:
                self.draws.append(PLAIN)
                self.rows.append(last)
            elif part.is_last and part.text.request.max_tokens:
                self.draws += self._draws(part, matchers.get(part.text))
                first = last - len(part.drafts)
                is_one = part.text.is_forked
                self.rows += range(first, last + 1) if is_one else [last] * part.text.places
        drawn = len(self.rows)
        self._scored = [*_scored(batch, lasts, parts)]
        self._probed = [*_probed(batch, lasts, parts)]
        self.rows += [row for *_, row in (*self._scored, *self._probed)]
        self.draws += [PLAIN] * (len(self.rows) - drawn)
        self._first_scored = drawn

    @property
    def has_answers(self) -> bool:
        """Whether there are scores and probes."""
        return bool(self._scored or self._probed)

    def answer(self, logits: np.ndarray) -> None:
        """Note the scores and the probes of prompts by the logits (rows, vocabulary)."""
        scored = logits[self._first_scored :]
        for (text, place, _), row in zip(self._scored, scored, strict=False):
            request = text.request
            found = score_of(row, request.prompt[place + 1], request.scored or 0)
            if np.isnan(found.logprob):
                self.wrong[text] = no_token(row)
            text.scores.append(found)
        for (text, place, _), row in zip(self._probed, scored[len(self._scored) :], strict=True):
            wide = row.astype(np.float64)
            total = log_sum(wide)
            for number, (at, token) in enumerate(text.request.probes):
                if at == place:
                    text.probes[number] = float(wide[token] - total)

    def _draws(self, part: Chunk, matcher: Matcher | None) -> list[Draw]:
        """The draws of a text: the next token, or those at each draft, or the first one of each text of a request."""
        text, request = part.text, part.text.request
        count = 1 + len(part.drafts)
        masks: list[np.ndarray | None] = [None] * count
        if matcher is not None:
            try:
                for place, draft in enumerate((*part.drafts, None)):
                    masks[place] = matcher.mask()
                    if draft is not None:
                        matcher.accept(draft)
                matcher.back(len(part.drafts))
            except UsageError as error:
                self.wrong[text] = error

        def draw(tokens: Sequence[int], choice: int, mask: np.ndarray | None) -> Draw:
            prompt, ends = len(request.prompt), request.ends
            return Draw(request.sampling, tokens, prompt, choice, mask, ends, request.ruled)

        if not text.is_forked:
            return [draw(text.tokens, choice, masks[0]) for choice in range(text.places)]
        found = [draw(text.tokens, text.choice, masks[0])]
        for place in range(1, count):
            found.append(draw([*text.tokens, *part.drafts[:place]], text.choice, masks[place]))
        return found


def _scored(
    batch: Batch, lasts: Sequence[int], parts: Sequence[Chunk]
) -> Iterator[tuple[Text, int, int]]:
    """The places of prompts whose next token a step scores: the text, the place, and its row of the batch."""
    for last, part in zip(lasts, parts, strict=True):
        text = part.text
        if not text.is_scoring:
            continue
        for row in range(last - part.count + 1, last + 1):
            place = int(batch.positions[row])
            if len(text.scores) <= place < len(text.request.prompt) - 1:
                yield text, place, row


def _probed(
    batch: Batch, lasts: Sequence[int], parts: Sequence[Chunk]
) -> Iterator[tuple[Text, int, int]]:
    """The places of prompts whose logits probes ask for, in the same way."""
    for last, part in zip(lasts, parts, strict=True):
        probes = part.text.request.probes
        if not probes or not part.text.is_probing:
            continue
        places = {place for place, _ in probes}
        end = last - len(part.drafts) + 1
        for row in range(end - part.count, end):
            if (place := int(batch.positions[row])) in places:
                yield part.text, place, row


def score_of(logits: np.ndarray, token: int, top: int) -> Score:
    """The score of a token by the logits (vocabulary) at its place."""
    wide = logits.astype(np.float64)
    logprob = float(wide[token] - log_sum(wide))
    rank = 1 + int(np.count_nonzero(wide > wide[token]))
    return Score(logprob, rank, most_probable(wide, top))


def most_probable(logits: np.ndarray, count: int) -> dict[int, float]:
    """The log-probabilities of the most probable tokens, the most probable first; of equal ones the lower number."""
    count = min(count, len(logits))
    if not count:
        return {}
    bound = np.partition(logits, -count)[-count]
    found = np.flatnonzero(logits >= bound)
    found = found[np.argsort(-logits[found], kind="stable")][:count]
    total = log_sum(logits)
    return {int(token): float(logits[token] - total) for token in found}
