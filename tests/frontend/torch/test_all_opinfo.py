"""Torch's samples of its operators beside eager torch: those whose trace has core operators only.

A small part in `make test`; `make test-torch-operators` runs all samples, and each operator with symbolic sizes. What
is not equal is listed, with reasons, in differences.txt.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.frontend.torch import opinfo
from tests.sweeps import FULL, part, sweep

DIFFERENCES = Path(__file__).with_name("differences.txt")
MOST = opinfo.MOST if FULL else 2
TARGET = "llvm -opt-level=0"


@cache
def reasons() -> dict[str, str]:
    """Name[dtype] and kind → why it is not equal."""
    lines = DIFFERENCES.read_text().splitlines()
    pairs = (line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return {key: reason for key, reason in pairs}


def unlisted(outcomes: list[opinfo.Outcome]) -> list[str]:
    """What is not equal and has no reason."""
    return [
        f"{o.kind} {o.case.label}: {o.reason}"
        for o in outcomes
        if o.kind != "equal" and f"{o.case.name}[{str(o.case.dtype)[6:]}] {o.kind}" not in reasons()
    ]


@sweep
@pytest.mark.parametrize("name", part(opinfo.listed(), 193))
def test_samples(name: str) -> None:
    found = [case for dtype in opinfo.DTYPES for case in opinfo.cases(name, dtype, MOST)]
    assert found
    assert not unlisted(opinfo.outcomes(found, target=TARGET))


@sweep
@pytest.mark.parametrize("name", part(opinfo.listed(), 193))
def test_symbolic_sizes(name: str) -> None:
    """One build, at the sample's own sizes and at others."""
    found = [case for dtype in opinfo.DTYPES for case in opinfo.cases(name, dtype, MOST)]
    assert not unlisted(opinfo.symbolic(opinfo.representative(found), target=TARGET))


def test_nothing_is_listed_as_wrong() -> None:
    """A list of reasons is no place for wrong numbers, or for operators that there are none of."""
    names = set(opinfo.listed())
    for key in reasons():
        name, kind = key.rsplit("[", 1)[0], key.rsplit(" ", 1)[1]
        assert name in names
        assert kind in ("rounded", "refused", "order")
