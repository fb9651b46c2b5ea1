"""Fixtures of the tests of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relaxpy.ir.module import IRModule
from tests.sweeps import FULL


@pytest.fixture(autouse=True)
def without_round_trips(modules_round_trip: list[IRModule]) -> Iterator[None]:
    """The scripts of these families are those that tests/models looks at."""
    yield
    if not FULL:
        modules_round_trip.clear()
