"""`relaxpy plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import relaxpy
from relaxpy.cli.main import cli
from relaxpy.runtime.inspect.units import shown

TEXT = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    a = R.cumsum(x, axis=0)
    b = R.cumsum(a, axis=1)
    return b
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(TEXT)
    return file


def plan(*args: object) -> Result:
    return CliRunner().invoke(cli, ["plan", *map(str, args)])


def test_a_program(program: Path) -> None:
    result = plan(program, "--bound", "n=1024", "--tensors")
    assert result.exit_code == 0
    assert result.output.splitlines()[1].split()[:4] == ["main", "n=1024", "16.0", "KiB"]
    assert "main.a: 16384 bytes, storage 0 at 0" in result.output
    assert "main.b: 16384 bytes, separate" in result.output


def test_the_picture(program: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    assert plan(program, "--size", "n=10", "--svg", file).exit_code == 0
    assert file.read_text().startswith("<svg")


def test_an_executable(tmp_path: Path) -> None:
    file = tmp_path / "program.rxe"
    relaxpy.build(relaxpy.parse(TEXT)).save(file)
    result = plan(file, "--size", "main.n=1024")
    assert result.output.splitlines()[1].split()[:4] == ["main", "n=1024", "16.0", "KiB"]
    error = plan(file, "--bound", "n=3").exception
    assert isinstance(error, relaxpy.RelaxError)
    assert error.code == "plan-sizes"


SORT = """
@R.function
def main(x: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n", "m"), "float32"):
    a = R.sort(x)
    return a
"""


def test_what_kernels_take_for_themselves(tmp_path: Path) -> None:
    """Sorting a row takes twice its size on each thread: told of the program, and of the executable."""
    source, file = tmp_path / "sort.py", tmp_path / "sort.rxe"
    source.write_text(SORT)
    exe = relaxpy.build(relaxpy.parse(SORT))
    exe.save(file)
    threads = relaxpy.num_threads()
    for path in (source, file):
        last = plan(path, "--size", "n=7", "--size", "m=1000").output.splitlines()[-1]
        assert last.startswith("inside kernels at most ")
        assert last.endswith(f"on {threads} thread{'s' * (threads > 1)}: sort")
    (inside,) = exe.memory_plan(n=7, m=1000)["main"].kernels
    assert (inside.shared, inside.each) == (0, 8000)
    assert inside.nbytes(3) == 24000


def test_nothing_inside_kernels(program: Path) -> None:
    assert plan(program, "--bound", "n=8").output.splitlines()[-1] == "inside kernels nothing more"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "depends on n"),
        (("--bound", "q=3"), "no function has a symbolic variable 'q'"),
        (("--size", "q=3"), "no function has a size 'q'"),
    ],
)
def test_mistakes(program: Path, args: tuple[str, ...], message: str) -> None:
    error = plan(program, *args).exception
    assert isinstance(error, relaxpy.RelaxError)
    assert message in error.message
    assert "--size n=2048" in str(error) or args


@pytest.mark.parametrize("text", ["n", "n=", "=3", "n=x", "n=-1"])
def test_sizes_are_names_and_numbers(program: Path, text: str) -> None:
    error = plan(program, "--bound", text)
    assert error.exit_code == 2
    assert "NAME=INT is expected" in error.output


def test_no_file(tmp_path: Path) -> None:
    assert plan(tmp_path / "nothing.py").exit_code == 2
    assert "'models/nothing.py' does not exist" in plan("models/nothing.py").output
    for place, code in (
        ("owner/model-1B", "hub-offline"),
        (tmp_path / "none.gguf", "bad-checkpoint"),
    ):
        error = plan(place).exception
        assert isinstance(error, relaxpy.RelaxError)
        assert error.code == code


def test_json_says_the_same(program: Path) -> None:
    """The table's figures in bytes; tensors where they are asked for."""
    args = (program, "--bound", "n=1024", "--tensors")
    lines = plan(*args).stdout.splitlines()
    data = json.loads(plan(*args, "--json").stdout)
    (function,) = data["functions"]
    assert (function["name"], function["sizes"]) == ("main", {"n": 1024})
    columns = ("planned", "least", "unshared", "workspace", "results", "peak")
    assert lines[1].split()[2:] == " ".join(shown(function[c]) for c in columns).split()
    assert (
        f"weights {shown(data['weights'])}, with the largest function {shown(data['peak'])}"
        in lines
    )
    for tensor in function["tensors"]:
        text = f"main.{tensor['name']}: {tensor['bytes']} bytes, "
        assert any(line.startswith(text) for line in lines)
    (without,) = json.loads(plan(*args[:-1], "--json").stdout)["functions"]
    assert "tensors" not in without
