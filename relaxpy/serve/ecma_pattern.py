"""Regular expressions of ECMA-262, which JSON schemas have, as those of Rust, which llguidance reads.

The two differ in what `.`, `\\d`, `\\w` and `\\s` match, in escapes, in what is an operator inside of brackets in Rust
(`[`, `&&`, `--`, `~~`), and in groups. What Rust has and ECMA-262 has not, such as `(?i)`, is refused by name; so is
what no automaton can follow: looking around, word boundaries, references to groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from relaxpy.errors import UsageError

_SPACES = r"\t\n\x0b\x0c\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_SETS = {"d": "0-9", "w": "A-Za-z0-9_", "s": _SPACES}
"""What stands in brackets for a letter."""
_ANY = r"[^\n\r\x{2028}\x{2029}]"
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{0*([0-9a-fA-F]{1,6})\}")
_QUANTIFIER = re.compile(r"\{\d+(,\d*)?\}")
_GROUP = re.compile(r"\((?:\?:|\?<[A-Za-z_$][\w$]*>|(?!\?))")
_PROPERTY = re.compile(r"[pP]\{[\w=]+\}")


def rust_pattern(pattern: str) -> str:
    """The pattern as Rust writes it. Raises: UsageError (`grammar`)."""
    return "".join(_Reader(pattern).parts())


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.place = pattern, 0

    def parts(self) -> Iterator[str]:
        while (one := self._next()) is not None:
            if one == "\\":
                character, members = self._escape()
                yield f"[{members}]" if members else _literal(character)
            elif one == "[":
                yield self._brackets()
            elif one == "(":
                self._pass(_GROUP, "(…), (?:…) or (?<name>…)", back=1)
                yield "(?:"
            elif one == "{":
                found = _QUANTIFIER.match(self.pattern, self.place - 1)
                self.place = found.end() if found else self.place
                yield found[0] if found else r"\{"
            else:
                yield _ANY if one == "." else one if one in "*+?^$|)" else _literal(one)

    def _brackets(self) -> str:
        """A class, after its `[`."""
        is_negated = self.pattern.startswith("^", self.place)
        self.place += is_negated
        members: list[str] = []
        while (one := self._member()) is not None:
            first, part = one
            if first and self.pattern.startswith("-", self.place):
                self.place += 1
                other = self._member()
                if other is None or not other[0]:
                    members += [part, r"\-", *(other[1:] if other else ())]
                    if other is None:
                        break
                    continue
                if other[0] < first:
                    raise self._refused(
                        f"has the range {first}-{other[0]}, whose end is before its beginning"
                    )
                part = f"{part}-{other[1]}"
            members.append(part)
        if not members:
            return r"[\x{0}-\x{10ffff}]" if is_negated else r"[^\x{0}-\x{10ffff}]"
        return f"[{'^' if is_negated else ''}{''.join(members)}]"

    def _member(self) -> tuple[str, str] | None:
        """One of a class: its character, "" for a set, and what Rust writes. None at the end of the class."""
        one = self._next()
        if one is None:
            raise self._refused("has a [ without its ]")
        if one == "]":
            return None
        if one != "\\":
            return one, _literal(one)
        if self.pattern.startswith("b", self.place):
            self.place += 1
            return "\b", _literal("\b")
        character, members = self._escape()
        return character, f"[{members}]" if members else _literal(character)

    def _escape(self) -> tuple[str, str]:
        """What follows a backslash: a character, or what is in the brackets of a set of them."""
        one = self._next()
        if one is None:
            raise self._refused("ends with a backslash")
        if one.lower() in _SETS:
            return "", ("^" if one.isupper() else "") + _SETS[one.lower()]
        if one in _CONTROLS:
            return _CONTROLS[one], ""
        if one == "0" and not self.pattern[self.place : self.place + 1].isdigit():
            return "\0", ""
        if one == "c" and self.pattern[self.place : self.place + 1].isalpha():
            return chr(ord(self._next() or "") % 32), ""
        if one in "pP":
            return "", "\\" + self._pass(_PROPERTY, r"\p with a property in braces", back=1)
        if one in "xu":
            return self._number(), ""
        if one.isalnum():
            raise self._refused(
                rf"has \{one}: only characters and sets of them can be enforced, no word boundaries or references"
            )
        return one, ""

    def _number(self) -> str:
        """A character by its number: two halves (surrogates) are one."""
        digits = self._pass(_HEX, r"\x or \u with digits", back=1)
        number = int(digits.strip("xu{}"), 16)
        if 0xD800 <= number < 0xDC00 and self.pattern.startswith("\\u", self.place):
            low = _HEX.match(self.pattern, self.place + 1)
            half = int(low[2], 16) if low and low[2] else 0
            if low and 0xDC00 <= half < 0xE000:
                self.place = low.end()
                number = 0x10000 + ((number - 0xD800) << 10) + half - 0xDC00
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise self._refused(f"has the number {number:x}, which is no character's")
        return chr(number)

    def _next(self) -> str | None:
        one = self.pattern[self.place : self.place + 1]
        self.place += 1
        return one or None

    def _pass(self, form: re.Pattern[str], wanted: str, back: int = 0) -> str:
        found = form.match(self.pattern, self.place - back)
        if found is None:
            near = self.pattern[self.place - back : self.place + 5]
            raise self._refused(f"has {near!r}, where {wanted} is taken")
        self.place = found.end()
        return found[0]

    def _refused(self, why: str) -> UsageError:
        return UsageError("grammar", f"the pattern {self.pattern[:80]!r} {why}")


def _literal(character: str) -> str:
    """A character that is no operator, outside of brackets and inside."""
    if character.isalnum() or character in " _":
        return character
    return f"\\x{{{ord(character):x}}}"
