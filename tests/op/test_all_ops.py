"""Every operator against its samples: deduction, reference and tensor program must say the same. The compiled programs
are in `tests/e2e/test_operator_sweeps.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from relaxpy.op.base import Op, Sample
from relaxpy.testing.op_check import (
    computed_by_loops,
    covered,
    decomposed,
    deduced_as_computed,
    deduced_of_less,
    explained,
    printed_and_parsed,
    refused,
    shown,
)
from relaxpy.testing.op_samples import samples
from tests.op.support import CLASSES, COMPILED, DECOMPOSED
from tests.sweeps import part, sweep

each_operator = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
each_compiled = pytest.mark.parametrize("cls", COMPILED, ids=lambda cls: cls.name)
both = pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])


def right(cls: type[Op]) -> list[Sample]:
    """The samples of an operator that are to be accepted."""
    return [s for s in samples(cls.name) if not s.code]


def with_sizes(cls: type[Op], symbolic: bool) -> list[Sample]:
    """The samples to try with symbols: all that have some. And with known sizes: those that have none, and of the others
    a part, unless the sweep is in full."""
    both_ways = [s for s in right(cls) if s.dims]
    if symbolic:
        return both_ways
    return [*(s for s in right(cls) if not s.dims), *part(both_ways, 4)]


def for_all(found: Iterable[Sample], check: Callable[[Sample], None]) -> None:
    """`check` of every sample; one failure that names all that fail. (With a test for each sample there
    would be six thousand more.)"""
    failed: list[str] = []
    for s in found:
        try:
            check(s)
        except Exception as e:
            failed.append(f"{shown(s)}: {explained(e)}")
    assert not failed, f"{len(failed)} samples\n" + "\n\n".join(failed[:5])


@each_operator
def test_samples_cover(cls: type[Op]) -> None:
    """Each operator has right samples; each that takes tensors has one with symbols."""
    covered(cls)


@sweep(2)
@each_operator
@both
def test_deduction_is_the_reference(cls: type[Op], symbolic: bool) -> None:
    for_all(right(cls), lambda s: deduced_as_computed(s, symbolic))


@sweep(4)
@each_operator
def test_unknown_shapes(cls: type[Op]) -> None:
    for_all(part(right(cls), 12), deduced_of_less)


@each_operator
def test_wrong_calls_are_refused(cls: type[Op]) -> None:
    for_all((s for s in samples(cls.name) if s.code), refused)


@sweep(4)
@each_compiled
@both
def test_programs_as_python_compute_the_reference(cls: type[Op], symbolic: bool) -> None:
    """A half of the samples, unless the sweep is in full."""
    for_all(part(with_sizes(cls, symbolic), 2), lambda s: computed_by_loops(s, symbolic))


@pytest.mark.parametrize("cls", DECOMPOSED, ids=lambda cls: cls.name)
@both
def test_calls_of_others_compute_the_reference(cls: type[Op], symbolic: bool) -> None:
    for_all(with_sizes(cls, symbolic), lambda s: decomposed(s, symbolic))


@sweep(2)
@each_operator
@both
def test_print_and_parse(cls: type[Op], symbolic: bool) -> None:
    for_all(part(with_sizes(cls, symbolic), 2), lambda s: printed_and_parsed(s, symbolic))
