"""`relaxpy completion`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from relaxpy.cli.completion import COMPLETE_VARIABLE
from relaxpy.cli.main import COMMANDS, cli


def script(shell: str) -> str:
    result = CliRunner().invoke(cli, ["completion", shell], prog_name="relaxpy")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_ask_the_command(shell: str) -> None:
    text = script(shell)
    assert f"{COMPLETE_VARIABLE}={shell}_complete" in text
    assert "relaxpy" in text


def test_other_shells_are_refused() -> None:
    result = CliRunner().invoke(cli, ["completion", "csh"], standalone_mode=False)
    assert result.exit_code == 1
    assert "'bash', 'zsh', 'fish'" in str(result.exception)


def answers(words: str, number: int) -> list[str]:
    """What the command answers a bash whose line is `words`."""
    question = {
        COMPLETE_VARIABLE: "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(number),
    }
    done = subprocess.run(
        [sys.executable, "-m", "relaxpy"],
        capture_output=True, text=True, check=True, env={**os.environ, **question},
    )  # fmt: skip
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_commands_and_options() -> None:
    assert answers("relaxpy ", 1) == list(COMMANDS)
    assert answers("relaxpy pr", 1) == ["profile"]
    assert answers("relaxpy compile --ta", 2) == ["--target"]
    assert answers("relaxpy compile --weights ", 3) == ["inside", "beside"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes(tmp_path: Path) -> None:
    """The script in a real bash: what it would insert after `relaxpy pl`."""
    (tmp_path / "completion.sh").write_text(script("bash"))
    command = tmp_path / "relaxpy"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m relaxpy "$@"\n')
    command.chmod(0o755)
    ask = (
        f'PATH="{tmp_path}:$PATH"; source {tmp_path}/completion.sh; complete -p relaxpy; '
        'COMP_WORDS=(relaxpy pl); COMP_CWORD=1; _relaxpy_completion relaxpy; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", ask], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    declared, answer = done.stdout.splitlines()
    assert "_relaxpy_completion relaxpy" in declared
    assert answer == "plan"
