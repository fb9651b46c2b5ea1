"""A few random programs through build and virtual machine in the quick tests; tests/fuzz has the many."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.testing.agreement import disagreement
from relaxpy.testing.interpret import interpret
from relaxpy.testing.random_program import random_module


def test_chains_run_as_interpreted() -> None:
    """At several sizes, 0 and 1 included, from two threads."""
    mod, programs = random_module(range(900, 903), length=5)
    machine = relaxpy.VirtualMachine(relaxpy.build(mod))
    for program in programs:
        for sizes in program.bindings(5):
            args = program.arguments(sizes)
            try:
                wanted = interpret(mod, program.name, *args)
            except RuntimeCheckError as error:
                wanted = error

            def run(_: int, name: str = program.name, args: list = args) -> object:
                try:
                    return machine[name](*args)
                except RuntimeCheckError as error:
                    return error

            with ThreadPoolExecutor(2) as threads:
                for got in threads.map(run, range(4)):
                    assert disagreement(got, wanted, program.tolerance) == "", (
                        f"seed {program.seed} at {sizes}"
                    )
