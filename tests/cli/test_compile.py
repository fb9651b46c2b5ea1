"""`relaxpy compile`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.cli.main import main

PROGRAM = """\
@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 3), "float32")
    ) -> R.Tensor(("n", 3), "float32"):
        y = R.matmul(x, w)
        return y
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A file with `PROGRAM`."""
    file = tmp_path / "module.py"
    file.write_text(PROGRAM)
    return file


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_compile_then_run(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], weights: str
) -> None:
    """The file runs, with the weights bound; its signature is printed."""
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.savez(tmp_path / "weights.npz", w=w)
    file, out_file = tmp_path / "module.rxe", tmp_path / "out.npy"
    code, out, err = run(
        capsys, "compile", program, "--params", tmp_path / "weights.npz",
        "--weights", weights, "-o", file,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "module.rxe:" in out
    assert "main(x: R.Tensor" in out
    code, _, err = run(capsys, "run", file, "main", "-i", "x=f32[5,4]", "--save", out_file)
    assert (code, err) == (0, "")
    x = np.random.default_rng(0).standard_normal((5, 4), dtype=np.float32)
    np.testing.assert_allclose(np.load(out_file), x @ w, rtol=1e-5, atol=1e-5)


def test_a_wrong_shape_is_one_message(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the virtual machine refuses is explained, with the parameter and what came."""
    run(capsys, "compile", program, "-o", tmp_path / "module.rxe")
    code, out, err = run(
        capsys, "run", tmp_path / "module.rxe", "main", "-i", "x=f32[5,7]", "-i", "w=f32[4,3]"
    )
    assert (code, out) == (1, "")
    assert "error[check]" in err
    assert "x" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--target", "lvm"], "target-kind"),
        (["--target", "llvm -mcpu=haswel"], "haswell"),
        (["--params", "nothing.npz"], "nothing.npz"),
        (["--weights", "outside"], "outside"),
    ],
)
def test_mistakes(
    program: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    message: str,
) -> None:
    """Each is one message on stderr, and no file is left."""
    code, out, err = run(capsys, "compile", program, *args, "-o", tmp_path / "module.rxe")
    assert code in (1, 2)
    assert out == ""
    assert message in err
    assert not (tmp_path / "module.rxe").exists()


def test_parameters_that_the_program_lacks(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A weight without a parameter is a mistake."""
    np.savez(tmp_path / "weights.npz", weight=np.zeros((4, 3), np.float32))
    code, _, err = run(
        capsys, "compile", program, "--params", tmp_path / "weights.npz", "-o", tmp_path / "m.rxe"
    )
    assert code == 1
    assert "unknown-parameter" in err


def test_output_that_cannot_be_written(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing directory is named, before anything is compiled."""
    code, _, err = run(capsys, "compile", program, "-o", tmp_path / "nowhere" / "m.rxe")
    assert code == 2
    assert "There is no folder" in err
    assert "nowhere" in err


def test_the_same_bytes(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compiling twice gives the same file."""
    for name in ("a.rxe", "b.rxe"):
        assert run(capsys, "compile", program, "-o", tmp_path / name)[0] == 0
    assert (tmp_path / "a.rxe").read_bytes() == (tmp_path / "b.rxe").read_bytes()
    assert "main" in relaxpy.load(tmp_path / "a.rxe").as_text()


def test_a_bound_makes_the_plan_static(tmp_path: Path) -> None:
    source, file = tmp_path / "program.py", tmp_path / "program.rxe"
    source.write_text(
        '@R.function\ndef main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):\n'
        "    return R.cumsum(R.cumsum(x))\n"
    )
    with pytest.raises(SystemExit) as done:
        main(["compile", str(source), "--bound", "n=1000", "-o", str(file)])
    assert done.value.code == 0
    assert relaxpy.load(file).memory_plan()["main"].sizes == {"n": 1000}


def test_a_file_for_each_pass(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "passes"
    code, out, _ = run(capsys, "compile", program, "-o", tmp_path / "out.rxe", "--dump", folder)
    assert code == 0
    files = sorted(folder.glob("*.py"))
    assert f"{len(files)} modules in" in out
    assert files[0].name == "00-written.py"
    assert run(capsys, "show", files[-1], "--plain")[0] == 0


def test_json_says_the_same(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = (
        "compile",
        program,
        "-o",
        tmp_path / "m.rxe",
        "--timings",
        "--dump",
        tmp_path / "passes",
    )
    text = run(capsys, *args)[1]
    code, out, _ = run(capsys, *args, "--json")
    assert code == 0
    data = json.loads(out)
    assert data["output"] == str(tmp_path / "m.rxe")
    assert data["bytes"] == (tmp_path / "m.rxe").stat().st_size
    assert [f"  {f['signature']}" in text for f in data["functions"]] == [True]
    assert f"{len(data['modules'])} modules in" in text
    (kernel,) = data["timings"]["kernels"]
    assert kernel["name"] in text
    assert all(name in text for name, _ in data["timings"]["steps"])
