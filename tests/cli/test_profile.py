"""`relaxpy profile`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relaxpy.cli.main import main

PROGRAM = """
@R.function
def main(x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4, 4), dtype="float32")):
    y = R.matmul(x, w)
    return y
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(PROGRAM)
    np.savez(tmp_path / "w.npz", w=np.ones((4, 4), np.float32))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `relaxpy ARGS`."""
    with pytest.raises(SystemExit) as stop:
        main(args)
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_a_program_and_an_executable(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--input", "x=f32[3,4]", "--repeat", "2"]
    code, out, _ = run(capsys, "profile", "model.py", "--params", "w.npz", *given, "--lines")
    assert code == 0
    assert "matmul" in out
    assert "model.py:4" in out
    assert run(capsys, "compile", "model.py", "--params", "w.npz", "-o", "m.rxe")[0] == 0
    code, out, _ = run(capsys, "profile", "m.rxe", "main", *given, "--trace", "trace.json")
    assert code == 0
    assert "median of 2" in out
    assert json.loads((here / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing.rxe"], "does not exist"),
        (["model.py", "other"], "no function 'other'"),
        (["model.py"], "lacks x, w"),
        (["model.py", "--input", "x=f32[3,5]", "--input", "w=f32[4,4]"], "dimension 1 is 5"),
        (["model.py", "--input", "x"], "neither a name"),
        (["w.npz", "--input", "x=f32[3,4]"], "error"),
    ],
)
def test_errors(
    here: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    code, _, err = run(capsys, "profile", *args)
    assert code in (1, 2)
    assert message in err


def test_json_says_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both tables; stdout is JSON and nothing else."""
    given = ["model.py", "--params", "w.npz", "--input", "x=f32[3,4]", "--repeat", "2", "--json"]
    code, out, err = run(capsys, "profile", *given, "--lines", "--trace", "trace.json")
    assert (code, err) == (0, "wrote trace.json\n")
    data = json.loads(out)
    assert (data["function"], data["repeat"]) == ("main", 2)
    assert "matmul" in data["kernels"][0]["name"]
    assert any("model.py:4" in row["name"] for row in data["lines"])
    assert "lines" not in json.loads(run(capsys, "profile", *given)[1])
