"""Deep recursion for deeply nested programs: Python's own limit of 1000 frames is meant for runaway recursion."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

NESTING = 20_000
"""The recursion limit, in Python frames: a program nested 200 deep takes about 3000."""

_lock = Lock()
_users = 0
_before = 0


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise Python's recursion limit in the block. Blocks may be nested, and used by several threads at once: the limit
    is one per process, so the last to end restores it."""
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
