"""Targets of Metal as text."""

from __future__ import annotations

import pytest

from relaxpy.backend.metal.target import MetalTarget
from relaxpy.errors import BuildError
from relaxpy.target import Target


@pytest.mark.parametrize("text", ["metal", "metal -threads=16", "metal -threads=16 -max-buffers=8"])
def test_text_parses_back(text: str) -> None:
    target = Target.parse(text)
    assert isinstance(target, MetalTarget)
    assert str(target) == text
    assert Target.parse(str(target)) == target


def test_buffers() -> None:
    """A kernel has 31 places, and its numbers are in one."""
    assert Target.parse("metal").max_buffers_per_launch == 30


@pytest.mark.parametrize("given", ["-threads=0", "-threads=1000", "-max-buffers=3", "-mcpu=m4"])
def test_wrong_options(given: str) -> None:
    with pytest.raises(BuildError) as caught:
        Target.parse(f"metal {given}")
    assert caught.value.code == "target-option"
