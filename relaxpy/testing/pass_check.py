"""Tests a pass on random programs: the result must be well formed and compute the same values."""

from __future__ import annotations

from collections.abc import Iterable

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.testing.differential import Call
from relaxpy.testing.random_program import random_program
from relaxpy.transform.base import Pass


def check_pass(step: Pass, seeds: Iterable[int], before: Pass | None = None, sizes: int = 2) -> int:
    """Runs `step` (after the pass `before`) on the random programs of these seeds, with `sizes` bindings of their
    symbols each. Returns the number of programs that it changed.

    Raises: AssertionError, with both programs, if a value or an error differs afterwards, or if a second run changes
    the program again; VerifyError for a module that is not well formed.
    """
    changed = 0
    for seed in seeds:
        program = random_program(seed)
        mod = program.mod if before is None else before(program.mod)
        after = step(mod)
        if after is mod:
            continue
        changed += 1
        check_well_formed(after)
        assert step(after) is after, f"seed {seed}: a second run changes more\n{after.script()}"
        for binding in program.bindings(sizes):
            call = Call(mod, program.name, program.arguments(binding))
            problem = call.disagreement(call.run(after), after)
            assert not problem, f"seed {seed}: {problem}\n{mod.script()}\n{after.script()}"
    return changed
