"""Targets of WGSL as text."""

from __future__ import annotations

import pytest

from relaxpy.backend.registry import backend_of
from relaxpy.backend.webgpu.backend import WebGPUBackend
from relaxpy.backend.webgpu.target import WebGPUTarget
from relaxpy.errors import BuildError
from relaxpy.target import Target


@pytest.mark.parametrize(
    "text", ["webgpu", "vulkan", "vulkan -threads=16", "webgpu -threads=16 -max-buffers=4"]
)
def test_text_parses_back(text: str) -> None:
    target = Target.parse(text)
    assert isinstance(target, WebGPUTarget)
    assert isinstance(backend_of(target), WebGPUBackend)
    assert str(target) == text
    assert Target.parse(str(target)) == target


def test_limits() -> None:
    """Those that WebGPU guarantees, and those that drivers of GPUs have at least."""
    assert Target.parse("webgpu").max_buffers_per_launch == 8
    assert Target.parse("vulkan").max_buffers_per_launch == 16
    assert Target.parse("vulkan -max-buffers=10").max_buffers_per_launch == 10


def test_the_device_that_it_runs_on() -> None:
    assert Target.parse("webgpu").device == "webgpu"
    assert Target.parse("vulkan -threads=32").device == "vulkan"


@pytest.mark.parametrize(
    "option", ["-threads=512", "-max-buffers=3", "-max-buffers=many", "-mcpu=x"]
)
def test_wrong_options(option: str) -> None:
    with pytest.raises(BuildError) as caught:
        Target.parse(f"webgpu {option}")
    assert caught.value.code == "target-option"
