"""`relaxpy tune`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaxpy import files
from relaxpy.build.tune import TRIALS, Tuner
from relaxpy.build.tuning import TuningRecords
from relaxpy.cli.main import main
from relaxpy.cli.tune import tune as command

PROGRAM = """
@R.function
def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n", 4), dtype="float32"):
    y = R.nn.softmax(x)
    z = R.matmul(y, y)
    return z
""".replace('("n", 4)', '("n", "n")')


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(PROGRAM)
    return tmp_path


def tune(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `relaxpy tune ARGS`."""
    with pytest.raises(SystemExit) as stop:
        main(["tune", *args])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_records_are_written_and_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = tune(capsys, "model.py", "--at", "n=3", "--trials", "2", "--records", "r.json")
    assert (code, err) == (0, "")
    assert "softmax" in out
    assert "2 kernels measured" in out
    assert len(TuningRecords.read("r.json").records) == 2


def test_kernels_by_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["model.py", "--at", "n=3", "--at", "n=5", "--trials", "2", "--records", "r.json"]
    code, out, _ = tune(capsys, *given, "--kernel", "soft*")
    assert code == 0
    assert "1 kernel measured" in out


def test_records_that_cannot_be_written(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before anything is measured."""

    def refused(path: Path) -> Iterator[Path]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Tuner, "tune", None)
    monkeypatch.setattr(files, "moved_to", refused)
    code, _, err = tune(capsys, "model.py", "--at", "n=3", "--records", "r.json")
    assert code == 1
    assert "cannot write r.json: No space left on device" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing.py"], "does not exist"),
        (["model.py"], "no kernel of model.py can be measured"),
        (["model.py", "--at", "n"], "NAME=INT is expected"),
        (["model.py", "--at", "k=3"], "no symbol 'k'"),
        (["model.py", "--at", "n=3", "--kernel", "conv*"], "matches 'conv*'"),
        (["model.py", "--at", "n=3", "--records", "model.py"], "is not a file of tuning records"),
    ],
)
def test_errors(
    here: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    code, _, err = tune(capsys, *args)
    assert code in (1, 2)
    assert message in err


def test_json_says_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was recorded, kernel by kernel; the table has the same."""
    code, out, _ = tune(
        capsys, "model.py", "--at", "n=3", "--trials", "2", "--records", "r.json", "--json"
    )
    assert code == 0
    data = json.loads(out)
    assert data["records"] == "r.json"
    records = TuningRecords.read("r.json").records.values()
    assert {row["kernel"] for row in data["kernels"]} == {record.kernel for record in records}
    for row in data["kernels"]:
        (record,) = (record for record in records if record.kernel == row["kernel"])
        assert (row["microseconds"], row["best_microseconds"]) == record.microseconds
        assert row["settings"] == dict(record.choices)
        assert row["sizes"] == [{"n": 3}]


def test_as_many_trials_as_the_tuner_makes() -> None:
    """The default is written in the command, which does not import the tuner before it runs."""
    (option,) = (option for option in command.params if option.name == "trials")
    assert option.default == TRIALS
