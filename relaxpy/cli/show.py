"""`relaxpy show`: parse, check and print a program, or print an executable as text."""

from __future__ import annotations

import sys

import click

import relaxpy
from relaxpy.cli.source import read_module


@click.command(
    epilog="""
\b
Examples:
  relaxpy show mlp.py             print the program, every binding with its deduced annotation
  relaxpy show mlp.py --plain     without colours and line numbers, so that it can be read back
  cat mlp.py | relaxpy show -     from stdin
  relaxpy show mlp.rxe            the bytecode, constants and kernels of an executable
"""
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--plain",
    is_flag=True,
    help="No colours, no line numbers (the default when not on a terminal).",
)
def show(file: str, plain: bool) -> None:
    """Parse, check and print FILE: a program (decorated Python or TVMScript) or an executable.

    Only names of the script language and literals are evaluated: showing a file never runs it. What is wrong with
    the program is reported with its place, all mistakes at once.
    """
    if is_executable(file):
        print_text(relaxpy.load(file).as_text(), "text", plain)
    else:
        print_text(read_module(file).script(), "python", plain)


def is_executable(path: str) -> bool:
    """Whether `path` starts as the files of `Executable.save` do."""
    if path == "-":
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def print_text(text: str, language: str, plain: bool) -> None:
    """Print `text`; with colours and line numbers if stdout is a terminal and `plain` is not asked for."""
    if plain or not sys.stdout.isatty():
        click.echo(text.rstrip("\n"))
        return
    # Loaded here, since a quarter of the start-up time would go into it where nothing is coloured.
    from rich.console import Console
    from rich.syntax import Syntax

    Console().print(
        Syntax(text.rstrip("\n"), language, line_numbers=True, theme="ansi_dark", word_wrap=True)
    )
