"""Stop strings, found in a text that comes piece by piece.

A stop string may begin in one piece and end in another, so the end of the text is held back while it may still become
one. Each character costs one step of the automaton of Knuth, Morris and Pratt for each stop string, whatever their
lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.narrow import is_sequence


class StopStrings:
    """Ends a text before the first of several strings that is complete in it.

    The result does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Raises: UsageError (`bad-prompt`) for anything but strings with at least one character."""
        given: Any = [stops] if isinstance(stops, str) else stops
        for stop in given if is_sequence(given) else [given]:
            if not isinstance(stop, str) or not stop:
                raise UsageError(
                    "bad-prompt",
                    f"a stop string has at least one character, got {stop!r}",
                    help='stop="\\n", or several: stop=["\\n", "###"]',
                )
        self.stops: tuple[str, ...] = tuple(dict.fromkeys(given))
        self.found: str | None = None
        """The stop string that ended the text."""
        self._borders = [_borders(stop) for stop in self.stops]
        self._matched = [0] * len(self.stops)
        self._held = ""

    def feed(self, piece: str) -> str:
        """The text that is certain after another piece: what cannot belong to a stop string. Nothing after one."""
        if self.found is not None:
            return ""
        if not self.stops:
            return piece
        text = self._held + piece
        for end, char in enumerate(piece, len(self._held) + 1):
            self._advance(char)
            complete = [s for s, m in zip(self.stops, self._matched, strict=True) if m == len(s)]
            if complete:
                self.found = max(complete, key=len)
                self._held = ""
                return text[: end - len(self.found)]
        held = max(self._matched)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """The rest of a text that ends here."""
        rest, self._held = self._held, ""
        return rest

    def _advance(self, char: str) -> None:
        """The longest beginning of each stop string that the text ends with, after one more character."""
        for i, stop in enumerate(self.stops):
            matched = self._matched[i]
            while matched and stop[matched] != char:
                matched = self._borders[i][matched - 1]
            self._matched[i] = matched + (stop[matched] == char)


def _borders(word: str) -> list[int]:
    """For each beginning of a word, the length of its longest proper beginning that it also ends with."""
    found = [0] * len(word)
    length = 0
    for i in range(1, len(word)):
        while length and word[i] != word[length]:
            length = found[length - 1]
        length += word[i] == word[length]
        found[i] = length
    return found
