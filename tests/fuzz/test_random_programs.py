"""Random dynamic programs: verified, interpreted at several sizes, printed and parsed; built and
run beside the interpreter.

`RELAXPY_FUZZ_COUNT` is how many programs are built (they cost about a second each);
`RELAXPY_FUZZ_SEED` the first.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import RuntimeCheckError
from relaxpy.ir.structural import structural_equal
from relaxpy.testing.agreement import disagreement
from relaxpy.testing.interpret import interpret
from relaxpy.testing.random_program import Program, random_module, random_program

FIRST = int(os.environ.get("RELAXPY_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("RELAXPY_FUZZ_COUNT", "20"))
BATCH = 10
"""Programs that are compiled together."""


def outcome(program: Program, args: list[Any]) -> Any:
    """What the interpreter gives, or the error that it raises."""
    try:
        return interpret(program.mod, program.name, *args)
    except RuntimeCheckError as error:
        return error


@pytest.mark.parametrize("start", range(0, 100, 25))
def test_verified_interpreted_printed(start: int) -> None:
    """A random program is well formed, every value fits its annotation, and its text parses back
    to it."""
    for seed in range(FIRST + start, FIRST + start + 25):
        program = random_program(seed)
        check_well_formed(program.mod)
        for sizes in program.bindings():
            outcome(program, program.arguments(sizes))
        text = program.mod.script()
        assert structural_equal(program.mod, relaxpy.parse(text)), f"seed {seed}:\n{text}"


def test_same_seed_same_program() -> None:
    assert structural_equal(random_program(7).mod, random_program(7).mod)
    assert random_program(7).mod.script() == random_program(7).mod.script()


@pytest.mark.slow
@pytest.mark.parametrize("start", range(FIRST, FIRST + COUNT, BATCH))
def test_built_and_run(start: int) -> None:
    """Built once, run at several sizes from two threads: what the interpreter gives, errors where
    it gives one."""
    mod, programs = random_module(range(start, min(start + BATCH, FIRST + COUNT)))
    machine = relaxpy.VirtualMachine(relaxpy.build(mod))
    jobs = [(p, p.arguments(sizes), sizes) for p in programs for sizes in p.bindings()]
    expected = [outcome(program, args) for program, args, _ in jobs]

    def run(order: int) -> list[str]:
        found = []
        for (program, args, sizes), want in list(zip(jobs, expected, strict=True))[::order]:
            try:
                got = machine[program.name](*args)
            except RuntimeCheckError as error:
                got = error
            problem = disagreement(got, want, program.tolerance)
            if problem:
                found.append(f"seed {program.seed} at {sizes}: {problem}")
        return found

    with ThreadPoolExecutor(2) as threads:
        problems = [p for found in threads.map(run, (1, -1)) for p in found]
    assert not problems, "\n".join(problems)
