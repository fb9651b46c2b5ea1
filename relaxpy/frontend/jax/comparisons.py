"""Comparisons of sizes in the user's code that JAX does not decide.

`x.shape[0] == 3` is False for a symbolic size: JAX says so of all sizes that it cannot prove to be equal, and goes on.
The trace is that of sizes that differ, and holds for no others.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from relaxpy.errors import Span
from relaxpy.frontend.jax.sizes import dimension, is_symbolic
from relaxpy.frontend.spans import is_users, line_span

_ONE_AT_A_TIME = threading.RLock()
"""Held while JAX's comparison is replaced."""


@dataclass(frozen=True)
class Differing:
    """Two sizes that a trace took to differ."""

    left: Any
    right: Any
    span: Span

    def are_equal(self, values: Mapping[str, int]) -> bool:
        """Are they equal for these values of variables?"""
        left, right = (
            each._evaluate(dict(values)) if is_symbolic(each) else each
            for each in (self.left, self.right)
        )
        return left == right


@contextmanager
def comparisons() -> Iterator[list[Differing]]:
    """The comparisons that are made inside, by the user's own lines."""
    kind: Any = dimension()
    found: list[Differing] = []
    thread = threading.get_ident()
    with _ONE_AT_A_TIME:
        original = kind.__eq__

        def equal(self: Any, other: Any) -> bool:
            same = original(self, other)
            is_size = is_symbolic(other) and other.scope is self.scope
            if same or thread != threading.get_ident() or not (is_size or isinstance(other, int)):
                return same
            frame = sys._getframe(1)
            if frame.f_code is kind.__ne__.__code__ and frame.f_back is not None:
                frame = frame.f_back
            if is_users(frame.f_code.co_filename) and is_symbolic(self - other):
                span = line_span(frame.f_code.co_filename, frame.f_lineno)
                found.append(Differing(self, other, span))
            return same

        kind.__eq__ = equal
        try:
            yield found
        finally:
            kind.__eq__ = original
