"""Definitions that are in no file: at the prompts of Python, in `python -c`, in standard input, in strings. In processes
of their own, and where a person types, with a terminal."""

from __future__ import annotations

import code
import doctest
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relaxpy.errors import ScriptError
from relaxpy.script import ir as I
from relaxpy.script import relax as R
from relaxpy.script import tir as T
from tests.sweeps import sweep

pty = pytest.importorskip("pty", reason="Windows has no terminals of this kind")
IMPORTS = "from relaxpy.script import ir as I, relax as R, tir as T\n"
FUNCTION = """\
@R.function
def twice(x: R.Tensor(("n", 3), "float32")):
    y = R.add(x, x)
    return y
"""
PROGRAM = """\
@T.prim_func
def copy(a: T.Buffer((7,), "float32"), b: T.Buffer((7,), "float32")):
    for i in range(7):
        with T.sblock("copy"):
            at = T.axis.spatial(7, i)
            b[at] = a[at]
"""
MODULE = """\
@I.ir_module
class M:
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        return R.exp(x)
    @R.function(private=True)
    def other(x: R.Tensor(("n",), "float32")):
        return R.exp(x)
"""
SHOWN = 'print("kinds", type(twice).__name__, type(copy).__name__, sorted(M))\n'
EXPECTED = "kinds Function PrimFunc ['main', 'other']"
SHOWN_FEW = 'print("kinds", type(twice).__name__, sorted(M))\n'
EXPECTED_FEW = "kinds Function ['main', 'other']"
FEW = f"{IMPORTS}{FUNCTION}\n{MODULE}\n{SHOWN_FEW}"
ALL = f"{IMPORTS}{FUNCTION}\n{PROGRAM}\n{MODULE}\n{SHOWN}"
WRONG = '@R.function\ndef f(x: R.Tensor((2, 3), "float32")):\n    return R.matmul(x, x)\n'


