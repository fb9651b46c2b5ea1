"""`relaxpy export`, and ONNX models where commands take a program."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.cli.main import main

onnx: Any = pytest.importorskip("onnx")

PROGRAM = """\
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 7), "float32"), w: R.Tensor((7, 3), "float32")) -> R.Tensor(("n", 3), "float32"):
        n = T.int64()
        y = R.nn.relu(R.matmul(x, w))
        return y

    @R.function
    def sizes(x: R.Tensor(("n", "m"), "float32")):
        n, m = T.int64(), T.int64()
        return R.reshape(x, (n * m,))
"""
W = np.arange(21, dtype=np.float32).reshape(7, 3) - 10


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a program, its weights, and inputs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlp.py").write_text(PROGRAM)
    np.savez("weights.npz", w=W)
    return tmp_path


@pytest.fixture
def model(here: Path) -> Path:
    """An ONNX model with names that are none of script."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]> net (float[n, 7] x) => (float[n, 3] y)
        <float[7, 3] w = {{{", ".join(map(str, W.ravel()))}}}> {{ h = MatMul (x, w) y = Relu (h) }}"""
    found = onnx.parser.parse_model(text)
    found.graph.input[0].name = found.graph.node[0].input[0] = "input.1"
    for info in (*found.graph.input, *found.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = "batch size"
    onnx.save(found, here / "model.onnx")
    return here / "model.onnx"


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_written_read_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program with its weights as a model, and the model as a program."""
    code, out, err = run(capsys, "export", "mlp.py", "--params", "weights.npz", "-o", "mlp.onnx")
    assert (code, err) == (0, "")
    assert out.startswith("mlp.onnx: ")
    assert "opset 21, 2 nodes\n  input x: float32[n, 7]\n  output y: float32[n, 3]" in out
    onnx.checker.check_model("mlp.onnx", full_check=True)
    x = np.random.default_rng(3).standard_normal((5, 7), dtype=np.float32)
    np.save("x.npy", x)
    code, _, err = run(capsys, "run", "mlp.onnx", "-i", "x=x.npy", "--save", "y.npy")
    assert (code, err) == (0, "")
    np.testing.assert_allclose(np.load("y.npy"), np.maximum(x @ W, 0), 1e-5, 1e-5)


