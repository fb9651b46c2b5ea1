"""Pipelines made of others: passes put before and after, replaced, left out, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.ir.module import IRModule
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.phases import Phase, Pipeline


@dataclass(frozen=True)
class First(Pass):
    name: ClassVar[str] = "first"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return mod


@dataclass(frozen=True)
class Second(First):
    name: ClassVar[str] = "second"


@dataclass(frozen=True)
class Mine(First):
    name: ClassVar[str] = "mine"


PIPELINE = Pipeline(
    phases=(
        Phase("one", (First(), Second(), First())),
        Phase("none", ()),
        Phase("two", (Second(),)),
    )
)


def names(pipeline: Pipeline) -> str:
    """The phases with their passes, as text."""
    return "; ".join(" ".join(step.name for step in phase.passes) for phase in pipeline.phases)


@pytest.mark.parametrize(
    ("place", "before", "after"),
    [
        ("first", "mine first second first; ; second", "first second first mine; ; second"),
        ("second", "first mine second first; ; second", "first second first; ; second mine"),
        ("one", "mine first second first; ; second", "first second first mine; ; second"),
        ("none", "first second first; mine; second", "first second first; mine; second"),
        ("two", "first second first; ; mine second", "first second first; ; second mine"),
    ],
)
def test_before_and_after_a_pass_or_phase(place: str, before: str, after: str) -> None:
    assert names(PIPELINE.before(place, Mine())) == before
    assert names(PIPELINE.after(place, Mine())) == after


@pytest.mark.parametrize(
    ("place", "until", "through"),
    [
        ("first", "", "first second first"),
        ("second", "first", "first second first; ; second"),
        ("one", "", "first second first"),
        ("none", "first second first; ", "first second first; "),
        ("two", "first second first; ; ", "first second first; ; second"),
    ],
)
def test_a_pipeline_up_to_a_pass_or_phase(place: str, until: str, through: str) -> None:
    """Before the first of a name, and behind the last."""
    assert names(PIPELINE.until(place)) == until
    assert names(PIPELINE.through(place)) == through


def test_several_stay_in_order() -> None:
    assert (
        names(PIPELINE.before("none", Mine(), First())) == "first second first; mine first; second"
    )


@pytest.mark.parametrize(
    ("place", "want"),
    [
        ("first", "mine second mine; ; second"),
        ("second", "first mine first; ; mine"),
        ("one", "mine; ; second"),
        ("none", "first second first; mine; second"),
    ],
)
def test_replaced(place: str, want: str) -> None:
    assert names(PIPELINE.replace(place, Mine())) == want


def test_without() -> None:
    assert names(PIPELINE.without("first", "two")) == "second; ; "
    assert names(PIPELINE.without()) == names(PIPELINE)


@pytest.mark.parametrize("method", ["before", "after", "replace", "without"])
def test_an_unknown_name_is_refused(method: str) -> None:
    with pytest.raises(UsageError, match="the pipeline has no pass 'frist'") as error:
        getattr(PIPELINE, method)("frist")
    assert error.value.code == "unknown-pass"
    assert error.value.help == "did you mean 'first'?"
    with pytest.raises(UsageError) as error:
        getattr(PIPELINE, method)("x")
    assert error.value.help == "it has first, second, one, none, two"


def test_it_runs_in_order_and_tells_the_instruments() -> None:
    seen: list[tuple[int, str]] = []
    ctx = PassContext(instruments=[lambda number, step, *_: seen.append((number, step.name))])
    mod = relaxpy.IRModule({})
    assert PIPELINE.run(mod, ctx) is mod
    assert seen == [(0, "first"), (1, "second"), (2, "first"), (3, "second")]
