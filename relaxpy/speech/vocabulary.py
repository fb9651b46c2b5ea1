"""The tokens of a Whisper: those that control its texts, and the words that tokens are parts of.

    vocabulary = Vocabulary(tokenizer, is_multilingual=True, positions=1500)
    vocabulary.start("en", "transcribe")          <|startoftranscript|><|en|><|transcribe|>

Its tokens are those of text, then `<|endoftext|>` and others that control, then those of times, 0.02 s apart.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from functools import cached_property

from relaxpy.errors import UsageError
from relaxpy.llm.tokenizer import Tokenizer
from relaxpy.speech.languages import LANGUAGES, UNSPACED, language_code

STEP = 0.02
"""Seconds between the tokens of times, which are those between positions of the encoder's output."""
_SYMBOLS = [
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *"<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪".split(),
]
_NOTES = "♩♪♫♬♭♮♯"
"""Symbols of music, of which several tokens are parts: the first one is enough."""


class Vocabulary:
    """The tokens of a checkpoint."""

    def __init__(self, tokenizer: Tokenizer, *, is_multilingual: bool, positions: int) -> None:
        """`positions` are those of a window. Raises: UsageError (`bad-checkpoint`) if it is not Whisper's."""
        self.tokenizer, self.is_multilingual = tokenizer, is_multilingual
        self.positions = positions
        self.end = self._number("endoftext")
        """It ends texts. Tokens below it are text."""
        self.first = self._number("startoftranscript")
        self.translate, self.transcribe = self._number("translate"), self._number("transcribe")
        self.previous = self._number("startofprev")
        """It begins the text before a window."""
        self.without_times = self._number("notimestamps")
        self.time = self.without_times + 1
        """The token of time 0. Older tokenizers have no names for those of times."""
        self.no_speech = self.without_times - 1
        """Its probability, in place of a language, is that of nobody speaking."""
        self.languages = {
            code: number
            for code in LANGUAGES
            if (number := tokenizer.number(f"<|{code}|>")) is not None
            and self.first < number < self.time
        }
        """Code → token."""
        if is_multilingual and not self.languages:
            raise UsageError(
                "bad-checkpoint", f"{tokenizer.place} has no tokens of languages, such as <|en|>"
            )

    def _number(self, name: str) -> int:
        found = self.tokenizer.number(f"<|{name}|>")
        if found is None:
            raise UsageError(
                "bad-checkpoint",
                f"{self.tokenizer.place} has no token <|{name}|>: it is no tokenizer of Whisper",
            )
        return found

    def language(self, given: str) -> str:
        """The code of a language of this model. Raises: UsageError (`bad-arguments`)."""
        code = language_code(given)
        if not self.is_multilingual and code != "en":
            raise UsageError(
                "bad-arguments",
                f"the model hears English only, and the language is {given!r}",
                help="take a model without .en in its name",
            )
        if self.is_multilingual and code not in self.languages:
            raise UsageError(
                "bad-arguments",
                f"the model does not know the language {given!r}",
                help=f"it knows {', '.join(self.languages)}",
            )
        return code

    def start(self, language: str, task: str) -> tuple[int, ...]:
        """The tokens that begin a text. Raises: UsageError (`bad-arguments`) for a translation by a model of
        English."""
        if not self.is_multilingual:
            if task != "transcribe":
                raise UsageError(
                    "bad-arguments",
                    "the model hears English only: there is nothing to translate",
                    help="take a model without .en in its name",
                )
            return (self.first,)
        number = self.transcribe if task == "transcribe" else self.translate
        return (self.first, self.languages[language], number)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, none of which controls."""
        return self.tokenizer.encode_literally(text)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of those tokens that are text."""
        return self.tokenizer.decode([token for token in tokens if token < self.end])

    @cached_property
    def unspoken(self) -> frozenset[int]:
        """Tokens of symbols that nobody speaks, such as brackets and notes: with them a model says who speaks, or that
        there is music. Hyphens and quotes are among them at the beginning of a word."""
        found = {tokens[0] for text in (" -", " '") if (tokens := self._exactly(text))}
        for symbol in (*_SYMBOLS, *_NOTES):
            for text in (symbol, f" {symbol}"):
                tokens = self._exactly(text)
                if tokens and (len(tokens) == 1 or symbol in _NOTES):
                    found.add(tokens[0])
        return frozenset(found)

    def _exactly(self, text: str) -> list[int]:
        """The tokens of a text; none if the vocabulary cannot write it."""
        tokens = self.encode(text)
        return tokens if self.tokenizer.decode(tokens) == text else []

    @property
    def controls(self) -> frozenset[int]:
        """Tokens that no text has in its middle."""
        before_previous = self.previous - 1  # <|startoflm|>
        return frozenset(
            (
                self.first,
                self.translate,
                self.transcribe,
                before_previous,
                self.previous,
                self.no_speech,
            )
        )

    def suppressed(self, given: Sequence[int] | None) -> tuple[int, ...]:
        """Tokens that never come, by the option `suppress_tokens`."""
        given = given or ()
        asked = {token for token in given if token >= 0}
        if -1 in given:
            asked |= self.unspoken
        return tuple(sorted(asked | self.controls))

    # Words

    def words(self, tokens: Sequence[int], language: str) -> list[tuple[str, tuple[int, ...]]]:
        """The words of a text, each with its tokens: parts between spaces, with punctuation by itself, or characters in
        a language without spaces. A control token is a word of its own."""
        parts = self._characters(tokens)
        if language in UNSPACED:
            return parts
        found: list[tuple[str, tuple[int, ...]]] = []
        for text, numbers in parts:
            begins = (
                numbers[0] >= self.end or text.startswith(" ") or text.strip() in string.punctuation
            )
            if begins or not found:
                found.append((text, numbers))
            else:
                found[-1] = found[-1][0] + text, found[-1][1] + numbers
        return found

    def _characters(self, tokens: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
        """The shortest parts that are whole characters."""
        whole = self.tokenizer.decode(tokens, special=True)
        found: list[tuple[str, tuple[int, ...]]] = []
        at, waiting = 0, list[int]()
        for token in tokens:
            waiting.append(token)
            text = self.tokenizer.decode(waiting, special=True)
            place = text.find("\ufffd")
            # A replacement that the whole text has, too, stands for bytes that are no character.
            if place < 0 or whole[at + place : at + place + 1] == "\ufffd":
                found.append((text, tuple(waiting)))
                at += len(text)
                waiting = []
        return found
