"""Pipelines made of others: passes put before and after, replaced, left out, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import UsageError
from relaxpy.ir.module import IRModule
from relaxpy.transform.base import Pass, PassContext, Sequential
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


# Levels


@dataclass(frozen=True)
class Needed(First):
    name: ClassVar[str] = "needed"
    mandatory: ClassVar[bool] = True


@dataclass(frozen=True)
class Fusing(First):
    name: ClassVar[str] = "fusing"
    level: ClassVar[int] = 1


@dataclass(frozen=True)
class Merging(First):
    name: ClassVar[str] = "merging"
    level: ClassVar[int] = 2
    prerequisites: ClassVar[tuple[str, ...]] = ("fusing",)


@dataclass(frozen=True)
class Best(First):
    name: ClassVar[str] = "best"
    level: ClassVar[int] = 3


LEVELLED = Pipeline(
    phases=(Phase("one", (Needed(), Fusing(), Merging())), Phase("two", (Best(), Mine())))
)


@pytest.mark.parametrize(
    ("level", "left"),
    [
        (0, "needed; mine"),
        (1, "needed fusing; mine"),
        (2, "needed fusing merging; mine"),
        (3, "needed fusing merging; best mine"),
    ],
)
def test_levels(level: int, left: str) -> None:
    """Passes of the level and below are left, and those that were inserted."""
    assert names(LEVELLED.at_level(level)) == left


def test_required_and_disabled_passes() -> None:
    assert names(LEVELLED.at_level(0, required=["best"])) == "needed; best mine"
    assert names(LEVELLED.at_level(0, required=["merging"])) == "needed fusing merging; mine"
    assert names(LEVELLED.at_level(3, disabled=["best", "mine"])) == "needed fusing merging; "


@pytest.mark.parametrize(
    ("level", "options", "code", "match"),
    [
        (4, {}, "opt-level", "from 0 to 3, got 4"),
        (-1, {}, "opt-level", "got -1"),
        (3, {"disabled": ["needed"]}, "mandatory-pass", "needed cannot be disabled"),
        (3, {"disabled": ["fusing"]}, "pass-order", "merging must run after fusing, which is dis"),
        (0, {"required": ["bets"]}, "unknown-pass", "no pass 'bets'"),
        (0, {"disabled": ["one"]}, "unknown-pass", "no pass 'one'"),
    ],
)
def test_wrong_levels(level: int, options: dict[str, list[str]], code: str, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        LEVELLED.at_level(level, **options)
    assert caught.value.code == code


def test_an_order_that_breaks_a_prerequisite() -> None:
    """The error says where the pipeline runs, what is wrong, and what to do."""
    wrong = LEVELLED.without("fusing").after("merging", Fusing())
    mod = relaxpy.parse("@R.function\ndef main(x: R.Tensor((2,), 'float32')):\n    return x")
    with pytest.raises(UsageError, match="merging runs before fusing") as caught:
        wrong(mod)
    error = caught.value
    assert error.code == "pass-order"
    assert error.span is not None
    assert error.span.file == __file__
    assert 'without("merging").after("fusing", Merging(…))' in (error.help or "")
    assert names(LEVELLED.without("fusing")(mod) and LEVELLED) == names(
        LEVELLED
    )  # it may be left out


@pytest.mark.parametrize("target", ["llvm", "opencl", "cuda -arch=sm_90", "webgpu"])
def test_every_pass_of_a_pipeline_has_a_level(target: str) -> None:
    """Either programs are not compiled without it, or it is of a level; the order has what each needs before it."""
    pipeline = default_pipeline(target)
    assert {s.name for s in pipeline.passes if s.mandatory == (s.level > 0)} == set()
    pipeline.check_order()
    known = {step.name for step in pipeline.passes}
    assert {name for s in pipeline.passes for name in s.prerequisites} <= known
    for level in (0, 1, 2, 3):
        pipeline.at_level(level).check_order()


def test_a_build_of_each_level() -> None:
    """The paper's: fusion makes kernels fewer, folding takes what is constant."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    a = R.add(R.const([1.0, 2, 3, 4], "float32"), R.const(0.5, "float32"))
    b = R.exp(x)
    c = R.multiply(b, a)
    d = R.exp(x)
    e = R.add(c, d)
    return e
""")
    data = np.random.default_rng(0).random((3, 4), np.float32)
    want = np.exp(data) * np.array([1.5, 2.5, 3.5, 4.5], np.float32) + np.exp(data)
    counts: list[int] = []
    for level in (0, 1, 2, 3):
        exe = relaxpy.build(mod, "llvm -opt-level=0", opt_level=level)
        counts.append(len(exe.as_text().split(")\n")))
        got = relaxpy.VirtualMachine(exe)["main"](data).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5)
    assert counts == sorted(counts, reverse=True)
    with pytest.raises(UsageError, match="those of a Pipeline"):
        relaxpy.build(mod, pipeline=Sequential((First(),)), opt_level=1)
    with pytest.raises(UsageError, match="legalize-ops cannot be disabled"):
        relaxpy.build(mod, disabled_passes=["legalize-ops"])
