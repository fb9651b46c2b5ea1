"""`relaxpy show`: parse, check and print a program, or print an executable as text."""

from __future__ import annotations

import click

import relaxpy
from relaxpy.cli.source import is_executable, read_module
from relaxpy.script import highlight


@click.command(
    short_help="Parse, check and print a program.",
    epilog="""
\b
Examples:
  relaxpy show mlp.py             print the program, every binding with its deduced annotation
  relaxpy show mlp.py --plain     without colours and line numbers, so that it can be read back
  cat mlp.py | relaxpy show -     from stdin
  relaxpy show mlp.rxe            the bytecode, constants and kernels of an executable
""",
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--plain",
    is_flag=True,
    help="No colours, no line numbers, all data (as when not on a terminal).",
)
@click.option("--kernels", is_flag=True, help="Of an executable: the tensor programs too.")
def show(file: str, plain: bool, kernels: bool) -> None:
    """Parse, check and print FILE: a program (decorated Python or TVMScript) or an executable.

    Only names of the script language and literals are evaluated: showing a file never runs it. What is wrong with
    the program is reported with its place, all mistakes at once.
    """
    if is_executable(file):
        highlight.show(relaxpy.load(file, any_cpu=True).as_text(kernels), "text", plain)
        return
    mod = read_module(file)
    if plain or not highlight.is_terminal():
        highlight.show(mod.script(), "python", plain)
    else:
        mod.show()
