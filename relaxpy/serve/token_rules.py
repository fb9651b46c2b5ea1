"""The options of sampling that depend on the text so far: which tokens may not come next, and what is added to the
logits of others.

They are logits processors of transformers, by the same names. Both results are computed anew for each token, on the
host: `sampling_arguments` makes the mask and the biases of a draw from them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from relaxpy.serve.sampling import Draw


def forbidden_tokens(draw: Draw) -> set[int]:
    """The tokens that the options of a draw rule out after its text."""
    options, text = draw.sampling, draw.tokens
    written = len(text) - draw.prompt
    found = {*options.suppress_tokens}
    if not written:
        found.update(options.begin_suppress_tokens)
    if written < options.min_tokens:
        found |= draw.ends
    for *before, last in options.bad_words_ids:
        if _ends_with(text, before) and (before or last not in draw.ends):
            found.add(last)
    if options.no_repeat_ngram_size:
        found.update(_followers(text, options.no_repeat_ngram_size - 1))
    return found


def forced_token(draw: Draw) -> int | None:
    """The token that has to come next, whatever the other options say; None: there is none."""
    written = len(draw.tokens) - draw.prompt
    return next((token for place, token in draw.sampling.forced_tokens if place == written), None)


def token_biases(draw: Draw) -> dict[int, float]:
    """What is added to logits: biases of tokens, and those of sequences of which all but the last token are there."""
    options = draw.sampling
    if not options.sequence_bias:
        return {**options.bias}
    found = defaultdict[int, float](float, options.bias)
    for (*before, last), by in options.sequence_bias:
        if _ends_with(draw.tokens, before):
            found[last] += by
    return found


def _ends_with(text: Sequence[int], end: Sequence[int]) -> bool:
    return len(end) <= len(text) and [*text[len(text) - len(end) :]] == [*end]


def _followers(text: Sequence[int], length: int) -> list[int]:
    """The tokens that follow where the last so many tokens were before."""
    count = len(text) - length
    if count <= 0:
        return []
    tokens = np.asarray(text)
    found = np.ones(count, bool)
    for place in range(length):
        found &= tokens[place : place + count] == tokens[count + place]
    return tokens[length:][found].tolist()
