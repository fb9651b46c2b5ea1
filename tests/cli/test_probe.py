"""What `relaxpy doctor` tries."""

from __future__ import annotations

import sys

import pytest

import relaxpy
from relaxpy.cli import probe
from relaxpy.errors import BuildError
from relaxpy.runtime.devices.cuda import driver as cuda
from relaxpy.runtime.devices.opencl import device as opencl
from relaxpy.runtime.devices.opencl.device import OpenCLRuntime
from relaxpy.runtime.devices.registry import forget
from relaxpy.runtime.devices.webgpu import device as webgpu
from tests.runtime.devices.opencl.support import needs_opencl
from tests.runtime.devices.webgpu.support import needs_vulkan

COMPILED = ("llvm", "cuda", "opencl", "vulkan", "webgpu")


@pytest.mark.parametrize("target", [name for name in probe.PROBES if name not in COMPILED])
def test_a_probe_promises_no_more_than_build_does(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `build` has no code for does not work, whatever drivers there are, and nothing is said to install."""
    finding = probe.PROBES[target]()
    assert not finding.works
    assert f"does not compile for {target}" in finding.advice
    with pytest.raises(BuildError, match="there is no code generator for"):
        relaxpy.build(relaxpy.parse(probe.PROGRAM), target=target)
    monkeypatch.setattr(probe.sys, "platform", "linux")
    finding = probe.PROBES[target]()
    assert not finding.works
    assert "install" not in finding.advice


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
