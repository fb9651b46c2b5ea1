"""Archives of schedules: what is written is read, equal archives have equal bytes, damaged ones are errors."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from relaxpy.errors import UsageError
from relaxpy.runtime.inspect.candidates import ARCHIVE, Archive, Candidates, Site
from relaxpy.runtime.inspect.random_tensors import Weight

KERNEL = Candidates(
    "linear", "matmul …", (Site({"n": 3}, (Weight((3, 4), "float16", 1.0),), 24, 60),), ({}, {"few": 1})
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "deep", "cuda -arch=sm_90", (KERNEL,))
    size = archive.write([[b"first", b"second"]])
    path = archive.folder / ARCHIVE
    assert size == path.stat().st_size
    found = Archive.read(archive.folder)
    assert found == archive
    assert [found.executable(0, i) for i in range(2)] == [b"first", b"second"]
    data = path.read_bytes()
    archive.write([[b"first", b"second"]])
    assert path.read_bytes() == data


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_damaged_archives(tmp_path: Path, cut: int) -> None:
    archive = Archive(tmp_path, "cuda", (KERNEL,))
    archive.write([[b"first", b"second"]])
    path = tmp_path / ARCHIVE
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UsageError, match="it is damaged") as caught:
        Archive.read(tmp_path)
    assert caught.value.code == "tuning-archive"


@pytest.mark.parametrize(
    "plan", ["{}", "[]", '{"target": 1, "kernels": [{"sites": [[]]}]}', "\x00"]
)
def test_hostile_plans(tmp_path: Path, plan: str) -> None:
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w") as file:
        file.writestr("plan.json", plan)
    with pytest.raises(UsageError, match="it is damaged"):
        Archive.read(tmp_path)


def test_no_archive(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        Archive.read(tmp_path)
