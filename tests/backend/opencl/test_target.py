"""Targets of OpenCL as text."""

from __future__ import annotations

import pytest

from relaxpy.backend.opencl.target import OpenCLTarget
from relaxpy.errors import BuildError
from relaxpy.target import Target


@pytest.mark.parametrize("text", ["opencl", "opencl -threads=16"])
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


def test_unknown_option() -> None:
    with pytest.raises(BuildError, match="unknown target option -mcpu"):
        Target.parse("opencl -mcpu=haswell")
