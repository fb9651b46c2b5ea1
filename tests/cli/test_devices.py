"""`relaxpy devices`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from relaxpy.cli.main import cli
from relaxpy.runtime.devices import registry
from relaxpy.runtime.devices.opencl.device import OpenCLRuntime
from tests.runtime.devices.opencl.support import needs_opencl
from tests.runtime.devices.webgpu.support import needs_vulkan


def listed(*args: str) -> str:
    result = CliRunner().invoke(cli, ["devices", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        pytest.param("opencl", "max_mem_alloc_size", marks=needs_opencl),
        pytest.param("vulkan", "max-storage-buffer-binding-size", marks=needs_vulkan),
    ],
)
def test_limits(kind: str, limit: str) -> None:
    """Text and JSON have the same devices and numbers."""
    rows: list[dict[str, Any]] = json.loads(listed(kind, "--json"))["devices"]
    assert rows[0]["device"] == f"{kind}:0"
    assert rows[0]["limits"][limit] >= 1 << 20
    text = listed(kind)
    assert f"{kind}:0  {rows[0]['name']}" in text
    assert f"{rows[0]['limits'][limit]:,}" in text


def test_no_device_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenCLRuntime, "devices", classmethod(lambda _: ()))
    assert "no device of kind opencl here: relaxpy doctor says" in listed("opencl")
    assert json.loads(listed("opencl", "--json")) == {"devices": []}


def test_an_unknown_kind() -> None:
    """The error names those that there are."""
    result = CliRunner().invoke(cli, ["devices", "opencll"])
    assert result.exit_code != 0
    assert registry.kinds()
    assert "opencl" in f"{result.output}{result.exception}"
