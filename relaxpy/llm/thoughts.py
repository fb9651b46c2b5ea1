"""Thoughts: the text that a model writes before its answer, apart from the answer.

    thoughts = Thoughts.of(model.tokenizer, pieces.prompt)
    for piece in pieces:
        for is_thought, text in thoughts.feed(piece):
            ...

Two ways of writing are known: between `<think>` and `</think>` at the beginning (Qwen3, DeepSeek-R1), and in channels
(gpt-oss):

    <|channel|>analysis<|message|>They greet.<|end|><|start|>assistant<|channel|>final<|message|>Hello!
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from relaxpy.llm.tokenizer import Tokenizer

_THINK, _THINK_END = "<think>", "</think>"
_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"
_CONTROL = (_CHANNEL, _MESSAGE, "<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>")
_ANSWER = "final"
"""The channel for the user."""


class Thoughts:
    """Takes a text in pieces, and gives its parts: is it a thought, and the text. A mark may begin in one piece and
    end in another. White space between thoughts and the answer is left out."""

    def __init__(
        self, channels: bool = False, begun: bool = False, hidden: Collection[str] = ()
    ) -> None:
        """Thoughts are in channels, or between `<think>` and `</think>`; `begun`: the prompt ended in a thought.
        `hidden` are further control tokens, which are left out."""
        own = _CONTROL if channels else (_THINK, _THINK_END)
        self._marks = tuple(dict.fromkeys((*own, *(text for text in hidden if text))))
        self._state: Literal["thought", "answer", "header"] = "thought" if begun else "answer"
        self._held = ""
        self._header = ""
        self._is_fresh = begun
        """No text of this part was given yet."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, prompt: Sequence[int]) -> Self | None:
        """For the answer to a prompt of a chat; None for a model that does not think in one of these ways. Where
        `tokenizer.thinks_in_channels`, the pieces must have their special tokens."""
        if tokenizer.thinks_in_channels:
            special = [tokenizer.added[number] for number in tokenizer.special_tokens]
            return cls(channels=True, hidden=special)
        if tokenizer.number(_THINK_END) is None:
            return None
        tail = tokenizer.decode(prompt[-16:], special=True)
        return cls(begun=tail.rfind(_THINK) > tail.rfind(_THINK_END))

    def feed(self, piece: str) -> list[tuple[bool, str]]:
        """The parts that are certain with another piece."""
        text = self._held + piece
        parts = list(self._parts(text))
        return [part for part in parts if part[1]]

    def finish(self) -> list[tuple[bool, str]]:
        """The rest of a text that ends here."""
        rest, self._held = self._held, ""
        text = self._given(rest)
        return [(self._state == "thought", text)] if text else []

    def _parts(self, text: str) -> Iterator[tuple[bool, str]]:
        while True:
            found = [(at, -len(mark), mark) for mark in self._marks if (at := text.find(mark)) >= 0]
            if not found:
                break
            at, _, mark = min(found)
            yield self._state == "thought", self._given(text[:at])
            text = text[at:]
            if mark in self._marks:
                self._meet(mark)
                text = text[len(mark) :]
        held = max((overlap(text, mark) for mark in self._marks), default=0)
        self._held = text[len(text) - held :]
        yield self._state == "thought", self._given(text[: len(text) - held])

    def _given(self, text: str) -> str:
        """The part of a text that is shown in this state."""
        if self._state == "header":
            self._header += text
            return ""
        if self._is_fresh:
            text = text.lstrip()
            self._is_fresh = not text
        if self._state == "answer" and text.strip():
            # Thoughts are before an answer: one that speaks of <think> is text.
            self._marks = tuple(each for each in self._marks if each not in (_THINK, _THINK_END))
        return text

    def _meet(self, mark: str) -> None:
        before = self._state
        if mark == _THINK:
            self._state = "thought"
        elif mark == _THINK_END:
            self._state = "answer"
        elif mark == _MESSAGE:
            channel = self._header.partition(_CHANNEL)[2].strip() or _ANSWER
            self._state = "answer" if channel.startswith(_ANSWER) else "thought"
        elif mark in _CONTROL:
            # The role of a message, and the name of its channel, come until the message.
            self._header = (
                _CHANNEL if mark == _CHANNEL else self._header if before == "header" else ""
            )
            self._state = "header"
        else:
            return
        self._is_fresh = True


def overlap(text: str, mark: str) -> int:
    """The length of the longest end of a text that the mark, longer than it, begins with."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
