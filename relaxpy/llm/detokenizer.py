"""Text from tokens that come one by one.

A character may be made of several tokens, and the text of a token may depend on those before it. A detokenizer gives
each part of the text when no later token can change it, so that its pieces joined are the decoded text of all tokens.

Byte-level vocabularies are decoded here: their tokens are bytes. Others are decoded by the package tokenizers, over a
window of the last tokens.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from relaxpy.checkpoints.tokenizer_file import BYTE_CHARACTERS
from relaxpy.narrow import is_list, is_mapping

if TYPE_CHECKING:
    from relaxpy.llm.tokenizer import Tokenizer

_WINDOW = 32
"""The number of tokens after which a window begins anew, with its last token."""
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""A token of one byte in vocabularies that fall back on bytes (SentencePiece)."""


class Detokenizer:
    """The text of a sequence of tokens, piece by piece, without the special tokens unless `special`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        special: bool = False,
        shown: Iterable[int] = (),
        begins: bool = True,
    ) -> None:
        """`shown` are special tokens that are part of the text even so. With `begins` the text is one of its own; else
        it continues another one, and its first word keeps the space before it."""
        self._tokenizer = tokenizer
        self._skipped = frozenset[int]() if special else tokenizer.special_tokens.difference(shown)
        kinds = decoder_kinds(tokenizer.backend)
        self._utf8 = (
            codecs.getincrementaldecoder("utf-8")("replace") if kinds == ["ByteLevel"] else None
        )
        self._falls_back = "ByteFallback" in kinds
        before = None if begins else tokenizer.plain_token
        self._window: list[int] = [] if before is None else [before]
        self._given = self._decoded()
        """The text of the window that was given."""
        self._open = b""
        """The bytes of the last tokens, if they are bytes: a later byte may show that they are no characters."""

    def feed(self, token: int) -> str:
        """The text that is certain after another token; "" if a character is not complete."""
        text = self._tokenizer.token_text(token)
        if text is None or token in self._skipped:
            return ""
        if self._utf8 is not None:
            return self._utf8.decode(byte_level_bytes(text))
        self._window.append(token)
        byte = fallback_byte(text) if self._falls_back else None
        if byte is not None:
            self._open += byte
            return ""
        self._open = b""
        piece = self._rest()
        if len(self._window) > _WINDOW:
            self._window = [token]
            self._given = self._decoded()
        return piece

    def finish(self, cut: bool = False) -> str:
        """The rest of the text. A character that is not complete is one or more U+FFFD; with `cut`, for a text that was
        cut at some length, it is left out."""
        if self._utf8 is not None:
            rest = self._utf8.decode(b"", final=True)
            return "" if cut else rest
        if cut and self._open:
            whole = codecs.getincrementaldecoder("utf-8")("replace").decode(self._open)
            lead = self._decoded(self._window[: len(self._window) - len(self._open)])
            self._window, self._open = [], b""
            return lead[len(self._given) :] + whole
        return self._rest()

    def _rest(self) -> str:
        """The text of the window that was not given."""
        text = self._decoded()
        piece = text[len(self._given) :]
        self._given = text
        return piece

    def _decoded(self, tokens: list[int] | None = None) -> str:
        return self._tokenizer.decode(self._window if tokens is None else tokens, special=True)


def decoder_kinds(backend: Any) -> list[str]:
    """The types of the decoders of a tokenizer, in order."""
    if backend.decoder is None:
        return []
    return list(_kinds(json.loads(backend.decoder.__getstate__())))


def _kinds(decoder: Any) -> list[str]:
    if not is_mapping(decoder):
        return []
    inner = decoder.get("decoders")
    if is_list(inner):
        return [kind for each in inner for kind in _kinds(each)]
    return [str(decoder.get("type"))]


_BYTES = {char: byte for byte, char in enumerate(BYTE_CHARACTERS)}


def fallback_byte(text: str) -> bytes | None:
    """The byte that a token stands for in vocabularies that fall back on bytes; None for other tokens."""
    found = _BYTE.fullmatch(text)
    return None if found is None else bytes.fromhex(found[1])


def byte_level_bytes(text: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary. A token with other characters, which was added, is its text."""
    try:
        return bytes([_BYTES[char] for char in text])
    except KeyError:
        return text.encode("utf-8", "replace")
