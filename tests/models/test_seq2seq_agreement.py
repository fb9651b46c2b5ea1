"""Models with an encoder beside transformers: a part of the table of tests/models/seq2seq_agreement.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.seq2seq_agreement import CASES, SCHEMES, agreement, table, within
from tests.sweeps import FULL


@pytest.mark.parametrize("name", CASES if FULL else ["t5"])
def test_within_the_bounds(name: str, tmp_path: Path) -> None:
    """All families in all schemes in a full run; else one whose weights are quantised: its biases by distance are not."""
    schemes = tuple(SCHEMES) if FULL else ("int8",)
    target = "llvm" if FULL else "llvm -opt-level=0"
    for scheme, phases, largest, texts in agreement(name, tmp_path, schemes, target):
        assert within(scheme, phases, largest, texts), (scheme, phases, largest, texts)


def test_the_table() -> None:
    phases = {"encode": 1e-6, "prompt": 2e-6, "decode": 3e-6, "ragged": 4e-6}
    texts = ["7/7", "7/7", "6/7", "7/7", "7/7"]
    *_, row = table({"t5": {"fp32": (phases, 3.25, texts)}}).splitlines()
    figures = "1e-06 | 2e-06 | 3e-06 | 4e-06 | 3.2"
    assert row == f"| t5 | fp32 | {figures} | {' | '.join(texts)} |"
    assert not within("fp32", phases, 3.25, texts)
    assert within("bf16", phases, 3.25, texts)
    assert not within("fp32", {**phases, "decode": 3e-5}, 3.25, ["7/7"])
