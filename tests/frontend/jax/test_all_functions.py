"""The public functions of JAX that trace with two symbolic sizes, beside JAX at several sizes.

A small part in `make test`, some of it built; `make test-jax-functions` takes all: imports, runs through the interpreter,
and builds, some dozens in one module. What is not equal is listed, with reasons, in differences.txt.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.frontend.jax import functions
from tests.frontend.jax.functions import Case, Outcome
from tests.sweeps import FULL, part, sweep

DIFFERENCES = Path(__file__).with_name("differences.txt")
TARGET = "llvm -opt-level=0"
TOGETHER = 24
"""How many functions are built as one module."""


@cache
def reasons() -> dict[str, str]:
    """Function and kind → why it is not equal."""
    lines = DIFFERENCES.read_text().splitlines()
    pairs = (line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return {key: reason for key, reason in pairs}


def unlisted(outcomes: list[Outcome]) -> list[str]:
    """What is not equal and has no reason."""
    return [
        f"{o.name} {o.kind}: {o.reason}"
        for o in outcomes
        if o.kind != "equal" and f"{o.name} {o.kind}" not in reasons()
    ]


def cases(names: list[str]) -> list[Case]:
    """The calls of those functions that JAX traces."""
    return [case for name in names if (case := functions.case_of(name)) is not None]


NAMES = functions.names()
CHOSEN = list(part(NAMES, 160))
PARTS = [CHOSEN[i : i + TOGETHER] for i in range(0, len(CHOSEN), TOGETHER)]


@sweep
@pytest.mark.parametrize("names", PARTS, ids=lambda names: names[0])
def test_a_function_is_jaxs_at_all_sizes(names: list[str]) -> None:
    found = [functions.interpreted(case) for case in cases(names)]
    assert found
    assert not unlisted(found)


@sweep
@pytest.mark.parametrize("names", PARTS, ids=lambda names: names[0])
def test_one_build_is_jaxs_at_all_sizes(names: list[str]) -> None:
    chosen = cases(names if FULL else names[::3])
    assert not unlisted(functions.built(chosen, TARGET))


def test_nothing_is_listed_as_wrong() -> None:
    """A list of reasons is no place for wrong numbers, and most functions are not in it."""
    for key in reasons():
        name, kind = key.rsplit(" ", 1)
        assert name in NAMES
        assert kind in ("refused", "rounded")
    assert len(reasons()) < 40
