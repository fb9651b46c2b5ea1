"""Where a node of torch's graph is written in the user's source."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from relaxpy.errors import Span
from relaxpy.frontend.spans import is_users, line_span

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
