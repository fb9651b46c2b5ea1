"""Options that commands share: written once, and what a command says otherwise."""

from __future__ import annotations

import ast
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from relaxpy.cli.options import SHARED, option

COMMANDS = Path(__file__).parents[2] / "relaxpy/cli"


def test_what_a_command_says_wins() -> None:
    @click.command()
    @option("--seed", default=3, help="Of dice.")
    @option("--bound")
    def command(seed: int, bounds: tuple[str, ...]) -> None:
        click.echo(f"{seed} {bounds}")

    run = CliRunner().invoke
    assert run(command, []).output == "3 ()\n"
    assert run(command, ["--seed", "0", "--bound", "n=2"]).output == "0 ('n=2',)\n"
    assert run(command, ["--seed", "-1"]).exit_code == 2
    text = run(command, ["--help"]).output
    assert "Of dice.  [default: 3; x>=0]" in text
    assert "An upper bound of a symbolic variable" in text


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_option_has_several_commands(name: str) -> None:
    used = [
        path.name
        for path in COMMANDS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "option"
        and ast.unparse(node.args[0]) == repr(name)
    ]
    assert len(used) > 1
