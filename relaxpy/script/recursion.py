"""Room for deeply nested programs: Python's own limit of 1000 frames is for runaway recursion."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

NESTING = 20_000
"""Python frames that reading or printing may take: an expression nested 200 deep takes about 2000."""


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Allow deeply nested expressions inside."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, NESTING))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
