"""Targets of OpenCL as text."""

from __future__ import annotations

import pytest

from relaxpy.backend.opencl.target import OpenCLTarget
from relaxpy.errors import BuildError
from relaxpy.target import Target


@pytest.mark.parametrize(
    "text",
    [
        "opencl",
        "opencl -threads=16",
        "opencl -threads=16 -max-buffers=8",
        "opencl -batch-invariant=1",
    ],
)
def test_text_parses_back(text: str) -> None:
    target = Target.parse(text)
    assert isinstance(target, OpenCLTarget)
    assert str(target) == text
    assert Target.parse(str(target)) == target


def test_threads() -> None:
    assert OpenCLTarget.read("opencl -threads=128").threads == 128


@pytest.mark.parametrize("given", ["0", "1000", "many"])
def test_wrong_threads(given: str) -> None:
    with pytest.raises(BuildError, match="number from 1 to 256") as caught:
        Target.parse(f"opencl -threads={given}")
    assert caught.value.code == "target-option"


def test_buffers() -> None:
    """Arguments of every device have 1024 bytes: 16 for each buffer, the others for sizes."""
    assert Target.parse("opencl").max_buffers_per_launch == 48
    assert Target.parse("opencl -max-buffers=8").max_buffers_per_launch == 8


@pytest.mark.parametrize("given", ["3", "-1", "all"])
def test_wrong_buffers(given: str) -> None:
    with pytest.raises(BuildError, match="must be at least 4") as caught:
        Target.parse(f"opencl -max-buffers={given}")
    assert caught.value.code == "target-option"


def test_unknown_option() -> None:
    with pytest.raises(BuildError, match="unknown target option -mcpu"):
        Target.parse("opencl -mcpu=haswell")
