"""What commands write: folders that are not there, disks that are full."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relaxpy import files
from relaxpy.build.tuning import Record, TuningRecords
from relaxpy.cli.main import main
from relaxpy.errors import UsageError
from relaxpy.runtime import container

PROGRAM = """
@R.function
def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n", 4), dtype="float32"):
    y = R.nn.softmax(R.add(x, x))
    return y
"""
MOVED_TO = files.moved_to
X = ("--input", "x=f32[300,4]")
WRITERS = {
    "compile": ("compile", "model.py", "-o", "to/out.rxe"),
    "explain": ("explain", "model.py", "-o", "to/out.html"),
    "plan": ("plan", "model.py", "--bound", "n=9", "--svg", "to/out.svg"),
    "profile": ("profile", "model.py", *X, "--repeat", "20", "--trace", "to/out.json"),
    "run": ("run", "model.rxe", *X, "--save", "to/out.npz"),
    "run-npy": ("run", "model.rxe", *X, "--save", "to/out.npy"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(PROGRAM)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Exit code and stderr of `relaxpy ARGS`."""
    with pytest.raises(SystemExit) as stop:
        main(args)
    return int(stop.value.code or 0), capsys.readouterr().err


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file that is written beside its place can be made longer than 200 bytes. (LLVM, which would end the process,
    writes none.)"""

    @contextmanager
    def limited(place: Path) -> Iterator[Path]:
        with MOVED_TO(place) as beside:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
            try:
                yield beside
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setattr(files, "moved_to", limited)
    monkeypatch.setattr(container, "moved_to", limited)


@pytest.mark.parametrize("name", WRITERS)
def test_no_folder(here: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """It is said before the work begins."""
    (here / "model.rxe").write_bytes(b"never read")
    code, err = run(capsys, *WRITERS[name])
    assert code == 2
    assert "There is no folder 'to'." in err


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk(
    here: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest, name: str
) -> None:
    """The file is named, and is what it was; nothing is left beside it."""
    assert run(capsys, "compile", "model.py", "-o", "model.rxe")[0] == 0
    request.getfixturevalue("full_disk")
    (here / "to").mkdir()
    file = here / WRITERS[name][-1]
    file.write_text("before")
    code, err = run(capsys, *WRITERS[name])
    assert code == 1
    assert f"error[file-write]: cannot write {WRITERS[name][-1]}: " in err
    assert len(err.splitlines()) == 1
    assert file.read_text() == "before"
    assert list((here / "to").iterdir()) == [file]


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_under_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = run(capsys, "compile", "model.py", "-o", "model.rxe", "--dump", "to")
    assert code == 1
    assert "error[file-write]: cannot write to/00-written.py: " in err
    assert not list((here / "to").iterdir())
    assert not (here / "model.rxe").exists()


@pytest.mark.usefixtures("full_disk")
def test_tuning_records_on_a_full_disk(here: Path) -> None:
    records = TuningRecords({"key": Record("exp" * 100, {})})
    with pytest.raises(UsageError, match=r"cannot write t\.json: "):
        records.write("t.json")
    assert [p.name for p in here.iterdir()] == ["model.py"]
