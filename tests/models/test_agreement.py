"""Quantised families beside transformers on the rounded weights: a part of the table of tests/models/agreement.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxpy.ir.module import IRModule
from tests.models.agreement import SCHEMES, agreement, bound, table
from tests.models.family_checkpoints import CASES
from tests.sweeps import FULL, sweep

PARTS: dict[str, tuple[str, ...]] = {
    "gpt_oss": ("W8A32",),
    "gemma2": ("W4A8",),
    "gpt2": ("int8 pages",),
}
"""Schemes of some families; all of all in a full run."""
EXACT = ("W4A32",), ("W8A32",), ("W3A32",)
"""Of these, those that round weights only: logits are as near to transformers' as in float32."""


@sweep(2)
@pytest.mark.parametrize("name", CASES if FULL else PARTS)
def test_within_the_bounds(name: str, tmp_path: Path, modules_round_trip: list[IRModule]) -> None:
    schemes = tuple(SCHEMES) if FULL else PARTS[name]
    target = "llvm" if FULL else "llvm -opt-level=0"
    for scheme, phases, largest in agreement(name, tmp_path, schemes, target, True):
        for phase, difference in phases.items():
            assert difference <= bound(name, scheme, largest), (scheme, phase)
    if not FULL:
        modules_round_trip.clear()  # tests/models/test_families.py has them


def test_the_table() -> None:
    phases = {"prefill": 1e-6, "chunks": 2e-6, "decode": 3e-6, "ragged": 4e-6}
    found = {each: (phases, 3.25) for each in SCHEMES}
    *_, row = table({"llama": found}).splitlines()
    assert row == "| llama | 1e-06 | 2e-06 | 3e-06 | 4e-06 |" + " 4e-06 |" * 6 + " 3.2 |"
