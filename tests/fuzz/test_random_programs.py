"""Random dynamic programs, every way to run them against the interpreter (`relaxpy.testing.differential`), and the
programs that failed once.

`RELAXPY_FUZZ_COUNT` is how many programs are tried, `RELAXPY_FUZZ_SEED` the first; `relaxpy fuzz` has more. `make test`
has a third of two batches: one as users' programs are built, and one of declared bounds with passes in an order of its
own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import RelaxError
from relaxpy.ir.structural import assert_structural_equal, structural_equal
from relaxpy.testing.differential import Ways, check
from relaxpy.testing.fuzz import batches_of, calls_of, check_seeds
from relaxpy.testing.kept import call_of
from relaxpy.testing.random_program import random_program
from tests.sweeps import FULL, optimised, part, sweep

FIRST = int(os.environ.get("RELAXPY_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("RELAXPY_FUZZ_COUNT", "200" if FULL else "40"))
KEPT = sorted((Path(__file__).parent / "kept").glob("*.txt"))


@sweep(2)
@pytest.mark.parametrize("start", range(0, 40, 10))
def test_verified_interpreted_printed(start: int) -> None:
    """A random program is well formed, every value fits its annotation, and its text parses back to it."""
    for seed in range(FIRST + start, FIRST + start + 10):
        program = random_program(seed)
        check_well_formed(program.mod)
        for call in calls_of(program):
            expected = call.expected
            assert not isinstance(expected, RelaxError) or ": binding " not in expected.message
        assert_structural_equal(program.mod, relaxpy.parse(program.mod.script()))


def test_same_seed_same_program() -> None:
    assert structural_equal(random_program(7).mod, random_program(7).mod)
    assert random_program(7).mod.script() == random_program(7).mod.script()


def test_a_few_in_every_way() -> None:
    """Two programs, with all that `relaxpy fuzz` does."""
    assert not list(map(str, check_seeds([FIRST, FIRST + 1])))


@sweep(2)
@optimised
@sweep
@pytest.mark.slow
@pytest.mark.parametrize("seeds", batches_of(COUNT, FIRST), ids=lambda seeds: str(seeds.start))
def test_in_every_way(seeds: range) -> None:
    """`relaxpy fuzz --count 200`: a failing batch names its seeds."""
    failures = check_seeds(part(seeds, 16))
    assert not failures, "\n".join(
        f"{failure.call.label if failure.call else seeds}: {failure}" for failure in failures
    )


@sweep(2)
@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_kept(path: Path) -> None:
    """What failed once; the first in a fresh process, too, and all in a full run."""
    ways = Ways(fresh_process=FULL or path == KEPT[0])
    assert not list(map(str, check([call_of(path.read_text("utf-8"), path.name)], ways)))
