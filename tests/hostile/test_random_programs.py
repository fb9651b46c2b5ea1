"""Random programs on the hostile device, beside the interpreter."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.testing.differential import Call
from relaxpy.testing.fuzz import calls_of
from relaxpy.testing.random_program import random_module
from tests.hostile.backend import hostile_targets
from tests.hostile.device import set_policy
from tests.hostile.test_programs import numbers
from tests.sweeps import full

BATCHES = {"few": range(4), "more": range(40, 52)}


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with hostile_targets(monkeypatch):
        yield


def disagreements(machine: relaxpy.VirtualMachine, call: Call) -> Iterator[str]:
    """How the machine differs from the interpreter, under several policies."""
    for policy in ("lazy", "others", 1):
        set_policy(policy)
        try:
            got: Any = numbers(machine[call.name](*copy.deepcopy(call.args)))
        except RelaxError as error:
            got = error
        if isinstance(got, RelaxError) and got.code == "update-lost":
            continue  # numpy arrays cannot be updated on a device
        wanted = call.expected
        late = (
            isinstance(wanted, RelaxError)
            and isinstance(got, RelaxError)
            and got.code == "device-failed"
        )
        if (
            late
            and wanted.code == "tir-bounds"
            and wanted.message.partition(": ")[2] in got.message
        ):
            continue  # a kernel's error, told when somebody asked
        problem = call.disagreement(got)
        if problem:
            yield f"{call.label}, policy {policy}: {problem}\n{call.mod.script()}"


@pytest.mark.parametrize("batch", ["few", pytest.param("more", marks=full)])
def test_the_same_as_the_interpreter(batch: str) -> None:
    for seed in BATCHES[batch]:
        mod, programs = random_module([seed])
        calls = [call for program in programs for call in calls_of(program)]
        machine = relaxpy.VirtualMachine(relaxpy.build(mod, "hostile"))
        with np.errstate(all="ignore"):
            assert not [text for call in calls for text in disagreements(machine, call)]
