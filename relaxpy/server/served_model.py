"""A model of a server: its tokenizer here, its engine in a process of its own, and texts that come from both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from relaxpy.errors import UsageError
from relaxpy.llm.chat_template import ChatTemplate
from relaxpy.llm.generation_config import recommended
from relaxpy.llm.pictures import Eyes
from relaxpy.llm.stop_strings import StopStrings
from relaxpy.llm.tokenizer import Tokenizer
from relaxpy.llm.written_text import Finish, WrittenText
from relaxpy.models.loaded import Scheme
from relaxpy.serve.client import EngineClient, Engines
from relaxpy.serve.engine_process import DECODER
from relaxpy.serve.pictures import PictureShape, picture_shape_of
from relaxpy.serve.request import Request, Score
from relaxpy.server.answer_parser import AnswerPart
from relaxpy.server.settings import ModelSettings
from relaxpy.version import __version__

_ALWAYS = 1 << 16
"""So many characters are tokenized in any case, which takes some hundredths of a second."""


@dataclass(frozen=True)
class TextRequest(Request):
    """Texts that a client asks for: what the engine is asked to write, and what is shown of it."""

    stop: tuple[str, ...] = ()
    shown: frozenset[int] = frozenset()
    """Special tokens that are part of the text, such as those around calls of tools."""
    begins: bool = False
    """The text is one of its own, not the continuation of the prompt's."""


@dataclass(frozen=True)
class Delta:
    """More of a text."""

    choice: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    top: tuple[Mapping[int, float], ...] = ()
    finish: Finish | Literal["tool_calls"] | None = None
    stop: str | None = None
    """The stop string that ended it."""
    scores: tuple[Score, ...] = ()
    """With the first part of the first text, if they were asked for: those of the prompt, without its first token."""
    parts: tuple[AnswerPart, ...] = ()
    """Of an answer in a chat: the text, taken apart."""


@dataclass
class AnswerUsage:
    """Numbers of an answer, complete when it is."""

    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the tokens that were written, those of parts with reasoning."""
    start: float = field(default_factory=time.perf_counter)
    first: float | None = None
    """Seconds until the first token."""
    last: float = 0.0
    """Seconds until the last one so far."""
    gaps: list[float] = field(default_factory=list[float])
    """Seconds between tokens."""

    def note(self, tokens: int) -> None:
        """Count tokens that came now."""
        now = time.perf_counter() - self.start
        if self.first is None:
            self.first = now
        else:
            self.gaps += [(now - self.last) / max(tokens, 1)] * tokens
        self.last = now
        self.completion_tokens += tokens

    @property
    def usage(self) -> dict[str, Any]:
        """As OpenAI writes it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }

    @property
    def timings(self) -> dict[str, float]:
        """Times in milliseconds, and tokens a second."""
        first, rest = self.first or 0.0, self.last - (self.first or 0.0)
        return {
            "prompt_ms": round(first * 1000, 2),
            "predicted_ms": round(rest * 1000, 2),
            "predicted_per_second": round((self.completion_tokens - 1) / rest, 2) if rest else 0.0,
        }


StartEngine = Callable[[str, Mapping[str, Any]], Awaitable[Engines]]
"""From the factory of an engine and its options to the engine, or to several."""


