"""Explains a build to users: `page(explain(mod))` is one HTML page, `compare` says what differs between two builds."""

from __future__ import annotations

from relaxpy.explain.compiled import explain_executable
from relaxpy.explain.difference import Difference, compare
from relaxpy.explain.explanation import Explanation
from relaxpy.explain.page import page
from relaxpy.explain.record import explain

__all__ = ["Difference", "Explanation", "compare", "explain", "explain_executable", "page"]


def __dir__() -> list[str]:
    return sorted(__all__)
