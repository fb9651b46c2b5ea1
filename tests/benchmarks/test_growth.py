"""The work of parser, printer, verifier, passes and schedules on nested programs grows with a program, and not with its square: counted in
calls of Python functions, which are the same on every machine."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import relaxpy
from benchmarks.program_shapes import deep_shapes
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir.recursion import deep_recursion
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import PassContext

FEW, MANY = 20, 40
GROWTH = 2.4
"""The most that the number of calls may grow by from `FEW` to `MANY`."""


def calls_for(name: str, count: int) -> int:
    found = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal found
        found += event == "call"

    text = deep_shapes()[name](count)
    context = PassContext(target=relaxpy.Target.host())
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        mod = relaxpy.parse(text)
        mod.script()
        check_well_formed(mod)
        with deep_recursion():
            for phase in default_pipeline().phases:
                for each in phase.passes:
                    mod = each.run(mod, context)
        for program in mod.prim_funcs.values():
            if isinstance(program, PrimFunc):
                schedule_kernel(program.func, relaxpy.Target.host())
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize(
    "name",
    [
        "tuple, deep",
        "closures, deep",
        "loops, deep",
    ],
)
def test_calls_grow_with_the_program(name: str) -> None:
    calls_for(name, 5)  # imports, and what is made once
    few, many = calls_for(name, FEW), calls_for(name, MANY)
    assert many < GROWTH * few, (few, many)
