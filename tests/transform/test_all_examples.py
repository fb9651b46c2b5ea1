"""The Before and After of every pass compute the same numbers, for several sizes."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy.transform as transform
from relaxpy.backend.cpu.pack_weights import PackWeights
from relaxpy.backend.lift_graphs import LiftGraphs
from relaxpy.backend.place_values import PlaceValues
from relaxpy.backend.schedule_tensor_programs import ScheduleTensorPrograms
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.testing.agreement import disagreement
from relaxpy.testing.before_after import read_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.random_arguments import argument_of
from relaxpy.transform.base import Pass

BACKEND: tuple[type[Pass], ...] = (PackWeights, LiftGraphs, PlaceValues, ScheduleTensorPrograms)
PASSES = sorted(
    {
        *BACKEND,
        *(
            kind
            for kind in map(transform.__dict__.get, transform.__all__)
            if isinstance(kind, type)
            and issubclass(kind, Pass)
            and "Before" in (kind.__doc__ or "")
        ),
    },
    key=lambda kind: kind.__name__,
)


OTHERS = {
    "bind-params": "the arrays are in the context",
    "quantize-weights": "the caller passes codes",
    "cast-weights": "the caller passes weights of another dtype",
    "lift-packers": "the caller passes packed weights",
    "lift-transform-params": "the caller passes transformed weights",
    "check-tensor-programs": "the example is a tensor program alone",
    "rewrite-reshapes": "the example calls a library",
}
"""Passes whose two programs take other arguments, or are not run, and why. Their own tests compare numbers."""
LOOSE = {"annotate": 2e-2, "mixed-precision": 2e-2}
"""What passes may change of the largest number, which compute in fewer bits."""


def functions(mod: IRModule) -> dict[str, Function]:
    """The functions that callers may call."""
    return {
        name: f
        for name, f in mod.graph_functions.items()
        if "global_symbol" in f.attrs or name == "main"
    }


@pytest.mark.parametrize("name", sorted({kind.name for kind in PASSES} - OTHERS.keys()))
def test_before_and_after_compute_the_same(name: str) -> None:
    before, after = read_example(next(kind for kind in PASSES if kind.name == name))
    atol = LOOSE.get(name, 1e-6)
    found = 0
    for called, function in functions(before).items():
        other = after.graph_functions.get(called)
        if other is None or len(other.params) != len(function.params):
            continue
        symbols = sorted(free_sym_vars(p.annotation for p in function.params), key=str)
        for size in (3, 1, 8):
            sizes = dict.fromkeys(symbols, size)
            args = [argument_of(p.annotation, sizes, (i,)) for i, p in enumerate(function.params)]
            with np.errstate(all="ignore"):
                want, got = interpret(before, called, *args), interpret(after, called, *args)
            assert not disagreement(want, got, atol=atol)
            found += 1
    assert found > 0


def test_exceptions_are_passes() -> None:
    assert {*OTHERS, *LOOSE} <= {kind.name for kind in PASSES}
