"""Python's garbage collector waits while passes run.

They make objects by the ten thousands, nearly all of them in use until they are done and none in cycles worth naming
(some 1 500 objects for a model of 200 bindings), while everything that the compiler loaded is walked through again and
again to find that out: a fifth of the time of all passes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
_users = 0
_before = False


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no cycles inside. May be nested, and used by several threads at once: the collector is one for the
    process, so the last to leave puts it back as the first found it."""
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
