"""Where a node of torch's graph is written in the user's source."""

from __future__ import annotations

import os
import re
import sysconfig
from functools import cache, lru_cache
from typing import Any

import relaxpy
from relaxpy.errors import Span

_OURS = os.path.dirname(os.path.abspath(relaxpy.__file__)) + os.sep
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in ')


def span_of(node: Any) -> Span | None:
    """The innermost line of a node's stack that is not in torch itself, or else the innermost line. None: unknown."""
    return _span(node.meta.get("stack_trace") or "")


@lru_cache(maxsize=4096)
def _span(trace: str) -> Span | None:
    frames = [(file, int(line)) for file, line in _FRAME.findall(trace)]
    own = [frame for frame in frames if is_users(frame[0])]
    if not frames:
        return None
    return line_span(*(own or frames)[-1])


_STANDARD = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Is it a file of the user, or of a package that is neither torch nor relaxpy nor Python's own?"""
    standard = file.startswith(_STANDARD) and not file.startswith(_PACKAGES)
    return not standard and not file.startswith((torch_folder(), _OURS, "<"))


def line_span(file: str, line: int) -> Span:
    """The text of a line as a span."""
    text = Span(file, line).source_line() or ""
    start = len(text) - len(text.lstrip())
    return Span(file, line, start, line, len(text))


@cache
def torch_folder() -> str:
    """The folder of torch, with a separator at its end."""
    import torch

    return os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def raised_in(error: BaseException) -> Span | None:
    """The innermost line in the traceback of an exception that is neither in torch nor in relaxpy."""
    found, step = None, error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if is_users(file) and os.path.exists(file):
            found = file, step.tb_lineno
        step = step.tb_next
    return None if found is None else line_span(*found)
