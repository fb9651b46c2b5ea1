"""Python's operators on Python values, as used by scripts while they are parsed, with limits.

Parsing untrusted text must neither exhaust memory nor run for hours: `9 ** 9 ** 9`, `"a" * 10 ** 12`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

LARGEST_BITS = 1 << 12
"""Maximum bits of an integer in a script: Python itself does not print integers of 4300 digits."""
LONGEST = 1 << 24
"""Maximum length of a string, tuple or list in a script."""
LONGEST_FIELD = 1000
"""Maximum width to which text is padded."""


def unreadable(value: Any) -> str | None:
    """The reason why a literal of a script is refused, or None."""
    if isinstance(value, int) and value.bit_length() > LARGEST_BITS:
        return (
            f"an integer of {value.bit_length()} bits is too large: it has at most {LARGEST_BITS}"
        )
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError:
        return "a string contains an unpaired surrogate"
    return None


def is_too_large(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Would this function of `operator` produce an integer or a sequence beyond the limits?"""
    match function, args:
        # typeshed does not annotate the operands of these two.
        case (operator.pow | operator.lshift, (int() as left, int() as right)) if right > 0:  # pyright: ignore[reportUnknownMemberType]
            bits = right if function is operator.lshift else left.bit_length() * right
            return bits > LARGEST_BITS
        case operator.mul, (int() as left, int() as right):
            return left.bit_length() + right.bit_length() > LARGEST_BITS
        case operator.mul, ((int() as times, sized) | (sized, int() as times)):
            return isinstance(sized, (str, bytes, tuple, list)) and len(sized) * times > LONGEST
        case (f, (_, str() as spec)) if f is format:
            return any(int(width) > LONGEST_FIELD for width in re.findall(r"\d{1,9}", spec))
        case _:
            return False
