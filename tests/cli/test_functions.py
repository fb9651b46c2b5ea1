"""The function that `run`, `profile`, `explain` and `bisect` use: named, `main`, or the only one."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxpy.cli.functions import chosen_function
from relaxpy.cli.main import main

PROGRAM = """
from relaxpy.script import relax as R

@R.function
def forward(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 4), "float32")):
    return R.nn.relu(R.matmul(x, w))
"""


def test_chosen() -> None:
    assert chosen_function("f", ["main"]) == "f"
    assert chosen_function(None, ["f"]) == "f"
    assert chosen_function(None, ["f", "main"]) == "main"
    assert chosen_function(None, ["f", "g"]) == "main"


def code(*args: str) -> int | str | None:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main(args)
    return caught.value.code


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(PROGRAM, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("command", ["run", "profile", "explain", "bisect"])
def test_the_only_function_needs_no_name(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    file = "model.py"
    if command == "run":
        assert code("compile", file, "-o", "model.rxe") == 0
        file = "model.rxe"
    x, w = "x=f32[3,4]", "w=f32[4,4]"
    assert code(command, file, "-i", x, "-i", w) == 0, capsys.readouterr().err


@pytest.mark.parametrize("command", ["profile", "explain"])
def test_missing_arguments_are_told_as_options(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert code(command, "model.py", "-i", "x=f32[3,4]") == 1
    assert "write --input w=…" in capsys.readouterr().err


LIBRARY = """
import relaxpy

@relaxpy.register_library("test_functions.twice")
def twice(x, out):
    out[:] = x.numpy() * 2
"""
CALLS = """
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor((3,), "float32")):
    return R.call_dps_library("test_functions.twice", (x,), out_ty=R.Tensor((3,), "float32"))
"""


@pytest.mark.parametrize("command", ["run", "profile", "bisect"])
def test_a_module_with_library_functions_is_imported(
    here: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    Path(f"lib_of_{command}.py").write_text(
        LIBRARY.replace("test_functions", f"test_functions_{command}"), encoding="utf-8"
    )
    Path("calls.py").write_text(
        CALLS.replace("test_functions", f"test_functions_{command}"), encoding="utf-8"
    )
    file = "calls.py"
    if command == "run":
        assert code("compile", file, "-o", "calls.rxe") == 0
        file = "calls.rxe"
    assert code(command, file, "-i", "x=f32[3]") == 1
    assert "is not registered" in capsys.readouterr().err
    options = ("--import", f"lib_of_{command}", "-i", "x=f32[3]")
    assert code(command, file, *options) == 0, capsys.readouterr().err


def test_a_module_that_is_not_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("profile", "model.py", "--import", "no_such_module") == 1
    assert "cannot import no_such_module" in capsys.readouterr().err
