"""Explains a build to users: `page(explain(mod))` is one HTML page."""

from __future__ import annotations

from relaxpy.explain.explanation import Explanation, explain
from relaxpy.explain.page import page

__all__ = ["Explanation", "explain", "page"]


def __dir__() -> list[str]:
    return sorted(__all__)
