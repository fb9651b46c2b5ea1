"""Which source lines are the user's, and where they stand."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache

import relaxpy
from relaxpy.errors import Span

_OURS = os.path.dirname(os.path.abspath(relaxpy.__file__)) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))
_FRAMEWORKS = ("torch", "jax", "jaxlib")
"""Packages whose lines are nobody's."""


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Is it a file of the user, or of a package that is neither a framework nor relaxpy nor Python's own?"""
    standard = file.startswith(_STANDARD) and not file.startswith(_PACKAGES)
    return not standard and not file.startswith((_OURS, "<", *_folders()))


def line_span(file: str, line: int) -> Span:
    """The text of a line as a span."""
    text = Span(file, line).source_line() or ""
    start = len(text) - len(text.lstrip())
    return Span(file, line, start, line, len(text))


def raised_in(error: BaseException) -> Span | None:
    """The innermost line in the traceback of an exception that is the user's."""
    found, step = None, error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if is_users(file) and os.path.exists(file):
            found = file, step.tb_lineno
        step = step.tb_next
    return None if found is None else line_span(*found)


def _folders() -> tuple[str, ...]:
    """The folders of the frameworks that are loaded, with a separator at their ends."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _FRAMEWORKS)
    return tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files if file)
