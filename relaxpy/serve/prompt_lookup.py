"""Drafts by looking into the text itself (prompt lookup).

Texts repeat themselves: code that is edited, quotations, names. The tokens after the last place where the text had its
newest three tokens before are a guess of what comes next. A step computes the guess along with the next token, and
keeps what sampling draws anyway: the text is the same as without, in fewer steps.
"""

from __future__ import annotations

from collections.abc import Sequence

GRAM = 3
"""So many tokens must repeat."""
MOST = 8
"""The longest draft."""


class PromptLookup:
    """Makes drafts for one text. Their length follows how many of them were right."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], int] = {}
        """Where each sequence of `GRAM` tokens ended last, but for the newest one."""
        self._seen = GRAM - 1
        self._length = 2

    def draft(self, text: Sequence[int], most: int) -> list[int]:
        """A guess of at most `most` tokens after a text, which has only grown since the last call."""
        for end in range(self._seen + 1, len(text)):
            self._places[tuple(text[end - GRAM : end])] = end
        self._seen = max(self._seen, len(text) - 1)
        if most < 1 or len(text) <= GRAM:
            return []
        place = self._places.get(tuple(text[-GRAM:]))
        if place is None:
            return []
        return list(text[place : place + min(most, self._length)])

    def note(self, drafted: int, right: int) -> None:
        """Learn from a draft: so many of its tokens were right."""
        if drafted:
            self._length = min(2 * drafted, MOST) if right == drafted else max(right, 1)
