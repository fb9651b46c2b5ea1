"""Sweeps: tests of which `make test` runs a part and `make test-slow` all.

    @sweep
    @pytest.mark.parametrize("seeds", part(batches, 40))

Whatever a sweep looks at, some of it is in the part: the part finds what is wrong everywhere, the whole what is wrong
somewhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

from relaxpy.target import Target

FULL = os.environ.get("RELAXPY_SWEEPS") == "full"

sweep = pytest.mark.sweep

_Item = TypeVar("_Item")


def part(items: Sequence[_Item], every: int) -> Sequence[_Item]:
    """One of `every` items, the first among them; all in a full run."""
    return items if FULL else items[::every]


def quick_target(text: str = "llvm") -> Target:
    """The target without LLVM's optimisations, which take most of the time of a build; with them in a full run. The
    loops are the same: schedules do not depend on it."""
    return Target.parse(text if FULL else f"{text} -opt-level=0")
