"""Blocks of an answer: the parts of one kind that follow each other, as the routes of Anthropic and of responses have
them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from relaxpy.server.answer_parser import AnswerPart, Call


@dataclass
class Block:
    """A block as far as it is written."""

    number: int
    kind: Literal["text", "reasoning", "call"]
    id: str
    text: str = ""
    call: Call | None = None


Step = tuple[Literal["start", "more", "end"], Block, str]
"""An event of a block, and the text that is new."""


class Blocks:
    """The blocks of one answer, while it is written."""

    def __init__(self, name: Iterator[str]) -> None:
        """`name` gives the ids of blocks."""
        self.all: list[Block] = []
        self._name = name
        self._open: Block | None = None

    def feed(self, parts: Iterable[AnswerPart]) -> Iterator[Step]:
        """The steps that more parts are."""
        for part in parts:
            block = self._open
            if part.kind == "arguments":
                assert block is not None  # the call is before its arguments
                block.text += part.text
                yield "more", block, part.text
                continue
            if block is None or block.kind != part.kind or part.kind == "call":
                yield from self.finish()
                block = self._open = Block(
                    len(self.all), part.kind, next(self._name), call=part.call
                )
                self.all.append(block)
                yield "start", block, ""
            text = part.call.arguments if part.call is not None else part.text
            block.text += text
            if text:
                yield "more", block, text

    def finish(self) -> Iterator[Step]:
        """The end of the last block."""
        if self._open is not None:
            yield "end", self._open, ""
        self._open = None
