"""Handles of kernels that are linked at their first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Handle: TypeAlias = Callable[..., object]
"""A kernel, called with the records of its arguments."""


class LateHandle:
    """The handle of a variant that is linked at its first call, as many are never called. It then leaves its places to
    the handle that it has linked."""

    __slots__ = ("_link", "places")

    def __init__(self, link: Callable[[], Handle]) -> None:
        self._link = link
        self.places: list[tuple[Any, Any]] = []
        """A list or dictionary and its key, for each place where the handle is."""

    def __call__(self, *args: Any) -> None:
        handle = self._link()
        for holder, key in self.places:
            holder[key] = handle
        handle(*args)


def put(holder: Any, key: Any, handle: Handle) -> None:
    """Put a handle into a list or dictionary."""
    holder[key] = handle
    if isinstance(handle, LateHandle):
        handle.places.append((holder, key))
