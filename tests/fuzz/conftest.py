"""What the tests of random programs do without."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def modules_round_trip() -> None:
    """These tests print and parse each program themselves; the modules on the way to it are thousands."""
