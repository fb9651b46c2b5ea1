"""The files of the suite: their contents and their folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from relaxpy.runtime.bytecode import INSTRUCTIONS
from relaxpy.runtime.codec import encode, exact_json
from tests.machine.builtins import builtin_cases
from tests.machine.cases import KERNELS, LIBRARIES, NAMES, Case, Run
from tests.machine.formulas import make_formulas
from tests.machine.instructions import instruction_cases
from tests.machine.values import to_json

FOLDER = "tests/machine"
"""The folder of the files in the repository."""


def make_suite() -> dict[str, Any]:
    """File name → its contents as JSON."""
    return {
        "formulas.json": make_formulas(),
        "instructions.json": {
            "format": 1,
            "kernels": list(NAMES),
            "programs": KERNELS,
            "libraries": LIBRARIES,
            "cases": list(map(_case, instruction_cases())),
        },
        "builtins.json": {
            "format": 1,
            "cases": [
                {
                    "builtin": each.builtin,
                    **_run(Run(each.args, each.result, each.error, each.after)),
                }
                | ({} if each.output is None else {"output": each.output})
                for each in builtin_cases()
            ],
        },
    }


def _case(case: Case) -> dict[str, Any]:
    used = {type(instr).__name__ for code in case.functions for instr in code.code}
    found: dict[str, Any] = {
        "name": case.name,
        "uses": [each.__name__ for each in INSTRUCTIONS if each.__name__ in used],
        "functions": exact_json(encode(case.functions)),
    }
    if case.constants:
        found["constants"] = [to_json(array)["tensor"] for array in case.constants]
    if case.packed:
        found["packed"] = list(case.packed)
    if case.libraries:
        found["libraries"] = list(case.libraries)
    if len(case.slots) > 1:
        found["slots"] = encode(case.slots)
    if case.refused:
        found["refused"] = case.refused
    else:
        found["runs"] = list(map(_run, case.runs))
    return found


def _run(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"args": list(map(to_json, run.args))}
    if run.error:
        found["error"] = run.error
    else:
        found["result"] = to_json(run.result)
    if run.after is not None:
        found["after"] = list(map(to_json, run.after))
    return found


def text_of(content: dict[str, Any]) -> str:
    """The text of a file, with one case per line, so that diffs are readable."""
    parts: list[str] = []
    for key, value in content.items():
        if isinstance(value, list) and len(value) > 20:
            rows = ",\n".join(json.dumps(item, separators=(",", ":")) for item in value)
            parts.append(f"{json.dumps(key)}:[\n{rows}\n]")
        else:
            parts.append(f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}")
    return "{" + ",\n".join(parts) + "}\n"


def write_suite(folder: Path) -> None:
    """Writes the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in make_suite().items():
        (folder / name).write_text(text_of(content), encoding="utf-8")
