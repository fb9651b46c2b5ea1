"""The emulated driver as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.devices.cuda.emulation import Emulation, emulated


@pytest.fixture
def driver() -> Iterator[Emulation]:
    """One emulated device, in this process."""
    with emulated() as made:
        yield made
