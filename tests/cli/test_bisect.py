"""`relaxpy bisect`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relaxpy.cli.main import main

PROGRAM = """
@R.function
def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n", 4), dtype="float32"):
    y = R.exp(x)
    z = R.add(y, x)
    return z
"""
PASSES = """
import dataclasses
from relaxpy.build.pipeline import default_pipeline
from relaxpy.transform import Pass
from relaxpy.ir.visitor import Rewriter
from relaxpy.op.binary import Add, Multiply


class Wrong(Pass):
    name = "wrong"

    def run(self, mod, ctx):
        class Change(Rewriter):
            def rewrite_Call(self, node):
                return dataclasses.replace(node, op=Multiply()) if isinstance(node.op, Add) else node

        return mod.map_graph_functions(lambda _, f: Change().rewrite(f))


def pipeline():
    return default_pipeline().before("legalize-ops", Wrong())


nothing = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(PROGRAM)
    (tmp_path / "planted_passes.py").write_text(PASSES)
    (tmp_path / "broken.py").write_text("def x(:")
    (tmp_path / "failing.py").write_text("1 / 0")
    return tmp_path


def bisect(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `relaxpy bisect ARGS`."""
    with pytest.raises(SystemExit) as stop:
        main(["bisect", *args])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_a_right_program(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = bisect(capsys, "model.py", "--size", "n=2")
    assert code == 0
    assert "agree with the interpreter" in out


def test_a_planted_pass_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(here / "x.npy", np.full((2, 4), 0.5, np.float32))
    given = ["model.py", "--pipeline", "planted_passes:pipeline", "--input", "x=x.npy"]
    code, out, _ = bisect(capsys, *given, "--dump", "found")
    assert code == 1
    assert "wrong after wrong (" in out
    assert "z (model.py:5" in out
    assert "R.add" in (here / "found" / "before.py").read_text()
    assert "R.multiply" in (here / "found" / "after.py").read_text()
    code, _, _ = bisect(capsys, *given, "--without", "wrong")
    assert code == 0


def test_a_private_function(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Passes may remove it: that is nothing wrong."""
    private = PROGRAM.replace("@R.function", "@R.function(private=True)")
    (here / "model.py").write_text(private)
    code, out, err = bisect(capsys, "model.py")
    assert code == 1
    assert out == ""
    assert "main is private" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing.py"], "does not exist"),
        (["model.py", "other"], "no graph function 'other'"),
        (["model.py", "--input", "y=f32[2]"], "no parameter 'y'"),
        (["model.py", "--size", "k=3"], "no symbol 'k'"),
        (["model.py", "--size", "n"], "NAME=INT is expected"),
        (["model.py", "--pipeline", "planted_passes"], "is not the name of a pipeline"),
        (["model.py", "--pipeline", "not_there:x"], "cannot import not_there"),
        (["model.py", "--pipeline", "planted_passes:nothing"], "is int, not a pass"),
        (["model.py", "--pipeline", "broken:x"], "broken.py:1: "),
        (["model.py", "--pipeline", "failing:x"], "cannot import failing: ZeroDivisionError"),
        (["model.py", "--without", "fuse-op"], "did you mean 'fuse-ops'"),
        (["model.py", "--input", "x=f32[2,5]"], "dimension 1 is 5, not 4"),
    ],
)
def test_errors(
    here: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    code, _, err = bisect(capsys, *args)
    assert code in (1, 2)
    assert message in err


def test_json_says_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = bisect(capsys, "model.py", "--json")
    assert (code, json.loads(out)) == (0, {"function": "main", "found": None})
    planted = ("model.py", "--pipeline", "planted_passes:pipeline")
    text = bisect(capsys, *planted)[1]
    code, out, _ = bisect(capsys, *planted, "--json")
    found = json.loads(out)["found"]
    assert code == 1
    assert (found["step"], found["function"], found["variable"]) == ("wrong", "main", "z")
    assert found["text"] == text.rstrip("\n")
