"""The machine in JavaScript, in node: the suite of cases that every machine passes, and its tables beside Python's."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.runtime import bytecode, shape_heap
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.builtins import FUNCTIONS
from relaxpy.runtime.bytecode import INSTRUCTIONS
from relaxpy.web.export import builtins
from tests.machine.suite import FOLDER
from tests.web.support import needs_node, run_node

ROOT = Path(__file__).parents[2]


@cache
def outcome() -> dict[str, Any]:
    return json.loads(run_node("suite.mjs", "", str(ROOT / FOLDER)))


@needs_node
def test_the_suite() -> None:
    """Formulas on int64, instructions, builtins: with the results and the errors of the machine in Python."""
    found = outcome()
    assert not found["failed"], "\n".join(found["problems"])
    assert found["count"] > 40_000


@needs_node
def test_the_fields_of_the_bytecode() -> None:
    """The classes have the fields of `relaxpy.runtime.bytecode`, in order; each instruction is there."""
    found = outcome()["fields"]
    assert found.keys() >= {each.__name__ for each in INSTRUCTIONS}
    for name, known in found.items():
        assert known == [field.name for field in fields(getattr(bytecode, name))], name


@needs_node
def test_the_builtins_are_those_that_the_exporter_reads() -> None:
    assert set(outcome()["builtins"]) == builtins()


def test_the_builtins_are_ours() -> None:
    """Each is a function of the machine in Python; what is not there is refused by name."""
    missing = {*FUNCTIONS, *shape_heap.FUNCTIONS} - builtins()
    assert builtins() <= {*FUNCTIONS, *shape_heap.FUNCTIONS}
    assert missing == {
        "relaxpy.all_class_non_max_suppression",
        "relaxpy.check_pages",
        *(
            f"vm.builtin.check_{kind}_info"
            for kind in ("tensor", "shape", "prim_value", "tuple", "func")
        ),
    }


@needs_node
def test_memory_depth_and_calls_at_once() -> None:
    run_node("check.mjs")


@needs_node
def test_narrow_floats() -> None:
    """All codes have the numbers of numpy and ml_dtypes; numbers are rounded to the nearest, ties to even."""
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [
            rng.standard_normal(4000) * np.exp2(rng.uniform(-150, 140, 4000)),
            [0.0, -0.0, np.inf, -np.inf, np.nan],
        ]
    )
    ties = (
        np.arange(1 << 12, dtype=np.float64) / 2048 + 1
    )  # between numbers of float16 and bfloat16
    values = np.concatenate([values, ties, -ties, ties * 2.0**-24, ties * 65504 / 2])
    found = json.loads(
        run_node(
            "narrow.mjs", json.dumps([repr(float(x)).replace("inf", "Infinity") for x in values])
        )
    )
    for name, texts in found["decoded"].items():
        kind = dtypes.to_numpy(name)
        codes = np.arange(1 << (8 * kind.itemsize)).astype(f"u{kind.itemsize}").view(kind)
        with np.errstate(invalid="ignore"):
            wanted = codes.astype(np.float64)
        np.testing.assert_array_equal(np.array([float(x) for x in texts]), wanted, name)
    assert len(found["decoded"]) == 10
    for name, codes in found["encoded"].items():
        kind = dtypes.to_numpy(name)
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
            # ml_dtypes rounds a float64 to float32 first.
            exact = np.ones(len(values), bool) if name == "float16" else values == single
            wanted = (values if name == "float16" else single).astype(kind)
        got = np.array(codes, np.uint16).view(kind)
        np.testing.assert_array_equal(got[exact].astype("f4"), wanted[exact].astype("f4"), name)
