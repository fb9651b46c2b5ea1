"""A part of the damaged and hostile files; `make test-onnx-files` opens all of them. In a process of its own, since each
file gets a copy of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.onnx import damaged, hostile
from tests.sweeps import FULL


def test_files_end_in_errors_or_right_numbers(tmp_path: Path) -> None:
    every = "1" if FULL else "29"
    found = subprocess.run(
        [sys.executable, "-m", "tests.onnx.outcomes", str(tmp_path / "files.jsonl"), every],
        capture_output=True,
        text=True,
    )
    assert not found.returncode, found.stdout[-5000:] + found.stderr[-2000:]


def test_there_are_many_files() -> None:
    assert len(damaged.cases()) == 300
    assert len(hostile.cases()) > 60
    assert {name.split(" ")[2] for name in damaged.cases()} == set(damaged.DAMAGES)


def test_files_are_the_same_in_each_run(tmp_path: Path) -> None:
    written: list[bytes] = []
    for run in ("first", "second"):
        for name, write in list(damaged.cases().items())[::29]:
            folder = tmp_path / run / name
            folder.mkdir(parents=True)
            written.append(write(folder).read_bytes())
    half = len(written) // 2
    assert written[:half] == written[half:]
