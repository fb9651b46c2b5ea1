"""Kinds of devices: those of relaxpy, and those that packages bring."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relaxpy.errors import UsageError
from relaxpy.runtime import Device
from relaxpy.runtime.devices import registry
from relaxpy.runtime.devices.cpu.device import CpuRuntime
from relaxpy.runtime.devices.registry import GROUP, kinds, runtime_class, runtime_of

MODULE = """
from tests.runtime.toy_device import ToyRuntime


class Brought(ToyRuntime):
    kind = "{kind}"


NOTHING = 3
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages on the path."""
    monkeypatch.syspath_prepend(tmp_path)
    registry.forget()
    yield tmp_path
    registry.forget()


def install(folder: Path, module: str, kind: str, place: str) -> None:
    """A package in a folder, as pip leaves it."""
    (folder / f"{module}.py").write_text(MODULE.format(kind=kind), encoding="utf-8")
    info = folder / f"{module}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{kind} = {module}:{place}\n")


def test_the_processor_is_built_in() -> None:
    assert kinds()[0] == "cpu"
    assert runtime_class("cpu") is CpuRuntime
    assert runtime_of("cpu", 0) is runtime_of("cpu", 0)
    assert runtime_of("cpu", 0).devices()


def test_a_package_brings_a_kind(site: Path) -> None:
    install(site, "device_one", "one", "Brought")
    assert "one" in kinds()
    assert str(Device.of("one:1")) == "one:1"
    assert Device("one").dlpack == (12, 0)
    assert runtime_of("one", 1).index == 1
    with pytest.raises(UsageError, match="no toy 7") as caught:
        runtime_of("one", 7)
    assert caught.value.code == "device"


@pytest.mark.parametrize(
    ("kind", "place", "reason"),
    [
        ("two", "Missing", "AttributeError"),
        ("two", "NOTHING", "it is not a DeviceRuntime"),
        ("other", "Brought", "its kind is 'two'"),
    ],
)
def test_packages_that_cannot_be_used(site: Path, kind: str, place: str, reason: str) -> None:
    module = f"device_{kind}_{place.lower()}"
    install(site, module, kind, place)
    (site / f"{module}.py").write_text(MODULE.format(kind="two"), encoding="utf-8")
    with pytest.raises(UsageError, match=reason) as caught:
        Device(kind)
    assert caught.value.code == "device"
    assert module in caught.value.message
    with pytest.raises(UsageError, match=r"there is no device kind 'three'") as caught:
        Device("three")
    assert "cpu" in (caught.value.help or "")


def test_the_processor_is_not_replaced(site: Path) -> None:
    install(site, "device_cpu", "cpu", "Brought")
    assert runtime_class("cpu") is CpuRuntime
