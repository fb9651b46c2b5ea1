"""`relaxpy show`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import relaxpy
from relaxpy.cli.main import main
from relaxpy.runtime import Executable

PROGRAM = """\
from relaxpy.script import ir as I, relax as R


@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        y = R.exp(x)
        return y
"""


def show(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `relaxpy show ARGS`."""
    with pytest.raises(SystemExit) as stop:
        main(["show", *args])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_what_is_shown_can_be_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Away from a terminal the output is the script itself."""
    file = tmp_path / "module.py"
    file.write_text(PROGRAM)
    code, out, err = show(capsys, str(file))
    assert (code, err) == (0, "")
    relaxpy.assert_structural_equal(relaxpy.parse(out), relaxpy.parse(PROGRAM))


def test_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` is stdin."""
    monkeypatch.setattr("sys.stdin", io.StringIO(PROGRAM))
    code, out, _ = show(capsys, "-")
    assert code == 0
    assert "R.exp(x)" in out


def test_mistakes_are_located(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message has the file, the line and the source."""
    file = tmp_path / "wrong.py"
    file.write_text(PROGRAM.replace("R.exp(x)", "R.exp(z)"))
    code, out, err = show(capsys, str(file))
    assert (code, out) == (1, "")
    assert "wrong.py:8" in err
    assert "y = R.exp(z)" in err
    assert "^" in err
    assert "Traceback" not in err


def test_python_that_does_not_parse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A syntax error is a message like any other."""
    file = tmp_path / "wrong.py"
    file.write_text(PROGRAM.replace("R.exp(x)", "R.exp(x"))
    code, out, err = show(capsys, str(file))
    assert (code, out) == (1, "")
    assert "wrong.py:8" in err


def test_showing_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file is read, never executed."""
    file, proof = tmp_path / "evil.py", tmp_path / "proof"
    for evil in (
        f"open({str(proof)!r}, 'w')\n" + PROGRAM,
        PROGRAM.replace("R.exp(x)", f"R.exp(open({str(proof)!r}, 'w'))"),
        PROGRAM.replace('"n", 4', f'"n", open({str(proof)!r}, "w")'),
        PROGRAM.replace("@R.function", f"@open({str(proof)!r}, 'w')"),
    ):
        file.write_text(evil)
        show(capsys, str(file))
        assert not proof.exists(), evil


def test_an_executable_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A compiled file is printed as text."""
    file = tmp_path / "x.rxe"
    Executable(()).save(file)
    code, out, _ = show(capsys, str(file))
    assert code == 0
    assert out.strip()


def test_a_binary_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is neither script nor executable is refused by name."""
    for content in (b"\x00\x01\x02" * 99, b"\xff\xfe\xfd" * 99, b""):
        file = tmp_path / "x.bin"
        file.write_bytes(content)
        code, _, err = show(capsys, str(file))
        assert code == 1
        assert "Traceback" not in err


def test_a_script_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Binary data under a script's name is a damaged script, not a wrong executable."""
    path = tmp_path / "program.py"
    path.write_bytes(b"\0\xff\xfe binary")
    code, _, err = show(capsys, str(path))
    assert code != 0
    assert "error[not-a-script]" in err
    assert "UTF-8" in err
