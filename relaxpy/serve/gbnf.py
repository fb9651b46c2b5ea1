"""GBNF, the notation of grammars of llama.cpp: its escapes, which llguidance's converter does not read."""

from __future__ import annotations

import re

from relaxpy.errors import UsageError

_TOKEN = re.compile(
    r"""(?P<comment>\#[^\r\n]*) | "(?P<text>(?:[^"\\]|\\.)*)" | \[(?P<members>(?:[^\]\\]|\\.)*)\]""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|([&~])|(-)(?=-)", re.DOTALL
)


def without_escapes(text: str) -> str:
    r"""A grammar whose characters by number (`\xNN`, `\uNNNN`, `\UNNNNNNNN`) are written as themselves. In brackets
    `&&`, `~~` and `--` are characters, and operators for Rust. Raises: UsageError (`grammar`)."""
    return _TOKEN.sub(_token, text)


def _token(found: re.Match[str]) -> str:
    if found["text"] is not None:
        return _text(found["text"])
    if found["members"] is not None:
        return f"[{_ESCAPE.sub(_member, found['members'])}]"
    return found[0]


def _text(inner: str) -> str:
    """A text. A control character that has no letter is a class of its own."""
    parts: list[str] = [""]
    place = 0
    for found in _ESCAPE.finditer(inner):
        parts[-1] += inner[place : found.start()]
        place = found.end()
        character = _numbered(found)
        if character is None:
            parts[-1] += found[0]
        elif character.isprintable():
            parts[-1] += f"\\{character}" if character in '"\\' else character
        else:
            parts += [
                f"[\\x{ord(character):02x}]" if ord(character) < 256 else f"[{character}]",
                "",
            ]
    parts[-1] += inner[place:]
    texts = [
        part if n % 2 else f'"{part}"' for n, part in enumerate(parts) if part or len(parts) == 1
    ]
    return texts[0] if len(texts) == 1 else f"({' '.join(texts)})"


def _member(found: re.Match[str]) -> str:
    character = _numbered(found) or found[5] or found[6]
    if character is None:
        return found[0]
    plain = character.isalnum() or ord(character) > 127
    return character if plain else f"\\x{ord(character):02x}"


def _numbered(found: re.Match[str]) -> str | None:
    digits = found[1] or found[2] or found[3]
    if digits is None:
        return None
    number = int(digits, 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise UsageError("grammar", f"the escape {found[0]} is no character")
    return chr(number)
