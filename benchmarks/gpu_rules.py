"""Schedules for GPUs beside dlight's, TVM's schedules for GPUs: rules and launches of each case of `op_cases.py`.

    python benchmarks/gpu_rules.py           a table
    python benchmarks/gpu_rules.py --docs    also into docs/targets.md

Both get the same tensor programs: a case's after relaxpy's fusion. Ours are built, dlight's are scheduled for OpenCL.
Nothing runs, so no device is needed, and nothing is said about speed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.op_cases import Case, cases
from benchmarks.ops import case_module, key_of
from benchmarks.report import ROOT, markdown_table, replace_section

PAGE = ROOT / "docs" / "targets.md"
SECTION = "Beside dlight"
TARGET = "vulkan"
RULES = (
    "Matmul",
    "GEMV",
    "LowBatchGEMV",
    "RMSNorm",
    "Reduction",
    "GeneralReduction",
    "Transpose",
    "Fallback",
)
"""Of dlight, in the order in which they are tried."""
LOW_BATCH = 4
"""Rows that dlight's rule for few rows is for."""


@dataclass(frozen=True)
class Row:
    """A case: the rule of each of its programs, and the number of launches."""

    case: str
    rules: tuple[str, ...]
    launches: int
    peer_rules: tuple[str, ...]
    peer_launches: int | None
    """None where dlight fails."""

    @property
    def is_behind(self) -> bool:
        """Do we take more launches, or the rule for any program?"""
        from relaxpy.backend.gpu.backend import FALLBACK

        more = self.peer_launches is not None and self.launches > self.peer_launches
        return more or FALLBACK in self.rules


def row_of(case: Case) -> Row:
    """Build a case, and schedule its programs with dlight."""
    import relaxpy
    from relaxpy.build.pipeline import default_pipeline
    from relaxpy.runtime.bytecode import Kernel
    from relaxpy.target import Target
    from relaxpy.transform.base import PassContext

    # Only shapes matter, and memory that is not touched costs nothing.
    arrays = [np.zeros(given.shape, given.dtype) for given in case.inputs]
    mod, _ = case_module(case, arrays)
    executable = relaxpy.build(mod, TARGET)
    report = executable.build_report
    assert report is not None
    launches = sum(isinstance(i, Kernel) for code in executable.functions for i in code.code)
    target = Target.parse(TARGET)
    context = PassContext(target=target)
    fused = mod
    for each in default_pipeline(target).passes:
        if each.name == "place-values":
            break
        fused = each.run(fused, context)
    found = [peer(program.func) for program in fused.prim_funcs.values()]
    counts = [count for _, count in found]
    return Row(
        key_of(case),
        tuple(dict.fromkeys(time.rule for time in report.kernels)),
        launches,
        tuple(dict.fromkeys(rule for rule, _ in found)),
        None if None in counts else sum(count or 0 for count in counts),
    )


def peer(func: Any) -> tuple[str, int | None]:
    """The first rule of dlight that applies to a program, and its launches; None where it fails."""
    import tvm
    from tvm.s_tir import dlight

    target = tvm.target.Target("opencl")
    named = func.with_attr({"global_symbol": "main", "tirx.noalias": True, "s_tir": True})
    for name in RULES:
        rule = getattr(dlight.gpu, name)
        try:
            with target:
                made = (rule(LOW_BATCH) if name == "LowBatchGEMV" else rule()).apply(
                    named, target, False
                )
        except Exception:
            # Programs that a rule refuses by an exception are tried with the next one, as by an author who lists rules.
            continue
        if made is None:
            continue
        sch = made[0] if isinstance(made, list) else made
        return name, len(re.findall(r'blockIdx\.x"', sch.mod["main"].script()))
    return "none", None


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    return markdown_table(
        ("case", "rule", "launches", "dlight's rule", "launches"),
        [
            (
                row.case.replace("|", "/"),
                ", ".join(row.rules),
                str(row.launches),
                ", ".join(row.peer_rules),
                "fails" if row.peer_launches is None else str(row.peer_launches),
            )
            for row in rows
        ],
        "llrlr",
    )


def page_section(rows: Sequence[Row]) -> str:
    """The section of docs/targets.md."""
    behind = [row for row in rows if row.is_behind]
    says = "on none" if not behind else f"on {len(behind)}"
    return (
        f"`python benchmarks/gpu_rules.py --docs` builds the {len(rows)} cases of `benchmarks/op_cases.py` for "
        f"{TARGET}, and schedules the same tensor programs with the rules of dlight in TVM's wheel (for OpenCL). We "
        f"have more launches, or only the rule for any program (`threads`), {says} of them. No device ran."
        f"\n\n{table(rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--docs", action="store_true", help="also write docs/targets.md")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose key matches")
    given = parser.parse_args()
    rows: list[Row] = []
    for case in cases():
        if not re.search(given.only, key_of(case)):
            continue
        rows.append(row_of(case))
        row = rows[-1]
        print(
            row.case,
            row.rules,
            row.launches,
            row.peer_rules,
            row.peer_launches,
            "behind" * row.is_behind,
            flush=True,
        )
    if given.docs:
        if given.only:
            parser.error("--docs needs all cases")
        replace_section(SECTION, page_section(rows), PAGE)


if __name__ == "__main__":
    main()
