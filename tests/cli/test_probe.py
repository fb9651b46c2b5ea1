"""What `relaxpy doctor` tries."""

from __future__ import annotations

import sys

import pytest

from relaxpy.cli import probe
from relaxpy.runtime.devices.cuda import driver as cuda
from relaxpy.runtime.devices.opencl import device as opencl
from relaxpy.runtime.devices.opencl.device import OpenCLRuntime
from relaxpy.runtime.devices.registry import forget
from relaxpy.runtime.devices.webgpu import device as webgpu
from tests.device_emulation.fake_metal import emulated
from tests.device_emulation.runner import needs_compiler
from tests.runtime.devices.opencl.support import needs_opencl
from tests.runtime.devices.webgpu.support import needs_vulkan


def test_metal_elsewhere() -> None:
    """Nothing is said to install where there is no macOS."""
    finding = probe.PROBES["metal"]()
    assert not finding.works
    assert finding.found == f"Metal is in macOS only, and this is {sys.platform}"
    assert finding.advice == 'build for "vulkan" or "opencl"'


@needs_compiler
def test_metal_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """And said to be an experiment."""
    with emulated(monkeypatch, 1):
        finding = probe.PROBES["metal"]()
    assert finding.works, finding
    assert finding.found == "Emulated M0 (experimental)"


@needs_vulkan
@pytest.mark.parametrize("kind", ["vulkan", "webgpu"])
def test_a_device_of_wgpu_is_tried(kind: str) -> None:
    finding = probe.PROBES[kind]()
    assert finding.works, finding
    assert finding.found


def test_without_wgpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing, and how to get it."""
    monkeypatch.setitem(sys.modules, "wgpu", None)
    forget()
    webgpu._adapters.cache_clear()
    try:
        finding = probe.PROBES["vulkan"]()
    finally:
        forget()
        webgpu._adapters.cache_clear()
    assert not finding.works
    assert finding.advice == "pip install 'relaxpy[wgpu]'"


@needs_opencl
def test_an_opencl_device_is_tried() -> None:
    finding = probe.PROBES["opencl"]()
    assert finding.works, finding
    assert finding.found == "; ".join(OpenCLRuntime.devices())


def test_without_an_opencl_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing, and how to get it."""
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    forget()
    opencl._devices.cache_clear()
    try:
        finding = probe.PROBES["opencl"]()
    finally:
        forget()
        opencl._devices.cache_clear()
    assert not finding.works
    assert finding.advice == "pip install 'relaxpy[opencl]'"


def test_without_cuda_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    forget()
    cuda.bindings.cache_clear()
    finding = probe.PROBES["cuda"]()
    forget()
    assert not finding.works
    assert finding.found.startswith("CUDA needs cuda-bindings")
    assert finding.advice == "pip install 'relaxpy[cuda]'"
