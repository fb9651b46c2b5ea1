"""`relaxpy run`, on executables written by hand: nothing here needs the compiler."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.cli.main import main
from relaxpy.runtime import Executable
from relaxpy.runtime.bytecode import FunctionCode, Item, MakeTuple, Param, Return


def function(name: str, params: list[str], code: tuple, regs: int) -> FunctionCode:
    """A function whose parameters may be anything."""
    return FunctionCode(
        name, tuple(Param(p, "R.Object") for p in params), "R.Object", regs, (), (), code, (), ()
    )


@pytest.fixture
def executable(tmp_path: Path) -> str:
    """`main(x, y)` returns (y, (x, x)); `same(x)` returns x; `first(t)` returns t[0]."""
    pair = (
        MakeTuple(dst=2, fields=(0, 0), loc=-1),
        MakeTuple(dst=3, fields=(1, 2), loc=-1),
        Return(src=3, loc=-1),
    )
    path = tmp_path / "pair.rxe"
    Executable(
        (
            function("main", ["x", "y"], pair, 4),
            function("same", ["x"], (Return(src=0, loc=-1),), 1),
            function(
                "first", ["t"], (Item(dst=1, src=0, index=0, loc=-1), Return(src=1, loc=-1)), 2
            ),
        )
    ).save(path)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `relaxpy run ARGS`."""
    with pytest.raises(SystemExit) as stop:
        main(["run", *args])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_results_are_printed_by_their_place(
    executable: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A nested tuple is printed leaf by leaf, tensors with dtype and shape."""
    code, out, _ = run(capsys, executable, "--input", "x=i64[2]<1", "--input", "y=f32[1,3]")
    assert code == 0
    assert out.startswith("0: float32[1, 3]\n[[")
    assert "1.0: int64[2]\n[0 0]" in out
    assert "1.1: int64[2]\n[0 0]" in out


def test_scalars_and_shapes(executable: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no tensor is printed as Python writes it; a shape is one value, not a tuple."""
    code, out, _ = run(capsys, executable, "same", "-i", "x=3")
    assert (code, out) == (0, "result: 3\n")
    code, out, _ = run(capsys, executable, "same", "-i", "x=(2,3)")
    assert code == 0
    assert "2, 3" in out
    assert "0:" not in out


def test_save_npz(executable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several results go into an .npz, under the names that are printed."""
    target = tmp_path / "out.npz"
    code, out, _ = run(
        capsys, executable, "-i", "x=i64[4]", "-i", "y=f32[2]", "--save", str(target)
    )
    assert code == 0
    assert f"saved {target}" in out
    with np.load(target) as saved:
        assert sorted(saved.files) == ["0", "1.0", "1.1"]
        assert saved["1.1"].shape == (4,)


def test_save_npy_is_read_back(
    executable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One result goes into an .npy, which is an input again."""
    file, again = tmp_path / "x.npy", tmp_path / "y.npy"
    assert run(capsys, executable, "same", "-i", "x=f32[5]", "--seed", "7", "-s", str(file))[0] == 0
    assert run(capsys, executable, "same", "-i", f"x={file}", "-s", str(again))[0] == 0
    np.testing.assert_array_equal(np.load(file), np.load(again))
    expected = np.random.default_rng(7).standard_normal(5, dtype=np.float32)
    np.testing.assert_array_equal(np.load(file), expected)


def test_several_results_do_not_fit_an_npy(
    executable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what to do instead."""
    code, _, err = run(
        capsys, executable, "-i", "x=1", "-i", "y=2", "--save", str(tmp_path / "out.npy")
    )
    assert code == 1
    assert "save as .npz" in err
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["mian", "-i", "x=1"], "did you mean 'main'?"),
        (["same"], "lacks x"),
        (["same", "-i", "x=1", "-i", "z=1"], "has no parameter 'z'"),
        (["same", "-i", "x=1", "--save", "out.txt"], "use the suffix .npy or .npz"),
        (["same", "-i", "x=nothing.npy"], "nothing.npy: No such file or directory"),
    ],
)
def test_mistakes(
    executable: str, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    """Each is one message on stderr; nothing is printed as if it were a result."""
    code, out, err = run(capsys, executable, *args)
    assert (code, out) == (1, "")
    assert message in err


def test_not_an_executable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of another kind is refused by name."""
    (tmp_path / "x.rxe").write_text("Dear reader,\n" * 50)
    code, _, err = run(capsys, str(tmp_path / "x.rxe"))
    assert code == 1
    assert "x.rxe" in err


def test_a_program_is_compiled_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`relaxpy run mlp.py` says which command is missing."""
    (tmp_path / "mlp.py").write_text("@I.ir_module\nclass M: ...\n")
    code, _, err = run(capsys, str(tmp_path / "mlp.py"))
    assert code == 1
    assert f"relaxpy compile {tmp_path / 'mlp.py'} -o {tmp_path / 'mlp.rxe'}" in err


def test_repeat_times_the_call(executable: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The median time goes to stderr, so that stdout stays the results."""
    code, out, err = run(capsys, executable, "same", "-i", "x=1", "--repeat", "3")
    assert code == 0
    assert out == "result: 1\n"
    assert "median of 3:" in err


def test_inputs_that_are_missing_say_how_they_are_given(
    executable: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, executable, "main", "--input", "x=3")
    assert code == 1
    assert "main lacks y" in err
    assert "--input y=…" in err
    code, _, err = run(capsys, executable, "x=3")
    assert code == 1
    assert "write --input x=3" in err


def test_json_says_the_same(
    executable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every result by its path, with all of its numbers; NaN is a text."""
    np.save(tmp_path / "x.npy", np.array([[0.5, np.nan]], np.float32))
    args = (executable, "main", "--input", f"x={tmp_path}/x.npy", "--input", "y=(2,3)")
    code, out, _ = run(capsys, *args, "--json")
    assert code == 0
    x = {"dtype": "float32", "shape": [1, 2], "values": [[0.5, "nan"]]}
    assert json.loads(out) == {"results": {"0": {"shape": [2, 3]}, "1.0": x, "1.1": x}}
    assert "1.1: float32[1, 2]" in run(capsys, *args)[1]


def test_json_with_repetitions_and_files(
    executable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """stdout is JSON and nothing else."""
    file = tmp_path / "out.npy"
    args = ("--input", "x=3", "--repeat", "2", "--save", str(file), "--json")
    code, out, err = run(capsys, executable, "same", *args)
    data = json.loads(out)
    assert (code, data["results"], data["repeat"]) == (0, {"result": 3}, 2)
    assert data["median_seconds"] > 0
    assert f"saved {file}" in err


def test_without_a_feature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another image of the same kernel runs; where none is left, the error names the feature."""
    mod = relaxpy.parse(
        "@R.function\ndef main(x: R.Tensor((4,), 'float32')):\n    y = R.exp(x)\n    return y\n"
    )
    path = str(tmp_path / "both.rxe")
    relaxpy.build(mod, "llvm -mcpu=x86-64-v2,x86-64-v3").save(path)
    given = [path, "--input", "x=f32[4]"]
    expected = run(capsys, *given)
    assert run(capsys, *given, "--without-feature", "avx2") == expected
    code, _, err = run(capsys, *given, "--without-feature", "+avx2,sse4.2")
    assert code == 1
    assert "sse4.2" in err
    code, _, err = run(capsys, *given, "--without-feature", "avx512f")
    assert code == 0
    assert "no kernel image in" in err
    assert "needs avx512f" in err
    code, _, err = run(capsys, *given, "--without-feature", "axv2")
    assert code == 1
    assert "there is no feature 'axv2'" in err
    assert "did you mean 'avx2'?" in err
