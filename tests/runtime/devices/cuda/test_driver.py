"""What is said where something is missing."""

from __future__ import annotations

import sys

import pytest

from relaxpy.errors import UsageError
from relaxpy.runtime.devices.cuda.device import CudaRuntime
from relaxpy.runtime.devices.cuda.driver import CudaError, ask, bindings, version_text
from tests.runtime.devices.cuda.emulation import Emulation, needs_emulation
from tests.runtime.devices.cuda.kernels import runtime


def test_versions() -> None:
    assert [version_text(each) for each in (12000, 12040, 13010)] == ["12.0", "12.4", "13.1"]


def test_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(UsageError, match="CUDA needs cuda-bindings, which cannot") as caught:
        CudaRuntime(0)
    assert caught.value.help == "pip install 'relaxpy[cuda]'"
    assert CudaRuntime.devices() == ()


@needs_emulation
def test_without_a_device(driver: Emulation) -> None:
    driver.configure(devices=0)
    with pytest.raises(UsageError, match="no CUDA-capable device is detected") as caught:
        runtime()
    assert "install NVIDIA's driver" in str(caught.value.help)
    assert CudaRuntime.devices() == ()


@needs_emulation
def test_an_old_driver(driver: Emulation) -> None:
    driver.configure(version=11040)
    with pytest.raises(UsageError, match=r"is for CUDA 11\.4, and 12\.0 is needed") as caught:
        runtime()
    assert caught.value.help == "install driver 525 or newer"


@needs_emulation
def test_a_number_that_no_device_has(driver: Emulation) -> None:
    with pytest.raises(UsageError, match="no device cuda:3") as caught:
        runtime(3)
    assert caught.value.help == "cuda:0 is Emulated GPU 0"


@needs_emulation
def test_errors_have_the_words_of_the_driver(driver: Emulation) -> None:
    cu = bindings()
    with pytest.raises(CudaError, match=r"^invalid device ordinal \(CUDA_ERROR_INVALID_DEVICE\)$"):
        ask(cu.cuDeviceGet, 7)
