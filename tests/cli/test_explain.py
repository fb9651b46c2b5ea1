"""`relaxpy explain`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.cli.main import main
from relaxpy.runtime.container import MAGIC

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
    assert "<h1><bdi>model.py</bdi></h1>" in text
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


OTHER = PROGRAM.replace("R.exp(x)", "R.cumsum(x, axis=0)")


@pytest.fixture
def built(here: Path) -> Path:
    """Two executables, a.rxe and b.rxe."""
    for name, text in (("a", PROGRAM), ("b", OTHER)):
        relaxpy.build(relaxpy.parse(text)).save(here / f"{name}.rxe")
    return here


def test_of_an_executable(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = explain(capsys, "a.rxe", "--size", "n=8")
    assert (code, err) == (0, "")
    assert out.startswith("a.html: ")
    text = (built / "a.html").read_text()
    assert "n = 8" in text
    assert '<section id="bytecode">' in text
    assert '<section id="passes">' not in text


def test_what_changed(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = explain(capsys, "a.rxe", "b.rxe", "--size", "n=8")
    assert (code, err) == (0, "")
    assert out.startswith("a.rxe → b.rxe\n")
    assert "  + cumsum" in out
    assert "  - exp" in out
    assert out.splitlines()[-1].startswith("a-b.html: ")
    text = (built / "a-b.html").read_text()
    assert "<title>a.rxe → b.rxe – relaxpy</title>" in text
    assert '<section id="changes">' in text


def test_what_changed_between_sources(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Passes are compared too; a build that fails is told, and the other one shown."""
    (here / "other.py").write_text(OTHER)
    code, out, _ = explain(capsys, "model.py", "other.py", "-o", "page.html")
    assert code == 0
    assert "the modules differ from the source on" in out
    assert "<h3>Passes</h3>" in (here / "page.html").read_text()


def test_a_source_and_an_executable(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same program: only the passes of one are known."""
    code, out, _ = explain(capsys, "model.py", "a.rxe")
    assert code == 0
    assert "the same code and the same memory" in out


def test_as_json(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page is written as well, which is said on stderr."""
    code, out, err = explain(capsys, "a.rxe", "b.rxe", "--json", "--size", "n=8")
    assert code == 0
    data = json.loads(out)
    assert {each["name"]: each["status"] for each in data["kernels"]} == {
        "cumsum": "added",
        "exp": "removed",
    }
    assert data["after"]["memory"]["functions"][0]["name"] == "main"
    assert err.startswith("a-b.html: ")
    code, out, _ = explain(capsys, "model.py", "--json")
    data = json.loads(out)
    assert data["title"] == "model.py"
    assert [kernel["name"] for kernel in data["kernels"]] == ["exp"]
    assert data["passes"][0] == {**data["passes"][0], "number": 1, "changed": False}


def test_measured(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = explain(capsys, "model.py", "--input", "x=f32[16,4]", "--repeat", "2")
    assert (code, err) == (0, "")
    assert "Measured: a call takes" in (here / "model.html").read_text()


def test_without_a_feature(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A feature that no image needs changes nothing, which is said: its name may be wrong."""
    code, _, err = explain(capsys, "a.rxe", "--without-feature", "flying")
    assert code == 0
    assert err == "note: no kernel image in a.rxe needs flying\n"


def test_which_image_is_chosen(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mod = relaxpy.parse(PROGRAM)
    relaxpy.build(mod, "llvm -mcpu=x86-64-v2,x86-64-v3").save(here / "both.rxe")
    code, _, err = explain(capsys, "both.rxe", "--without-feature", "avx2")
    assert (code, err) == (0, "")
    text = (here / "both.html").read_text()
    assert "lacks avx2" in text
    assert "<b>chosen</b> for 1" in text
    assert text.index("lacks avx2") < text.index("<b>chosen</b>")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a.rxe", "a.rxe"], "are the same file"),
        (["a.rxe", "link.rxe"], "are the same file"),
        (["a.rxe", "folder"], "is a directory"),
        (["folder"], "is a directory"),
        (["a.rxe", "nothing.rxe"], "does not exist"),
        (["a.rxe", "damaged.rxe"], "damaged.rxe"),
        (["damaged.rxe", "a.rxe"], "error[file-damaged]"),
        (["newer.rxe", "a.rxe"], "error[file-version]: newer.rxe"),
        (["a.rxe", "short.rxe"], "error[file-truncated]: short.rxe"),
        (["a.rxe", "empty.rxe"], "empty.rxe"),
        (["a.rxe", "--target", "llvm"], "an executable was built already"),
        (["a.rxe", "b.rxe", "--bound", "n=3"], "an executable was built already"),
        (["a.rxe", "--without-feature", ","], "name of a CPU feature is expected"),
        (["a.rxe", "--input", "y=f32[2]"], "y"),
        (["a.rxe", "--input", "x=f32[2,4]", "--function", "nothing"], "no function 'nothing'"),
    ],
)
def test_wrong_files(
    built: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    """Each is told with its name, and no page is written."""
    data = (built / "a.rxe").read_bytes()
    middle = len(data) // 2
    (built / "damaged.rxe").write_bytes(
        data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]
    )
    (built / "short.rxe").write_bytes(data[:middle])
    (built / "empty.rxe").write_bytes(b"")
    version = len(MAGIC)
    newer = int.from_bytes(data[version : version + 4], "little") + 1
    (built / "newer.rxe").write_bytes(
        data[:version] + newer.to_bytes(4, "little") + data[version + 4 :]
    )
    (built / "folder").mkdir()
    (built / "link.rxe").symlink_to(built / "a.rxe")
    code, out, err = explain(capsys, *args)
    assert code in (1, 2)
    assert out == ""
    assert message in re.sub(r"\s+", " ", err)
    assert not list(built.glob("*.html"))


def test_a_size_that_no_function_has(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page says so in place of the memory plan."""
    code, _, _ = explain(capsys, "a.rxe", "--size", "m=8")
    assert code == 0
    assert "no function has a size &#x27;m&#x27;" in (built / "a.html").read_text()
