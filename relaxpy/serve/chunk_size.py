"""How many tokens of prompts a step takes.

A step computes a token for each text that is being written, and a part (chunk) of the prompts that wait. The larger the
chunk, the fewer steps a prompt takes, and the longer all others wait for their next token. The size is chosen by a
target for the time between tokens, from the times of the last steps.
"""

from __future__ import annotations

LEAST = 16
"""The smallest chunk: prompts go on, however slow the steps are."""
_WEIGHT = 0.25
"""Of the last step in the running averages."""


class ChunkSize:
    """Chooses sizes of chunks from measured steps."""

    def __init__(self, target: float = 0.1, most: int = 512) -> None:
        """`target` is the time between tokens in seconds, `most` the largest chunk."""
        self.target, self.most = target, most
        self._decoding = 0.0
        """The average time of a step without prompts."""
        self._token: float | None = None
        """The average time that a token of a prompt takes."""

    def tokens(self, others_wait: bool) -> int:
        """The size of the next chunk. Without others who wait for tokens it is the largest."""
        if not others_wait:
            return self.most
        if self._token is None:
            return min(self.most, 4 * LEAST)
        size = int((self.target - self._decoding) / max(self._token, 1e-9))
        return max(LEAST, min(self.most, size // 8 * 8))

    def observe(self, prompt_tokens: int, seconds: float) -> None:
        """Note the time of a step."""
        if not prompt_tokens:
            self._decoding += _WEIGHT * (seconds - self._decoding)
            return
        each = max(seconds - self._decoding, 0.0) / prompt_tokens
        self._token = each if self._token is None else self._token + _WEIGHT * (each - self._token)
