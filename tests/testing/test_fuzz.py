"""Many programs, in processes that may die."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from relaxpy.errors import UsageError
from relaxpy.testing import fuzz as module
from relaxpy.testing.differential import Failure
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
