"""No search for garbage while a large program is made: it would look at every node again and again, and find none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_users = 0
_before = False


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Python's cyclic collector rests inside. Programs are trees, and hold next to no cycles; 10 000 bindings are read
    in two thirds of the time, and passes save a fifth. May be nested, and used by several threads at once: the last to
    leave puts it back."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = gc.isenabled()
            gc.disable()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _before:
                gc.enable()
