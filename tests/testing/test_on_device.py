"""Calls on a target beside the interpreter."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.target import Target
from relaxpy.testing.differential import Call
from relaxpy.testing.fuzz import fuzz, outcomes_on
from relaxpy.testing.on_device import Where, check_on

QUICK = Where(Target.parse("llvm -opt-level=0"))
OTHER = Target.parse("llvm -mtriple=aarch64-linux-gnu -opt-level=0")
MOD = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "float32")):
    return R.exp(x)
""")


def test_the_same_as_the_interpreter() -> None:
    call = Call(MOD, "main", [np.ones(3, np.float32)])
    assert check_on([call], QUICK) == ([], "")


def test_a_wrong_value_is_found() -> None:
    call = Call(MOD, "main", [np.ones(3, np.float32)])
    call._expected.append(np.ones(3, np.float32))
    call._others.append(np.ones(3, np.float32))
    (failure,), _ = check_on([call], QUICK)
    assert (failure.stage, failure.kind, failure.call) == ("vm", "value", call)
    assert "3 of 3 elements differ" in failure.message


def test_another_machine_is_asked() -> None:
    """One whose results are wrong, and one that has no results."""
    call = Call(MOD, "main", [np.ones(3, np.float32)])
    (failure,), _ = check_on([call], QUICK, lambda exe: {"main": lambda x: x})
    assert "3 of 3 elements differ" in failure.message
    (failure,), _ = check_on([call], QUICK, lambda exe: {})
    assert failure.kind != "value"


def test_what_the_target_refuses() -> None:
    """It is told, and no failure."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), "float64")):
    return R.exp(x)
""")
    failures, refused = check_on([Call(mod, "main", [])], Where(Target.parse("vulkan"), True))
    assert not failures
    assert "float64" in refused


def test_another_processor_is_compiled_for() -> None:
    """Its kernels do not run here."""
    assert not [each for each in outcomes_on([3], Where(OTHER, True)) if each.failure]
    with pytest.raises(UsageError, match="do not run on this machine") as failed:
        next(fuzz(1, where=Where(OTHER)))
    assert "--compile-only" in str(failed.value.help)


def test_a_device_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(kind: str, _: int) -> None:
        raise UsageError("device", f"there is no {kind} device here", help="install one")

    monkeypatch.setattr("relaxpy.testing.on_device.runtime_of", missing)
    with pytest.raises(UsageError, match="there is no cuda device here"):
        next(fuzz(1, where=Where(Target.parse("cuda"))))
    assert dataclasses.replace(Where(Target.parse("cuda")), compile_only=True).check() is None  # type: ignore[func-returns-value]
