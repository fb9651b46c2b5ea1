"""Sweeps: tests of which `make test` runs a part and `make test-slow` all.

    @sweep
    @pytest.mark.parametrize("seeds", part(batches, 40))

or, of all cases that a test has by its parameters and those of its fixtures,

    @sweep(3)
    @pytest.mark.parametrize(...)

one in three, drawn by its name. Whatever a sweep looks at, some of it is in the part: the part finds what is wrong
everywhere, the whole what is wrong somewhere.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from relaxpy.backend.cpu import target
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.ir.module import IRModule
from relaxpy.target import Target

FULL = os.environ.get("RELAXPY_SWEEPS") == "full"

sweep = pytest.mark.sweep
full = pytest.mark.full
"""A test that is run by `make test-slow` only: it takes long, and others of `make test` look at the same in the small.
`@full("make test-devices")` names a command of the Makefile that runs it with others of its kind."""


def drawn_items(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items without those that `sweep(every)` leaves to a full run; at least one of each test stays."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if any(mark.args for mark in item.iter_markers("sweep")):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left: set[str] = set()
    for test, own in cases.items():
        every = next(mark.args[0] for mark in own[0].iter_markers("sweep") if mark.args)
        chosen = random.Random(zlib.crc32(test.encode())).sample(own, -(-len(own) // every))
        left |= {item.nodeid for item in own} - {item.nodeid for item in chosen}
    return [item for item in items if item.nodeid not in left]


def full_file(command: str) -> None:
    """Says of the whole file that calls it, before it imports what takes long, that it is `full`."""
    if not FULL:
        pytest.skip(f"takes long: {command}", allow_module_level=True)


_Item = TypeVar("_Item")


def part(items: Sequence[_Item], every: int) -> Sequence[_Item]:
    """One of `every` items, the first among them; all in a full run."""
    return items if FULL else items[::every]


optimised = pytest.mark.optimised
"""A test of the machine code itself: its instructions, its bytes, its speed. The others of `make test` run kernels that
LLVM has not optimised, which is most of the time of a build; the loops are the same, schedules do not depend on it.
`make test-slow` optimises everywhere."""


def set_optimised(on: bool) -> None:
    """Says for the builds of this process that are to come whether LLVM optimises. Each has a cache of its own, since
    keys do not tell them apart; one that a fixture of several tests has set stays."""
    plain = os.environ["RELAXPY_TESTS_CACHE"]
    caches = {True: str(Path(plain) / "optimised"), False: plain}
    if os.environ.get("RELAXPY_CACHE_DIR") == caches[not on]:
        os.environ["RELAXPY_CACHE_DIR"] = caches[on]
    target._tvm_target = _of_target if on else _unoptimised  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


_of_target = target._tvm_target  # pyright: ignore[reportPrivateUsage]


def _unoptimised(of: CpuTarget) -> Any:
    return _of_target(replace(of, opt_level=0) if of.kind == "llvm" else of)


def quick_target(text: str = "llvm") -> Target:
    """The target without LLVM's optimisations, which take most of the time of a build; with them in a full run. The
    loops are the same: schedules do not depend on it."""
    return Target.parse(text if FULL else f"{text} -opt-level=0")


def some_modules(made: list[IRModule], test: str) -> list[IRModule]:
    """Of the modules that a test made: one, not always after the same pass, in one test of four; all in a full run. One
    that is as large as a model (a test that builds models would spend most of its time with them) in one test of ten."""
    if FULL:
        return made
    drawn = random.Random(zlib.crc32(test.encode()))
    chosen = drawn.sample(made, min(len(made), drawn.randrange(4) == 0))
    takes_large = drawn.random() < 0.1
    return [mod for mod in chosen if takes_large or len(mod.functions) < 24]
