"""Records of families: what is read is what was written, damaged files say where, and writers lose nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relaxpy.backend.cuda.backend import CudaBackend
from relaxpy.errors import UsageError
from relaxpy.runtime.tuned import (
    FamilyRecord,
    Measurement,
    mean_ratio,
    read_families,
    write_families,
)
from tests.odd_files import ODD_FILES

MEASURED = (Measurement({"n": 1}, 4.0, 2.0, 0.5), Measurement({"n": 64}, 9.0, 18.0))
RECORD = FamilyRecord(
    "cuda -arch=sm_90", "matmul a", {"few": 8, "wide_tile": "64x64x32x2"}, "linear", "a GPU", "1", MEASURED
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tuned.json"
    assert read_families(path) == {}
    write_families(path, {RECORD.key: RECORD})
    assert read_families(path) == {RECORD.key: RECORD}
    other = FamilyRecord("cuda -arch=sm_80", "matmul a", {}, "linear", "é", "2")
    write_families(path, {other.key: other})
    assert [*read_families(path)] == [other.key, RECORD.key]
    text = path.read_text()
    write_families(path, {})
    assert path.read_text() == text


def test_titles_and_ratios() -> None:
    assert RECORD.title == "matmul a, measured on a GPU: few=8, wide_tile=64x64x32x2"
    assert RECORD.ratio == pytest.approx(1)
    assert mean_ratio([]) == 1


def test_the_file_that_comes_with_a_backend() -> None:
    assert CudaBackend.tuned is not None
    assert CudaBackend.tuned.exists()
    for (target, family), record in read_families(CudaBackend.tuned).items():
        assert (record.target, record.family) == (target, family)


GOOD: dict[str, Any] = {
    "target": "t", "family": "f", "choices": {"few": 1}, "kernel": "k", "device": "d", "driver": "v",
    "measured": [{"sizes": {"n": 1}, "microseconds": [2.0, 1.0], "share": None}],
}  # fmt: skip


def _file(**changes: Any) -> str:
    return json.dumps({"version": 1, "families": [{**GOOD, **changes}]})


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "Expecting value"),
        ("[" * 100000, "recursion"),
        ("[]", '"version": 1 is expected'),
        ('{"version": 2, "families": []}', '"version": 1 is expected'),
        ('{"version": 1, "families": {}}', "families: a list is expected, got {}"),
        ('{"version": 1, "families": [3]}', "families[0]: an object is expected, got 3"),
        (json.dumps({"version": 1, "families": [GOOD, GOOD]}), "families[1] has the target and family"),
        (_file(family=None), "families[0].family: a line of text is expected, got None"),
        (_file(device="a\nb"), "families[0].device: a line of text"),
        (_file(kernel="k" * 5000), "families[0].kernel: a line of text"),
        (_file(choices={"few": True}), "families[0].choices.few: a number or a text is expected, got True"),
        (_file(choices=[]), "families[0].choices: an object is expected, got []"),
        (_file(measured=[{}]), "families[0].measured[0].sizes: an object is expected, got None"),
        (_file(measured=[{"sizes": {"n": -1}}]), "measured[0].sizes.n: a size is expected, got -1"),
        (_file(measured=[{"sizes": {}, "microseconds": [1]}]), "microseconds: two numbers above 0"),
        (_file(measured=[{"sizes": {}, "microseconds": [1, 0]}]), "microseconds: two numbers above 0"),
        (_file(measured=[{"sizes": {}, "microseconds": [1, float("nan")]}]), "two numbers above 0"),
        (_file(measured=[{"sizes": {}, "microseconds": [1, 10**400]}]), "two numbers above 0"),
        (_file(measured=[{"sizes": {}, "microseconds": [1, 1], "share": "all"}]), "share: a number above 0"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path: Path, text: str, where: str) -> None:
    """What is wrong is told with its place, and nothing is written over it."""
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_families(path)
    assert caught.value.code == "tuning-file"
    assert f"{path} is not a file of tuning records" in caught.value.message
    assert where in caught.value.message
    with pytest.raises(UsageError):
        write_families(path, {RECORD.key: RECORD})
    assert path.read_text() == text


WRITER = """
import sys
from pathlib import Path
from relaxpy.runtime.tuned import FamilyRecord, write_families
for number in range(20):
    record = FamilyRecord("t", f"{sys.argv[2]} {number}", {}, "k", "d", "v")
    write_families(Path(sys.argv[1]), {record.key: record})
"""


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    both = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("one", "two")
    ]
    assert [process.wait() for process in both] == [0, 0]
    assert len(read_families(path)) == 40


@pytest.mark.parametrize("kind", sorted(set(ODD_FILES) - {"link to nothing", "unreadable"}))
def test_other_things_than_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tuned.json"
    ODD_FILES[kind](path)
    with pytest.raises(UsageError, match="is not a file of tuning records"):
        read_families(path)
