"""`relaxpy show`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.cli.main import main
from relaxpy.ir.module import IRModule
from relaxpy.runtime import Executable
from relaxpy.transform.base import Pass, PassContext

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


LAYER = """\
@I.ir_module
class Layer:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        y = R.nn.softmax(R.nn.relu(R.matmul(x, w)))
        return y
"""


@pytest.fixture
def layer(tmp_path: Path) -> str:
    """A file with a program of three operators."""
    file = tmp_path / "layer.py"
    file.write_text(LAYER)
    return str(file)


@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_the_program_after_every_pass_can_be_read_back(
    target: str, layer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text parses to the module that the pass gives."""
    steps: dict[str, IRModule] = {}

    def look(number: int, step: Pass, before: IRModule, after: IRModule) -> None:
        steps[step.name] = after

    resolved = relaxpy.Target.parse(target)
    context = PassContext(resolved, instruments=[look])
    default_pipeline(resolved)(relaxpy.parse(LAYER), context)
    assert len(steps) > 20
    for name, want in steps.items():
        code, out, err = show(capsys, layer, "--after", name, "--target", target)
        assert (code, err) == (0, ""), name
        relaxpy.assert_structural_equal(relaxpy.parse(out), want)


def test_after_one_is_before_the_next(layer: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A phase is a place, too."""
    texts = {
        show(capsys, layer, *place.split())[1]
        for place in (
            "--after legalize-ops",
            "--after legalise",
            "--before fuse",
            "--before fuse-ops",
        )
    }
    assert len(texts) == 1
    assert "T.exp(" in texts.pop()


def test_one_function_or_program(layer: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it calls, so that it can be read back."""
    _, out, _ = show(capsys, layer, "--after", "fuse", "--function", "softmax")
    assert list(relaxpy.parse(out).functions) == ["softmax"]
    _, out, _ = show(capsys, layer, "--after", "fuse-ops", "--function", "fused_matmul_relu")
    assert set(relaxpy.parse(out).functions) == {"fused_matmul_relu", "matmul", "relu"}
    _, out, _ = show(capsys, layer, "--function", "main")
    assert list(relaxpy.parse(out).functions) == ["main"]


def test_parameters_and_bounds_take_part(
    layer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a build would be given is bound before passes run."""
    np.savez(tmp_path / "w.npz", w=np.ones((8, 4), np.float32))
    params = ("--params", str(tmp_path / "w.npz"), "--bound", "n=16")
    code, out, _ = show(capsys, layer, "--after", "prepare", *params)
    assert code == 0
    main = relaxpy.parse(out)["main"]
    assert [param.name for param in main.params] == ["x"]
    assert "tir_var_upper_bound" in out


def test_names_that_there_are_not(layer: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest is suggested, all of them are listed."""
    code, out, err = show(capsys, layer, "--after", "fuse-opps")
    assert (code, out) == (1, "")
    assert "error[unknown-pass]: the pipeline has no pass 'fuse-opps'" in err
    assert "did you mean 'fuse-ops'?" in err
    assert "it has bind-params, normalize," in err
    code, out, err = show(capsys, layer, "--before", "zzz")
    assert (code, out) == (1, "")
    assert "it has bind-params, normalize," in err
    code, out, err = show(capsys, layer, "--after", "fuse", "--function", "sofmax")
    assert (code, out) == (1, "")
    assert "did you mean 'softmax'?" in err
    code, out, err = show(capsys, layer, "--after", "fuse", "--target", "llvn")
    assert (code, out) == (1, "")
    assert "error[target-kind]" in err


def test_options_that_do_not_go_together(
    layer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = show(capsys, layer, "--after", "fuse", "--before", "fuse")
    assert code == 2
    assert "exclude each other" in err
    code, _, err = show(capsys, layer, "--target", "opencl")
    assert code == 2
    assert "need --after PASS" in err
    Executable(()).save(tmp_path / "x.rxe")
    for options in (("--after", "fuse"), ("--function", "main")):
        code, _, err = show(capsys, str(tmp_path / "x.rxe"), *options)
        assert code == 1
        assert "error[not-a-script]" in err


def test_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a program and of an executable: the functions, and the text."""
    file = tmp_path / "module.py"
    file.write_text(PROGRAM)
    data = json.loads(show(capsys, str(file), "--json")[1])
    assert data["functions"] == [{"name": "main", "parameters": ["x"], "kind": "graph"}]
    assert data["text"].strip() == show(capsys, str(file))[1].strip()

    built = tmp_path / "module.rxe"
    relaxpy.build(relaxpy.parse(PROGRAM)).save(built)
    data, text = (show(capsys, str(built), *option)[1] for option in (["--json"], []))
    data = json.loads(data)
    (main_function,) = data["functions"]
    assert main_function["parameters"][0]["name"] == "x"
    assert f"# {len(data['kernels'])} kernel in {data['object_bytes']} bytes" in text
    assert data["text"].strip() == text.strip()