class ServedModel:
    """A model that answers."""

    def __init__(self, settings: ModelSettings, tokenizer: Tokenizer, client: Engines) -> None:
        """`start` makes one."""
        self.settings, self.tokenizer, self.client = settings, tokenizer, client
        self.name = settings.name
        self.created = int(time.time())
        self.context: int = client.facts["context"]
        self.vocab_size: int = client.facts["vocab_size"]
        self.fingerprint = f"relaxpy-{__version__}"
        self.defaults = recommended(Path(settings.place))
        self.adapters = {name: number for number, (name, _) in enumerate(settings.adapters)}
        longest = max(map(len, tokenizer.backend.get_vocab()), default=1)
        self.most_characters = max(self.context * longest, _ALWAYS)
        """The most characters that a prompt can have: more are more tokens than the context."""
        self._answer_ends: frozenset[int] | None = None

    @classmethod
    async def start(
        cls, settings: ModelSettings, start: StartEngine = EngineClient.start
    ) -> ServedModel:
        """Load a model; `start` is what starts its engine. Raises: UsageError like `relaxpy.llm.load`."""
        tokenizer = await asyncio.to_thread(
            Tokenizer.from_checkpoint, settings.place, settings.mmproj
        )
        if settings.chat_template is not None:
            tokenizer.templates = {"default": ChatTemplate(settings.chat_template)}
        # Errors name the model: where it lies is no client's business.
        tokenizer.place = Path(settings.name)
        tokenizer.templates = {
            name: replace(each, place=settings.name) for name, each in tokenizer.templates.items()
        }
        scheme = settings.scheme
        if settings.adapters and (scheme is None or not scheme.adapters):
            maps = ("query", "key", "value", "output", "gate", "up", "down")
            scheme = replace(scheme or Scheme(), adapters=maps)
        client = await start(
            DECODER,
            {
                **replace(settings, scheme=scheme).options(),
                "tokenizer": tokenizer.backend.to_str(),
                "ends": sorted(tokenizer.answer_ends()) if tokenizer.templates else sorted(tokenizer.end_tokens),
            },
        )  # fmt: skip
        return cls(settings, tokenizer, client)

    @property
    def names(self) -> list[str]:
        """The names that requests may use: its own, and those of its adapters."""
        return [self.name, *self.adapters]

    @property
    def sees(self) -> bool:
        """Whether messages may have pictures."""
        return self._picture_shape is not None

    @property
    def _picture_shape(self) -> PictureShape | None:
        return picture_shape_of(self.client.facts.get("pictures"))

    @cached_property
    def eyes(self) -> Eyes | None:
        """What reads pictures, if the model sees them."""
        shape = self._picture_shape
        own = self.settings
        return None if shape is None else Eyes.from_checkpoint(Path(own.place), shape, own.mmproj)

    def answer_ends(self) -> frozenset[int]:
        """The tokens that end an answer in a chat. It may take a while: for a thread."""
        if self._answer_ends is None:
            self._answer_ends = self.tokenizer.answer_ends()
        return self._answer_ends

    def room(self, prompt: Sequence[int], least: int = 1) -> int:
        """The tokens that may follow a prompt. Raises: UsageError: `bad-prompt`, `bad-length` if they are fewer than
        `least`."""
        if not prompt:
            raise UsageError("bad-prompt", "the prompt has no tokens")
        if len(prompt) > self.context - least:
            raise UsageError(
                "bad-length",
                f"the prompt has {len(prompt)} tokens, and the context {self.context}: no room is left for an answer",
            )
        return self.context - len(prompt)

    def check_size(self, characters: int) -> None:
        """Raises: UsageError (`bad-length`) for a prompt of so many characters that it is too long for the context in
        any case: it is refused before it is tokenized, which takes long."""
        if characters > self.most_characters:
            raise UsageError(
                "bad-length",
                f"the prompt has {characters} characters, and the context {self.context} tokens: no more than "
                f"{self.most_characters} characters fit",
            )

    async def write(
        self, order: TextRequest, tally: AnswerUsage, seconds: float | None = None
    ) -> AsyncGenerator[Delta]:
        """The texts of an order, as they are written. Raises: UsageError, `time-limit` after so many seconds."""
        texts = [
            WrittenText(
                self.tokenizer.detokenizer(shown=order.shown, begins=order.begins),
                StopStrings(order.stop),
                order.ends,
                min_tokens=order.sampling.min_tokens,
            )
            for _ in range(order.texts)
        ]
        async with aclosing(self.client.submit(order, seconds)) as pieces:
            async for piece in pieces:
                text = texts[piece.choice]
                if text.finish is not None:
                    continue  # a stop string has ended it, while the others go on
                if piece.cached is not None and not piece.choice:
                    tally.cached_tokens = piece.cached
                shown, count = text.feed(piece.tokens, piece.finish)
                tally.note(count)
                yield Delta(
                    piece.choice,
                    shown,
                    piece.tokens[:count],
                    piece.logprobs[:count],
                    piece.top[:count],
                    text.finish,
                    text.stops.found,
                    piece.scores,
                )
                if all(each.finish is not None for each in texts):
                    return

    async def close(self) -> None:
        """End the engine."""
        await self.client.close()
