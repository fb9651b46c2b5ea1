"""The tokens of models whose frames are tokens (CTC), as pieces of text in which a space begins a word.

vocabulary = read_ctc_vocabulary(folder, blank=0, tokens=32)
vocabulary.pieces[4]                         " ", where vocab.json has "|": 4
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaxpy.checkpoints.tokenizer_file import TOKENIZER_FILE
from relaxpy.errors import UsageError
from relaxpy.llm.checkpoint_files import optional_json
from relaxpy.llm.tokenizer import TOKENIZER_CONFIG_FILE, Tokenizer
from relaxpy.narrow import is_mapping

VOCABULARY_FILE = "vocab.json"
_ADDED_FILE = "added_tokens.json"
_WORD = "\u2581"
"""What begins a word in vocabularies of SentencePiece."""


@dataclass(frozen=True)
class CtcVocabulary:
    """The pieces of text of tokens, and the token of the blank."""

    pieces: tuple[str, ...]
    blank: int
    lower: bool = False
    """Whether letters are made small."""

    def text(self, pieces: Sequence[str]) -> str:
        """The word that pieces are."""
        text = "".join(pieces).strip()
        return text.lower() if self.lower else text


def read_ctc_vocabulary(folder: Path, blank: int, tokens: int) -> CtcVocabulary:
    """The vocabulary of a checkpoint whose model has so many tokens: `vocab.json` of characters, or `tokenizer.json`.
    Raises: UsageError (`bad-checkpoint`)."""
    if not (folder / VOCABULARY_FILE).is_file() and (folder / TOKENIZER_FILE).is_file():
        tokenizer = Tokenizer.from_checkpoint(folder)
        texts = [tokenizer.token_text(number) for number in range(tokens)]
        return CtcVocabulary(tuple((text or "").replace(_WORD, " ") for text in texts), blank)
    path = folder / VOCABULARY_FILE
    found: dict[str, Any] = optional_json(path)
    if not found:
        raise UsageError(
            "bad-checkpoint",
            f"{folder} has neither a {VOCABULARY_FILE} nor a {TOKENIZER_FILE}: the texts of tokens are unknown",
        )
    found |= optional_json(folder / _ADDED_FILE)
    options = optional_json(folder / TOKENIZER_CONFIG_FILE)
    if any(isinstance(number, dict) for number in found.values()):
        raise UsageError(
            "bad-checkpoint",
            f"{path} has vocabularies of several languages ({', '.join([*found][:3])}, …), which is not supported",
        )
    for text, number in found.items():
        if type(number) is not int or not 0 <= number < tokens:
            raise UsageError(
                "bad-checkpoint",
                f"{path}: {text!r} is token {number!r}, and the model has tokens from 0 to {tokens - 1}",
                help=f"check that {VOCABULARY_FILE} belongs to this model",
            )
    pad = _name(options, "pad_token", "<pad>")
    if found.get(pad, blank) != blank:
        raise UsageError(
            "bad-checkpoint",
            f"{path}: {pad!r}, the blank, is token {found[pad]}, and the model's pad_token_id is {blank}",
        )
    delimiter, unknown = _name(options, "word_delimiter_token", "|"), _name(options, "unk_token", "<unk>")  # fmt: skip
    texts = [unknown] * tokens
    for text, number in found.items():
        texts[number] = " " if text == delimiter else text
    return CtcVocabulary(tuple(texts), blank, options.get("do_lower_case") is True)


def _name(options: dict[str, Any], name: str, default: str) -> str:
    """A special token, which is a text or an object with one."""
    given: Any = options.get(name)
    text: Any = given.get("content") if is_mapping(given) else given
    return text if isinstance(text, str) else default
