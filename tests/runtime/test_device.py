from __future__ import annotations

import pytest

from relaxpy.errors import UsageError
from relaxpy.runtime import Device, cpu


def test_names_of_devices() -> None:
    assert (
        Device.of(None)
        == Device.of("cpu")
        == Device.of("cpu:0")
        == Device.of(cpu())
        == Device("cpu", 0)
    )
    assert str(Device.of("cpu:1")) == "cpu:1"
    assert Device("cpu", 2).dlpack == (1, 2)


@pytest.mark.parametrize("wrong", ["gpuu", "cpu:x", "cpu:-1", ""])
def test_unknown_devices(wrong: str) -> None:
    with pytest.raises(UsageError):
        Device.of(wrong)