def environment(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") or k == "PYTHONPATH"}
    return {**kept, "TERM": "dumb", "HOME": str(folder), "PYTHON_HISTORY": str(folder / "history")}


def typed(folder: Path, text: str, *arguments: str) -> str:
    """What a terminal shows when these lines are typed, each as soon as there is a prompt."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *arguments], stdin=slave, stdout=slave, stderr=slave, cwd=Path.cwd(),
        env=environment(folder), start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    shown = b""
    try:
        for line in [*text.split("\n"), "exit()"]:
            shown += until_prompt(master)
            os.write(master, line.encode() + b"\r")
        while part := read(master):
            shown += part
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return shown.decode(errors="replace").replace("\r", "")


def until_prompt(master: int, seconds: float = 60) -> bytes:
    shown, end = b"", time.monotonic() + seconds
    while not shown.endswith((b">>> ", b"... ")):
        assert time.monotonic() < end, shown.decode(errors="replace")
        if select.select([master], [], [], 0.5)[0]:
            shown += read(master)
    return shown


def read(master: int) -> bytes:
    try:
        return os.read(master, 1 << 16)
    except OSError:  # Linux: the process has ended
        return b""


def run(*arguments: str, text: str | None = None, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], input=text, capture_output=True, text=True, env=environment(folder)
    )  # fmt: skip


@sweep(3)
@pytest.mark.parametrize("arguments", [(), ("-i", "-c", "import relaxpy"), ("-m", "code")], ids=str)
def test_typed_at_a_prompt(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Python's own prompt, with and without a program before it, and the one of the module `code`."""
    text, expected = (FEW, EXPECTED_FEW) if arguments else (ALL, EXPECTED)
    assert expected in typed(tmp_path, text, *arguments)


def test_mistakes_at_a_prompt(tmp_path: Path) -> None:
    """Are shown with the line that was typed."""
    shown = typed(tmp_path, f"{IMPORTS}{WRONG}")
    assert "return R.matmul(x, x)\n" in shown.split("error[")[1]
    assert re.search(r"<(stdin|python-input-\d)>(-\d)?:3:", shown)


def test_a_history_that_lost_lines(tmp_path: Path) -> None:
    """Of equal lines, the prompts before 3.13 keep one: nothing else is run in their place."""
    equal = "    y = R.add(y, y)\n"
    shown = typed(
        tmp_path,
        f"{IMPORTS}{FUNCTION.replace('    return', equal * 2 + '    return')}\nprint(twice)\n",
    )
    if sys.version_info >= (3, 13):
        assert shown.count("R.add(") == 6
    else:
        assert "error[no-source]" in shown
        assert "of equal lines one after the other it has one" in shown
        assert 'relaxpy.parse("""' in shown


def test_called_later(tmp_path: Path) -> None:
    """A definition in a function, which is called when other statements were typed."""
    inner = "".join(f"    {line}\n" for line in FUNCTION.splitlines())
    shown = typed(
        tmp_path, f"{IMPORTS}def make():\n{inner}    return twice\n\nx = 1\nprint(type(make()))\n"
    )
    assert ".Function'>" in shown


def test_the_history_of_another_session(tmp_path: Path) -> None:
    """Another definition of the same name, of equal length, is not taken."""
    old = FUNCTION.replace("R.add", "R.sub")
    (tmp_path / "history").write_text(f"{old}exit()\n{old}")
    (tmp_path / ".python_history").write_text(f"{old}exit()\n{old}")
    shown = typed(tmp_path, f"{IMPORTS}{FUNCTION}\nprint(twice)\n")
    assert "y: R.Tensor((n, 3)" in shown
    assert "R.add(x, x)" in shown.split("print(twice)")[1]


def test_a_console_in_a_program() -> None:
    """`code.InteractiveConsole` without a terminal."""
    console = code.InteractiveConsole()
    for line in f"{IMPORTS}{FUNCTION}\n{PROGRAM}\n{MODULE}\n".split("\n"):
        console.push(line)
    names = ("twice", "copy", "M")
    assert [type(console.locals[name]).__name__ for name in names] == [
        "Function",
        "PrimFunc",
        "IRModule",
    ]


def test_options_of_python(tmp_path: Path) -> None:
    text = f"from __future__ import annotations\n{FEW}"
    assert EXPECTED_FEW in run("-Bc", text, folder=tmp_path).stdout


def test_a_file_as_standard_input(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(FEW)
    with (tmp_path / "model.py").open() as stream:
        found = subprocess.run(
            [sys.executable],
            stdin=stream,
            capture_output=True,
            text=True,
            env=environment(tmp_path),
        )
    assert EXPECTED_FEW in found.stdout


def test_a_pipe(tmp_path: Path) -> None:
    """Python has read the text, and kept none of it."""
    found = run("-", text=f"{IMPORTS}{MODULE}", folder=tmp_path)
    assert "keeps no text of what comes through a pipe" in found.stderr
    assert 'relaxpy.parse("""…""")' in found.stderr


@pytest.mark.parametrize("text", [FUNCTION, PROGRAM, MODULE], ids=["function", "program", "module"])
def test_a_string(text: str) -> None:
    with pytest.raises(ScriptError, match="keeps no text of a string that exec runs") as caught:
        exec(text, {"R": R, "T": T, "I": I, "__name__": "nowhere"})
    assert caught.value.code == "no-source"


def test_a_doctest() -> None:
    """The module doctest puts the text of its examples into linecache."""
    lines = [*FUNCTION.splitlines(), "print(type(twice).__name__)"]
    text = (
        "".join(f"{'>>>' if line[:1] not in ' d' else '...'} {line}\n" for line in lines)
        + "Function\n"
    )
    parsed = doctest.DocTestParser().get_doctest(text, {"R": R}, "documented", None, 0)
    assert doctest.DocTestRunner().run(parsed).failed == 0


def test_ipython(tmp_path: Path) -> None:
    """Its cells are in linecache."""
    pytest.importorskip("IPython")
    cells = f"""\
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in {[IMPORTS, FUNCTION, MODULE, SHOWN_FEW]!r}:
    shell.run_cell(cell)
"""
    assert EXPECTED_FEW in run("-c", cells, folder=tmp_path).stdout
