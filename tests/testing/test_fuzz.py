"""Many programs, in processes that may die."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.testing import fuzz as module
from relaxpy.testing.differential import Call, Failure
from relaxpy.testing.fuzz import Outcome, fuzz


class Workers:
    """Stands for the processes: answers as it is told."""

    def __init__(self, wrong: set[int]) -> None:
        self.wrong = wrong

    def __call__(self, worker: Any, what: str, argument: Any, seconds: float) -> Any:
        if what == "shrink":
            failure = Failure("vm", "value", "small")
            return Outcome(argument, failure, "program")
        if 13 in argument:
            return "the process ended with code -11"
        return [Failure("vm", "value", "large")] if self.wrong & set(argument) else []


def test_the_seed_of_a_failure_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that fails is tried seed by seed; what ends the process is told, too."""
    answers = Workers({4})
    monkeypatch.setattr(module._Worker, "ask", lambda self, *args: answers(self, *args))
    outcomes = {o.seed: o for o in fuzz(count=20, seed=0)}
    assert sorted(outcomes) == list(range(20))
    failed = {seed: str(o.failure) for seed, o in outcomes.items() if o.failure}
    assert failed == {4: "vm: small", 13: "build: the process ended with code -11"}
    assert outcomes[4].program == "program"


def test_stops_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Workers({4})
    monkeypatch.setattr(module._Worker, "ask", lambda self, *args: answers(self, *args))
    assert len(list(fuzz(count=100, keep_going=False))) == module.BATCH


CONTRADICTED = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def five(x: R.Tensor(("k",), "float32")):
        scale, zero = R.const([0.5] * 5, "float32"), R.const([0] * 5, "int8")
        return R.quantize(x, scale, zero, axis=0)

    @R.function
    def free(x: R.Tensor(("k",), "float32")):
        return R.exp(x)
""")


def test_bounds_that_contradict_the_program_are_left_out() -> None:
    """`k` is 3 in the call, and must be 5: to declare that it is at most 3 makes another program."""
    x = np.zeros(3, np.float32)
    calls = [Call(CONTRADICTED, "five", [x]), Call(CONTRADICTED, "free", [x])]
    mod = module.bounded(calls)[0].mod
    assert "tir_var_upper_bound" not in mod.graph_functions["five"].attrs
    assert mod.graph_functions["free"].attrs["tir_var_upper_bound"] == {"k": 3}


def test_wrong_numbers() -> None:
    with pytest.raises(UsageError):
        next(fuzz(count=1, jobs=0))


def _dies(_: Any) -> None:
    os._exit(3)


def _never_ends(_: Any) -> None:
    time.sleep(60)


@pytest.mark.parametrize(
    ("serve", "words", "seconds"),
    [(_dies, "ended with code 3", 60), (_never_ends, "no end after 1 s", 1)],
)
def test_a_process_that_gives_no_answer(
    monkeypatch: pytest.MonkeyPatch, serve: Any, words: str, seconds: float
) -> None:
    monkeypatch.setattr(module, "_serve", serve)
    worker = module._Worker()
    try:
        assert words in worker.ask("check", [0], seconds)
        assert worker.process is None
    finally:
        worker.stop()
