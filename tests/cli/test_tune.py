"""`relaxpy tune`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest

from relaxpy import files
from relaxpy.backend.cuda.backend import CudaBackend
from relaxpy.build import emit
from relaxpy.build.tune import TRIALS, Tuner
from relaxpy.build.tuning import TuningRecords
from relaxpy.cli.main import main
from relaxpy.cli.tune import tune as command
from relaxpy.runtime.tuned import FamilyRecord, Measurement, read_families, write_families

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
    """The defaults are told by the command, which does not import the tuner before it runs."""
    (option,) = (option for option in command.params if option.name == "trials")
    assert isinstance(option, click.Option)
    assert f"[default: {TRIALS}; {emit.TRIALS} with --emit]" in (option.help or "")


RECORD = FamilyRecord(
    "cuda -arch=sm_90", "matmul a family", {"few": 8}, "linear", "a GPU", "1",
    (Measurement({"n": 1}, 4.0, 2.0, 0.5, 1.25),),
)  # fmt: skip


def test_emit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is in the archive is told; on stderr, what comes next."""
    pytest.importorskip("cuda.bindings.nvrtc")
    given = ["model.py", "--emit", "out", "--target", "cuda -arch=sm_80", "--at", "n=3"]
    code, out, err = tune(capsys, *given, "--trials", "2")
    assert code == 0, err
    assert "matmul: 2 schedules\n  matmul float32 float32 float32 rows=any" in out
    assert "2 schedules for cuda -arch=sm_80 in out, 0.0 of 64 MiB" in out
    assert "relaxpy tune --measure out" in err
    code, out, _ = tune(capsys, *given, "--trials", "2", "--json")
    data = json.loads(out)
    assert data["bytes"] == (here / "out" / "candidates.zip").stat().st_size
    assert [each["schedules"] for each in data["kernels"]] == [2]


def test_adopt_and_report(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records go into the file that comes with the backend, or into the one that is named."""
    shipped = here / "shipped.json"
    monkeypatch.setattr(CudaBackend, "tuned", shipped)
    monkeypatch.setenv("RELAXPY_TUNING", str(here / "own.json"))
    assert "0 records" in tune(capsys, "--report")[1]
    write_families("found.json", {RECORD.key: RECORD})
    code, out, _ = tune(capsys, "--adopt", "found.json")
    assert (code, out) == (0, f"1 record in {shipped}\n")
    assert read_families(shipped) == {RECORD.key: RECORD}
    _, out, _ = tune(capsys, "--report")
    assert "few=8" in out
    assert "2.00×" in out
    assert "50%" in out
    assert "1 record of families" in out
    other = replace(RECORD, choices={})
    write_families("found.json", {other.key: other})
    code, out, _ = tune(capsys, "--adopt", "found.json", "--records", "own.json", "--json")
    assert json.loads(out)["adopted"]["own.json"][0]["choices"] == {}
    assert read_families(shipped) == {RECORD.key: RECORD}
    _, out, _ = tune(capsys, "--report", "--json")  # the user's has precedence
    assert [each["choices"] for each in json.loads(out)["families"]] == [{}]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Missing argument 'FILE'"),
        (["--emit", "out"], "Missing argument 'FILE'"),
        (["model.py", "--report"], "--report takes no FILE"),
        (["--adopt", "a", "--report"], "--adopt and --report are different steps"),
        (["model.py", "--target", "cuda"], "--target is an option of --emit"),
        (["--report", "--device", "cuda"], "--device is an option of --measure"),
        (["--measure", "nowhere"], "does not exist"),
        (["--measure", "."], "candidates.zip is no archive of schedules: there is no such file"),
        (["--adopt", "nowhere.json"], "there is no file nowhere.json"),
        (["--adopt", "model.py"], "model.py is not a file of tuning records"),
        (["--adopt", "opencl.json"], "no records come with the backend of opencl"),
        (["--adopt", "unknown.json"], "unknown"),
        (["--report", "--records", "model.py"], "model.py is not a file of tuning records"),
    ],
)
def test_wrong_steps(
    here: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    for target in ("opencl", "unknown"):
        record = replace(RECORD, target=target)
        write_families(f"{target}.json", {record.key: record})
    code, _, err = tune(capsys, *args)
    assert code in (1, 2)
    assert message in err
