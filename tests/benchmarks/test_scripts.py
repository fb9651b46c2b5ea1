"""Benchmarks are scripts: each finds the others and relaxpy, whatever folder it is run in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = [path for path in sorted(FOLDER.glob("*.py")) if "__main__" in path.read_text()]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_finds_the_others(path: Path) -> None:
    text = path.read_text()
    first = re.search(r"^ *from benchmarks\.", text, re.MULTILINE)
    added = re.search(r"^sys\.path\.(insert|append)\(", text, re.MULTILINE)
    assert first is None or (added is not None and added.start() < first.start())
