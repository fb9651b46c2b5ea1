"""The suite that defines the machine: complete, up to date, and passed by ours."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from relaxpy.runtime import builtins, shape_heap
from relaxpy.runtime.bytecode import INSTRUCTIONS, INT_OPS
from tests.machine.formulas import COUNT, DIVISION, OVERFLOW
from tests.machine.machine import (
    check_builtins,
    check_formulas,
    check_instructions,
)
from tests.machine.suite import FOLDER, make_suite, text_of
from tests.sweeps import part, sweep

FILES = Path(__file__).parents[2] / FOLDER


@cache
def suite(name: str) -> dict[str, Any]:
    return json.loads((FILES / f"{name}.json").read_text("utf-8"))


def test_the_files_are_up_to_date() -> None:
    for name, content in make_suite().items():
        same = (FILES / name).read_text("utf-8") == text_of(content)
        assert same, f"{name}: run python -m tests.machine --write"


def test_every_instruction_and_function_has_a_case() -> None:
    used = {name for case in suite("instructions")["cases"] for name in case["uses"]}
    assert used == {each.__name__ for each in INSTRUCTIONS}
    named = {case["builtin"] for case in suite("builtins")["cases"]}
    assert named == {*builtins.FUNCTIONS, *shape_heap.FUNCTIONS}


def test_the_formulas_have_everything() -> None:
    formulas = suite("formulas")
    assert (
        len(formulas["formulas"])
        == COUNT
        == len({json.dumps(row[0]) for row in formulas["formulas"]})
    )
    text = json.dumps(formulas["formulas"])
    assert all(f'["{op}", ' in text for op in INT_OPS)
    results = [result for row in formulas["formulas"] for _, result in row[1:]]
    for failure in (OVERFLOW, DIVISION):
        assert results.count(failure) > len(results) // 50
    assert len({str(result) for result in results}) > 4000


def test_numbers_survive_float64() -> None:
    """A reader that knows only float64, as JavaScript, loses nothing."""
    for path in sorted(FILES.glob("*.json")):
        text = path.read_text("utf-8")
        assert json.loads(text, parse_int=lambda digits: int(float(digits))) == json.loads(text)


def test_our_machine_passes_the_instructions() -> None:
    assert list(check_instructions(suite("instructions"))) == []


def test_our_machine_passes_the_functions() -> None:
    assert list(check_builtins(suite("builtins"))) == []


@sweep
def test_our_machine_passes_the_formulas() -> None:
    whole = suite("formulas")
    some = {**whole, "formulas": part(whole["formulas"], 20)}
    assert list(check_formulas(some, every=10)) == []


def test_a_wrong_result_is_seen() -> None:
    cases = json.loads(json.dumps(suite("instructions")))
    first = next(case for case in cases["cases"] if case["name"] == "eval: constant slots")
    first["runs"][0]["result"] = {"int": -7}
    assert [problem.case for problem in check_instructions({**cases, "cases": [first]})] == [
        first["name"]
    ]
    wrong = {**suite("formulas"), "formulas": [[["add", "h0", 1], [0, 7]]], "pairs": {}}
    assert len(list(check_formulas(wrong))) == 3  # the evaluator, and our machine in two ways
