"""HoistInvariants: what is computed before a loop, and what stays in it."""

from __future__ import annotations

from relaxpy.testing.before_after import check_example
from relaxpy.transform import HoistInvariants


def test_example() -> None:
    check_example(HoistInvariants())
