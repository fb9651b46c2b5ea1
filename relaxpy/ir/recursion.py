"""Room for deeply nested programs: Python's own limit of 1000 frames is for runaway recursion."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

NESTING = 20_000
"""Python frames that a walk may take: a program nested 200 deep takes about 3000."""

_lock = Lock()
_users = 0
_before = 0


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Allow deeply nested programs inside. May be nested, and used by several threads at once: the limit is one for
    the process, so the last to leave puts it back."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_before, NESTING))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                sys.setrecursionlimit(_before)
