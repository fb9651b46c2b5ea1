"""LiftWorkspace: figure 11 of the paper, with a matrix product whose reduction is split."""

from __future__ import annotations

from relaxpy.testing.before_after import check_example
from relaxpy.transform import LiftWorkspace


def test_example() -> None:
    check_example(LiftWorkspace())
