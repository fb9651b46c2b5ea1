"""Where an equation is written in the user's source."""

from __future__ import annotations

from typing import Any

from relaxpy.errors import Span
from relaxpy.frontend.spans import is_users, line_span


def span_of(eqn: Any) -> Span | None:
    """The innermost line of an equation's stack that is not in JAX itself. None: unknown."""
    trace = eqn.source_info.traceback
    for frame in () if trace is None else trace.frames:
        if is_users(frame.file_name):
            return line_span(frame.file_name, frame.line_num)
    return None
