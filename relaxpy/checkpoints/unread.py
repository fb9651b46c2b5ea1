"""Fields of a checkpoint's files that are not followed: a warning names them, so that nothing is dropped in silence."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

_ABSENT: tuple[Any, ...] = None, [], {}
_NOTHING: tuple[Any, ...] = *_ABSENT, False, 0, 0.0, "", "none"
"""Values of fields that ask for nothing, whatever their names are."""


class UnreadWarning(UserWarning):
    """A field of a checkpoint that may change its numbers or its texts, and is not followed."""


def warn_unread(path: Path, fields: Iterable[str]) -> None:
    """Warn of fields of a file, if there are any."""
    if named := ", ".join(fields):
        warnings.warn(UnreadWarning(f"{path}: not followed: {named}"), stacklevel=2)


def unknown_fields(
    fields: Mapping[str, Any], known: Collection[str], neutral: Mapping[str, Any] | None = None
) -> list[str]:
    """The fields with their values that are neither known nor ask for nothing. `neutral` has further fields, each with
    the value at which it changes nothing: others of them do, such as false where true is usual."""
    neutral = neutral or {}

    def changes(name: str, value: Any) -> bool:
        if name in neutral:
            return value != neutral[name] and value not in _ABSENT
        return not any(type(value) is type(each) and value == each for each in _NOTHING)

    return [
        f"{name} = {str(value)[:100]}"
        for name, value in fields.items()
        if name not in known and changes(name, value)
    ]
