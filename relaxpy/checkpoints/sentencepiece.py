"""Models of SentencePiece (`source.spm`, `sentencepiece.bpe.model`), as tokenizers of the package tokenizers.

A file is a message of protocol buffers: pieces with scores and types, the kind of model, and how text is normalised
(sentencepiece_model.proto). It is read here, so that no package is needed. Unigram and BPE are supported.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaxpy.checkpoints.tokenizer_file import one_line, tokenizers_package
from relaxpy.errors import UsageError
from relaxpy.files import open_regular

MARK = "\u2581"
"""Stands for a space."""
_MOST_BYTES = 64 << 20
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
"""The types of pieces."""
_UNIGRAM, _BPE = 1, 2


@dataclass(frozen=True, eq=False)
class SentencePieceModel:
    """The content of a file."""

    path: Path
    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]
    kind: int = _UNIGRAM
    charsmap: bytes = b""
    """A table of replacements that tokenizers reads."""
    is_prefixed: bool = True
    """Whether a text begins with a space."""
    is_stripped: bool = True
    """Whether spaces around a text go, and those one after the other are one."""

    def backend(self) -> Any:
        """A `tokenizers.Tokenizer`, whose numbers are those of the file. Raises: UsageError (`bad-checkpoint`)."""
        package = tokenizers_package()
        unknown = self.types.index(_UNKNOWN) if _UNKNOWN in self.types else None
        has_bytes = _BYTE in self.types
        model: dict[str, Any]
        if self.kind == _UNIGRAM:
            model = {
                "type": "Unigram", "unk_id": unknown, "byte_fallback": has_bytes,
                "vocab": [[text, score] for text, score in zip(self.pieces, self.scores, strict=True)],
            }  # fmt: skip
        elif self.kind == _BPE:
            model = {
                "type": "BPE", "dropout": None, "unk_token": None if unknown is None else self.pieces[unknown],
                "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                "byte_fallback": has_bytes, "ignore_merges": False,
                "vocab": {text: number for number, text in enumerate(self.pieces)}, "merges": self._merges(),
            }  # fmt: skip
        else:
            raise self.bad(f"it is a model of kind {self.kind}; unigram (1) and BPE (2) are supported")  # fmt: skip
        steps: list[dict[str, Any]] = []
        if self.charsmap:
            table = base64.b64encode(self.charsmap).decode()
            steps.append({"type": "Precompiled", "precompiled_charsmap": table})
        if self.is_stripped:
            steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
            steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
        spaced = {
            "type": "Metaspace", "replacement": MARK, "split": self.kind == _UNIGRAM,
            "prepend_scheme": "always" if self.is_prefixed else "never",
        }  # fmt: skip
        fields: dict[str, Any] = {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "post_processor": None,
            "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
            "pre_tokenizer": spaced, "decoder": spaced, "model": model,
        }  # fmt: skip
        try:
            return package.Tokenizer.from_str(json.dumps(fields))
        except BaseException as error:  # its panics are no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
                raise
            raise self.bad(one_line(error)) from None

    def _merges(self) -> list[list[str]]:
        """All pairs of pieces that make a piece, the best first."""
        numbers = {text: number for number, text in enumerate(self.pieces)}
        found: list[tuple[float, int, int, str, str]] = []
        for text, score, kind in zip(self.pieces, self.scores, self.types, strict=True):
            if kind not in (_NORMAL, _USER, _UNUSED):
                continue
            for at in range(1, len(text)):
                left, right = text[:at], text[at:]
                if left in numbers and right in numbers:
                    found.append((-score, numbers[left], numbers[right], left, right))
        return [[left, right] for *_, left, right in sorted(found)]

    def bad(self, reason: str) -> UsageError:
        return _bad(self.path, reason)


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """The model in a file. Raises: UsageError (`bad-checkpoint`)."""
    try:
        with open_regular(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _bad(path, error.strerror or str(error)) from None
    if len(data) > _MOST_BYTES:
        raise _bad(path, f"it has more than {_MOST_BYTES} bytes")
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    options: dict[str, Any] = {}
    try:
        for number, value in _fields(data):
            if number == 1:
                own = dict(_fields(_bytes(value)))
                pieces.append(_bytes(own.get(1, b"")).decode())
                scores.append(struct.unpack("<f", _bytes(own.get(2, bytes(4))))[0])
                types.append(int(own.get(3, _NORMAL)))
            elif number == 2:
                options["kind"] = int(dict(_fields(_bytes(value))).get(3, _UNIGRAM))
            elif number == 3:
                own = dict(_fields(_bytes(value)))
                options["charsmap"] = _bytes(own.get(2, b""))
                options["is_prefixed"] = bool(own.get(3, True))
                options["is_stripped"] = bool(own.get(4, True))
    except (ValueError, TypeError, struct.error):
        raise _bad(path, "it is damaged") from None
    if not pieces:
        raise _bad(path, "it has no pieces")
    if len({*pieces}) != len(pieces) or any(score != score for score in scores):
        raise _bad(path, "it has a piece twice, or a score that is no number")
    return SentencePieceModel(path, tuple(pieces), tuple(scores), tuple(types), **options)


def _bad(path: Path, reason: str) -> UsageError:
    return UsageError(
        "bad-checkpoint", f"{path} cannot be read as a model of SentencePiece: {reason}"
    )


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise TypeError
    return value


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a message: numbers, and bytes of others. Raises: ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError
        if length > len(data) - at:
            raise ValueError
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
    raise ValueError
