"""A text that is written: from the tokens of an engine's pieces to what is shown of it, and why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from relaxpy.llm.detokenizer import Detokenizer
from relaxpy.llm.loops import LoopDetector
from relaxpy.llm.stop_strings import StopStrings
from relaxpy.serve import request

Finish: TypeAlias = Literal["stop", "length", "repetition"]
"""Why a text ends: at a token or a string that ends it, at its greatest length, or since it repeats itself."""


class WrittenText:
    """A text of a request. What is shown does not depend on how its tokens came; a character is never cut in two."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: StopStrings,
        ends: frozenset[int],
        *,
        min_tokens: int = 0,
        loops: LoopDetector | None = None,
    ) -> None:
        """It ends before one of `stops`, but not in its first `min_tokens` tokens; at a token of `ends`, which is not
        shown; and as soon as `loops`, if given, finds that it repeats itself."""
        self.stops = stops
        self.finish: Finish | None = None
        self._detokenizer, self._ends, self._loops = detokenizer, ends, loops
        self._unstopped = min_tokens
        """In so many next tokens, stop strings end nothing."""

    def feed(self, tokens: Sequence[int], finish: request.Finish | None) -> tuple[str, int]:
        """The text that is certain with more tokens, and how many of them belong to it. `finish`: why the engine has
        ended it after them."""
        stops, shown = self.stops, ""
        ended: Finish | None = None if finish == "error" else finish
        count = 0
        for count, token in enumerate(tokens, 1):
            if token in self._ends:
                continue
            text = self._detokenizer.feed(token)
            shown += text if self._unstopped > 0 else stops.feed(text)
            self._unstopped -= 1
            is_loop = self._loops is not None and self._loops.feed(token, text)
            if stops.found is not None:
                self.finish = "stop"
                return shown, count
            if is_loop:
                ended = "repetition"
                break
        if ended is not None:
            shown += stops.feed(self._detokenizer.finish(cut=ended != "stop")) + stops.finish()
            self.finish = ended if stops.found is None else "stop"
        return shown, count