def test_weights_beside_another_function_an_opset(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    w = np.ones((7, 3), np.float32).repeat(400, 1)
    (here / "wide.py").write_text(PROGRAM.replace("3)", "1200)"))
    np.savez("wide.npz", w=w)
    code, out, _ = run(
        capsys, "export", "wide.py", "--params", "wide.npz", "--weights", "beside", "-o", "wide.onnx", "--json"
    )  # fmt: skip
    assert code == 0
    found = json.loads(out)
    assert found["weights_file"] == "wide.onnx.data"
    assert found["bytes"] == sum(
        (here / name).stat().st_size for name in ("wide.onnx", "wide.onnx.data")
    )
    assert (here / "wide.onnx").stat().st_size < w.nbytes
    code, out, _ = run(
        capsys, "export", "mlp.py", "--function", "sizes", "--opset", "18", "-o", "sizes.onnx"
    )
    assert code == 0
    assert "opset 18" in out
    assert "input x: float32[n, m]" in out
    assert "float32[m * n]" in out


def test_a_model_in_place_of_a_program(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command that takes a program takes a model, with its weights, and inputs under their own names."""
    x = np.random.default_rng(0).standard_normal((4, 7), dtype=np.float32)
    code, out, err = run(capsys, "run", "model.onnx", "-i", "input.1=f32[4,7]", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)["results"]["result"]["values"]
    np.testing.assert_allclose(found, np.maximum(x @ W, 0), 1e-5, 1e-5)

    code, out, _ = run(capsys, "compile", "model.onnx", "-o", "model.rxe")
    assert code == 0
    assert "main(input_1: R.Tensor((batch_size, 7)" in out
    code, out, _ = run(capsys, "run", "model.rxe", "-i", "input.1=f32[4,7]", "--json")
    np.testing.assert_array_equal(json.loads(out)["results"]["result"]["values"], found)

    code, out, _ = run(capsys, "plan", "model.onnx", "--size", "batch_size=5", "--json")
    assert code == 0
    assert json.loads(out)["weights"] >= W.nbytes

    code, out, _ = run(
        capsys, "profile", "model.onnx", "-i", "input.1=f32[4,7]", "--repeat", "2", "--json"
    )
    assert code == 0
    assert sum(each["calls"] for each in json.loads(out)["kernels"]) == 1

    code, out, _ = run(capsys, "explain", "model.onnx", "-i", "input.1=f32[4,7]", "--repeat", "2")
    assert code == 0
    assert "Measured: a call takes" in Path("model.html").read_text()

    code, out, _ = run(capsys, "show", "model.onnx")
    assert code == 0
    assert "R.matmul(input_1, " in out

    code, out, _ = run(capsys, "bisect", "model.onnx", "--size", "batch_size=3")
    assert code == 0
    assert "agree with the interpreter" in out

    code, out, _ = run(capsys, "export", "model.onnx", "-o", "again.onnx")
    assert code == 0
    onnx.checker.check_model("again.onnx", full_check=True)


def test_other_weights_than_the_models(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    w = np.random.default_rng(1).standard_normal((7, 1200), dtype=np.float32)
    (here / "wide.py").write_text(PROGRAM.replace("3)", "1200)"))
    for name, array in (("first", w), ("other", -w)):
        np.savez(f"{name}.npz", w=array)
    run(capsys, "export", "wide.py", "--params", "first.npz", "-o", "wide.onnx")
    code, _, _ = run(capsys, "compile", "wide.onnx", "--params", "other.npz", "-o", "other.rxe")
    assert code == 0
    code, out, _ = run(capsys, "run", "other.rxe", "-i", "x=f32[4,7]", "--json")
    x = np.random.default_rng(0).standard_normal((4, 7), dtype=np.float32)
    found = json.loads(out)["results"]["result"]["values"]
    np.testing.assert_allclose(found, np.maximum(x @ -w, 0), 1e-4, 1e-5)


@pytest.mark.parametrize(
    "command", ["compile", "run", "explain", "profile", "plan", "export", "show"]
)
@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("nothing.onnx", "nothing.onnx' does not exist"),
        ("folder.onnx", "folder.onnx"),
        ("short.onnx", "error[onnx-file]: short.onnx is no ONNX model"),
        ("text.onnx", "error[onnx-file]: text.onnx is no ONNX model"),
        ("empty.onnx", "error[onnx-file]: empty.onnx is no ONNX model"),
        ("strange.onnx", "Strange (once, first at <strange.onnx>:"),
        ("picture.png", "picture.png"),
    ],
)
def test_files_that_are_no_models(
    model: Path, capsys: pytest.CaptureFixture[str], command: str, file: str, message: str
) -> None:
    """A command tells the file and what is wrong with it, in one message."""
    data = model.read_bytes()
    Path("short.onnx").write_bytes(data[: len(data) // 2])
    Path("text.onnx").write_text("version https://git-lfs.github.com/spec/v1\n")
    Path("empty.onnx").write_bytes(b"")
    Path("folder.onnx").mkdir()
    Path("picture.png").write_bytes(b"\x89PNG\r\n\0\0")
    strange = onnx.load(model)
    strange.graph.node[1].op_type = "Strange"
    Path("strange.onnx").write_bytes(strange.SerializeToString())
    output = {
        "compile": ["-o", "out.rxe"],
        "export": ["-o", "out.onnx"],
        "explain": ["-o", "out.html"],
    }
    code, out, err = run(capsys, command, file, *output.get(command, []))
    assert code in (1, 2)
    assert out == ""
    assert message in " ".join(err.split())
    assert "internal error" not in err
    assert not list(Path().glob("out.*"))


def test_what_onnx_cannot_say(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.py").write_text("""
@R.function
def main(x: R.Tensor(("n", 3), "float32"), i: R.Tensor(("n",), "int64")):
    y = R.call_pure_packed("f", x, ty_args=R.Tensor(("n", 3), "float32"))
    z = R.call_pure_packed("f", y, ty_args=R.Tensor(("n", 3), "float32"))
    return R.random_uniform(i, i, i)
""")
    code, out, err = run(capsys, "export", "bad.py", "-o", "bad.onnx")
    assert (code, out) == (1, "")
    assert "error[onnx-operator]" in err
    assert "2 operators of this program are not supported" in err
    assert 'call_pure_packed of "f" (2 times, first at bad.py:4' in err
    assert "random_uniform (once, first at bad.py:6" in err
    assert not Path("bad.onnx").exists()
    code, _, err = run(capsys, "export", "mlp.py", "-o", "mlp.pb")
    assert code == 1
    assert "use the suffix .onnx" in err
    code, _, err = run(capsys, "export", "mlp.py", "--opset", "7", "-o", "mlp.onnx")
    assert code == 1
    assert "opset 7 is not written" in err
    code, _, err = run(capsys, "export", "mlp.py", "--function", "other", "-o", "mlp.onnx")
    assert code == 1
    assert "no function 'other'" in err


@pytest.mark.parametrize("args", [("run", "model.onnx"), ("export", "mlp.py", "-o", "mlp.onnx")])
def test_without_the_package_onnx(
    model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
) -> None:
    importlib.import_module("relaxpy.onnx.exporter")
    monkeypatch.setitem(sys.modules, "onnx", None)
    code, _, err = run(capsys, *args)
    assert code == 1
    assert "error[extra-missing]" in err
    assert "pip install 'relaxpy[onnx]'" in err
