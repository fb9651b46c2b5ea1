"""Fields of a checkpoint's files that are not followed: a warning names them, so that nothing is dropped in silence."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path


class UnreadWarning(UserWarning):
    """A field of a checkpoint that may change its numbers or its texts, and is not followed."""


def warn_unread(path: Path, fields: Iterable[str]) -> None:
    """Warn of fields of a file, if there are any."""
    if named := ", ".join(fields):
        warnings.warn(UnreadWarning(f"{path}: not followed: {named}"), stacklevel=2)
