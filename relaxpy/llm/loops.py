"""Texts that repeat themselves without end, into which small models fall, and others at temperature 0."""

from __future__ import annotations

LONGEST = 64
"""The longest part in tokens whose repetition is looked for."""
TOKENS = 200
"""The number of tokens that are repetition, or blank, before a text counts as a loop."""
TIMES = 5
"""How often a part must be there one after the other."""


class LoopDetector:
    """Finds out when the last tokens are one part again and again, or nothing but white space.

    A part has up to `LONGEST` tokens. At least `TOKENS` tokens must be repetition, more than tables, rulers and lists
    that somebody wants.
    """

    def __init__(self) -> None:
        self._last: list[int] = []
        """The last tokens, the newest first."""
        self._equal = [0] * LONGEST
        """For each distance less 1, how many of the last tokens are equal to the one so far before."""
        self._blank = 0
        """How many of the last tokens show nothing."""

    def feed(self, token: int, text: str) -> bool:
        """Another token and the text that it completes: is it a loop now?"""
        last, equal = self._last, self._equal
        self._blank = 0 if text.strip() else self._blank + 1
        found = self._blank >= TOKENS
        for i, before in enumerate(last):
            equal[i] = equal[i] + 1 if before == token else 0
            found = found or equal[i] >= max(TOKENS, (TIMES - 1) * (i + 1))
        last.insert(0, token)
        del last[LONGEST:]
        return found
