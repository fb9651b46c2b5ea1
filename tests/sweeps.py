"""Sweeps: tests of which `make test` runs a part and `make test-slow` all.

    @sweep
    @pytest.mark.parametrize("seeds", part(batches, 40))

Whatever a sweep looks at, some of it is in the part: the part finds what is wrong everywhere, the whole what is wrong
somewhere.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from typing import TypeVar

import pytest

from relaxpy.ir.module import IRModule
from relaxpy.target import Target

FULL = os.environ.get("RELAXPY_SWEEPS") == "full"

sweep = pytest.mark.sweep
full = pytest.mark.full
"""A test that is run by `make test-slow` only: it takes long, and others of `make test` look at the same in the small.
`@full("make test-devices")` names a command of the Makefile that runs it with others of its kind."""


def full_file(command: str) -> None:
    """Says of the whole file that calls it, before it imports what takes long, that it is `full`."""
    if not FULL:
        pytest.skip(f"takes long: {command}", allow_module_level=True)


_Item = TypeVar("_Item")


def part(items: Sequence[_Item], every: int) -> Sequence[_Item]:
    """One of `every` items, the first among them; all in a full run."""
    return items if FULL else items[::every]


def quick_target(text: str = "llvm") -> Target:
    """The target without LLVM's optimisations, which take most of the time of a build; with them in a full run. The
    loops are the same: schedules do not depend on it."""
    return Target.parse(text if FULL else f"{text} -opt-level=0")


def some_modules(made: list[IRModule], test: str) -> list[IRModule]:
    """Of the modules that a test made: one, not always after the same pass, in one test of two; all in a full run. One
    that is as large as a model (a test that builds models would spend most of its time with them) in one test of ten."""
    if FULL:
        return made
    drawn = random.Random(zlib.crc32(test.encode()))
    chosen = drawn.sample(made, min(len(made), drawn.randrange(2)))
    takes_large = drawn.random() < 0.1
    return [mod for mod in chosen if takes_large or len(mod.functions) < 24]
