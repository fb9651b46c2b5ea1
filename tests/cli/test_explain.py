"""`relaxpy explain`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaxpy.cli.main import main

PROGRAM = """
@R.function
def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n", 4), dtype="float32"):
    y = R.exp(x)
    return y
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(PROGRAM)
    return tmp_path


def explain(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `relaxpy explain ARGS`."""
    with pytest.raises(SystemExit) as stop:
        main(["explain", *args])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_a_page_beside_the_program(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = explain(capsys, "model.py", "--bound", "n=8")
    assert (code, err) == (0, "")
    assert out.startswith("model.html: ")
    text = (here / "model.html").read_text()
    assert "<h1>model.py</h1>" in text
    assert "elementwise" in text
    assert sorted(p.name for p in here.iterdir()) == ["model.html", "model.py"]


def test_a_build_that_fails_has_a_page_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(here / "weights.npz", nobody=np.ones(3, np.float32))
    code, _, err = explain(capsys, "model.py", "-o", "page.html", "--params", "weights.npz")
    assert code == 1
    assert "nobody" in err
    assert "The build fails at <b>bind-params</b>" in (here / "page.html").read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing.py"], "does not exist"),
        (["model.py", "--bound", "n"], "NAME=INT is expected"),
        (["model.py", "--bound", "n=9999999999999999999"], "NAME=INT is expected"),
        (["model.py", "--bound", "n=3,n=4"], "n is 3 and 4"),
        (["model.py", "--without", "fuse-op"], "did you mean 'fuse-ops'"),
        (["model.py", "-o", "nowhere/page.html"], "no folder 'nowhere'"),
    ],
)
def test_errors(
    here: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    code, out, err = explain(capsys, *args)
    assert code in (1, 2)
    assert message in err
    assert out == ""


def test_a_program_with_a_syntax_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "model.py").write_text("@R.function\ndef main(x: R.Tensor((")
    code, _, err = explain(capsys, "model.py")
    assert code == 1
    assert "model.py:2" in err
    assert not (here / "model.html").exists()
