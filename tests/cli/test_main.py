"""What every command does when it fails: one message on stderr, an exit code, no traceback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from relaxpy.cli import main as cli
from relaxpy.errors import RelaxError, UsageError
from relaxpy.version import __version__


def relaxpy(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "relaxpy", *args],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **env},
    )  # fmt: skip


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command `fail` that raises what is put into the list."""
    errors: list[BaseException] = []

    @click.command()
    def fail() -> None:
        raise errors[0]

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: fail)
    return errors


def run_main(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """`main(args)` in this process: exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as stop:
        cli.main(args)
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_help_teaches() -> None:
    """`--help` lists every command and shows a tour."""
    done = relaxpy("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in cli.COMMANDS)
    assert "relaxpy compile mlp.py" in done.stdout


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`COMMAND --help` says what it does."""
    code, out, _ = run_main(capsys, command, "--help")
    assert code == 0
    assert f"Usage: relaxpy {command}" in out
    assert len(out.splitlines()) > 8


def test_unknown_command_suggests(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt command is answered with the nearest one."""
    code, out, err = run_main(capsys, "shwo")
    assert (code, out) == (2, "")
    assert "did you mean show?" in err


def test_unknown_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage exits with 2 and says where help is."""
    code, _, err = run_main(capsys, "show", "--colour")
    assert code == 2
    assert "--colour" in err
    assert "'relaxpy show --help' explains" in err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("show", "m.py", "--fuction", "main"), "did you mean --function?"),
        (("run", "m.rxe", "--output", "y.npy"), "did you mean --save?"),
        (("run", "m.rxe", "--inputs", "x=x.npy"), "did you mean --input?"),
        (("profile", "m.py", "--size", "n=3"), "did you mean --input?"),
        (("explain", "m.py", "--device", "cuda"), "did you mean --target?"),
        (("generate", "hi", "--max-new-tokens", "3"), "did you mean --max-tokens?"),
        (("generate", "hi", "--temp", "1"), "did you mean --temperature?"),
        (("chat", "--ctx-size", "512"), "did you mean --context?"),
        (("compile", "m.py", "--target", "llvm", "-mcpu=haswell"), '--target "llvm -mcpu=…"'),
        (("run", "m.rxe", "main", "x.npy"), "write --input NAME=x.npy"),
    ],
)
def test_options_by_other_names(
    args: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As other commands here, or other programs, call them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").touch()
    (tmp_path / "m.rxe").touch()
    code, out, err = run_main(capsys, *args)
    assert (code, out) == (2, "")
    assert told in err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("bad-input", "no such thing", help="do this"), 1, "error[bad-input]: no such thing"),
        (FileNotFoundError(2, "No such file or directory", "x.rxe"), 1, "error: x.rxe: No such file or directory"),
        (PermissionError(13, "Permission denied", "x.rxe"), 1, "error: x.rxe: Permission denied"),
        (MemoryError(), 1, "error: out of memory"),
        (ZeroDivisionError("division by zero"), 70, "internal error: ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)  # fmt: skip
def test_failures_are_one_message(
    failing: list[BaseException],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    """Each kind of failure has its exit code; stdout stays empty and no traceback is shown."""
    failing.append(error)
    got, out, err = run_main(capsys, "fail")
    assert (got, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback(
    failing: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RELAXPY_DEBUG=1 lets the exception through."""
    monkeypatch.setenv("RELAXPY_DEBUG", "1")
    failing.append(UsageError("bad-input", "no such thing"))
    with pytest.raises(RelaxError):
        cli.main(["fail"])


def test_broken_pipe_is_quiet() -> None:
    """A reader that goes away ends the command without a message."""
    process = subprocess.Popen(
        [sys.executable, "-m", "relaxpy", "--help"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=60)
    assert err == ""


def main_in(code: str, **env: str) -> subprocess.Popen[bytes]:
    """A process that has imported the command, has run `code`, and says so on stdout before it runs the command."""
    start = f"import sys\nfrom relaxpy.cli import main as cli\n{code}\nprint('ready', flush=True)\n"
    return subprocess.Popen(
        [sys.executable, "-c", f"{start}cli.main(sys.argv[1:])", "show", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, **env},
    )  # fmt: skip


def test_interrupt_is_one_word() -> None:
    """Ctrl-C, also while the compiler is imported: no traceback, and the exit code that shells give it."""
    with main_in("") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == b"interrupted"


@pytest.mark.parametrize("lines", [1, 20_000])
def test_a_reader_that_has_enough(lines: int) -> None:
    """`relaxpy COMMAND | head -1`, whether the rest fits the pipe or not."""
    code = f"""
import click
@click.command()
@click.argument("file")
def lines(file):
    sys.stdin.readline()
    for _ in range({lines}):
        click.echo("line")
cli.LazyGroup.get_command = lambda *_: lines
"""
    with main_in(code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == cli.READER_GONE


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_no_color(no_color: str, coloured: bool) -> None:
    """On a terminal a defect is red, but for those who want no colours."""
    fail = "def fail(*_): raise ZeroDivisionError\ncli.LazyGroup.get_command = fail"
    code = f"from relaxpy.cli import main as cli\n{fail}\ncli.main(['show'])"
    terminal, theirs = pty.openpty()
    env = {**os.environ, "NO_COLOR": no_color}
    done = subprocess.run([sys.executable, "-c", code], stderr=theirs, env=env, check=False)
    os.close(theirs)
    shown = os.read(terminal, 10_000)
    os.close(terminal)
    assert done.returncode == 70
    assert b"ZeroDivisionError" in shown
    assert (b"\x1b[31m" in shown) is coloured


HEAVY = ("tvm", "tvm_ffi", "numpy", "sympy", "rich", "relaxpy.ir", "relaxpy.runtime")


def test_help_imports_nothing_heavy() -> None:
    """Neither `relaxpy --help` nor the help of any command imports numpy, the compiler, or what they belong to."""
    code = f"""
import sys
from relaxpy.cli.main import COMMANDS, main
for args in ([], *([name] for name in COMMANDS)):
    try:
        main([*args, "--help"])
    except SystemExit as stop:
        assert not stop.code
    heavy = [name for name in {HEAVY} if name in sys.modules]
    assert not heavy, (args, heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_is_told_once() -> None:
    assert relaxpy("--version").stdout.split()[-1] == __version__


def test_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there is named in the message."""
    code, _, err = run_main(capsys, "show", str(tmp_path / "nothing.py"))
    assert code != 0
    assert "nothing.py" in err


def test_closed_streams_are_empty_ones() -> None:
    script = f'exec "{sys.executable}" -m relaxpy --help <&- >&-'
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_stdin_that_is_not_utf8() -> None:
    command = [sys.executable, "-m", "relaxpy", "show", "-"]
    env = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, input=b"a\x80b\n", capture_output=True, env=env, check=False)
    assert done.returncode == 1
    assert b"not a text file in UTF-8" in done.stderr


@pytest.mark.parametrize(
    ("word", "meant"),
    [("build", "compile"), ("help", "--help"), ("shwo", "show"), ("info", "doctor")],
)
def test_commands_of_other_programs(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_main(capsys, word)
    assert code == 2
    assert f"did you mean {meant}?" in err
